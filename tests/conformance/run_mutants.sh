#!/bin/bash
# Checks the check: every wrong plugin of mutants.txt has to be caught, with a message that names
# its mistake or symptom, and right plugins must not be blamed.
#   run_mutants.sh [BUILD_FOLDER]            all mutants, then 20 seeds of the right plugins
#   run_mutants.sh --sample [BUILD_FOLDER]   some mutants and one seed, for every test run
# BUILD_FOLDER defaults to build/release. Exit status 0: all caught, no false alarm.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
sample=0
[ "${1:-}" = --sample ] && { sample=1; shift; }
build=${1:-$root/build/release}
heddle=$build/bin/heddle
plugin=$build/tests/conformance/mutant.so
for file in "$heddle" "$plugin"; do
  [ -e "$file" ] || { echo "$file is missing: build heddle and heddle_mutant first" >&2; exit 2; }
done
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
survivors=0 caught=0 alarms=0

# The first line of a failing row and its first symptom.
row_of() { awk '$0 ~ / FAIL / {print $1; exit}' "$1"; }
message_of() {
  awk '$0 ~ / FAIL / {getline; sub(/^ +/, ""); m = $0; next}
       m != "" && /looks like:/ {sub(/^ +looks like: /, ""); m = m " | " $0; exit}
       END {print m}' "$1"
}

run_mutant() {  # NAME REGEX
  local start end status text=$out/$1 verdict=caught
  start=$(date +%s%N)
  local timeout=60
  [ "$1" = hangs ] && timeout=3
  HEDDLE_MUTANT=$1 "$heddle" plugin check "$plugin" --quick --fail-fast --timeout $timeout \
    >"$text" 2>&1
  status=$?
  end=$(date +%s%N)
  if [ $status -ne 5 ]; then verdict="SURVIVES (exit status $status)"
  elif ! grep -Eq -- "$2" "$text"; then verdict="UNNAMED (expected: $2)"
  fi
  if [ "$verdict" = caught ]; then
    caught=$((caught + 1))
    verdict=$(message_of "$text" | cut -c1-150)
  else
    survivors=$((survivors + 1))
    verdict="$verdict $(message_of "$text" | cut -c1-150)"
  fi
  printf '%-26s %-8s %5d.%01d s  %s\n' "$1" "$(row_of "$text")" \
    $(((end - start) / 1000000000)) $(((end - start) / 100000000 % 10)) "$verdict"
}

check_right_plugin() {  # PLUGIN SEED
  "$heddle" plugin check "$1" --quick --seed "$2" >"$out/right" 2>&1 && return
  alarms=$((alarms + 1))
  echo "FALSE ALARM: $1, seed $2"
  grep -v ' pass ' "$out/right"
}

while IFS=$'\t' read -r name in_sample regex; do
  case $name in ''|'#'*) continue ;; esac
  [ $sample = 1 ] && [ "$in_sample" != sample ] && continue
  run_mutant "$name" "$regex"
done <"$here/mutants.txt"

seeds=20
right=("$plugin")
if [ $sample = 1 ]; then
  seeds=1
else
  right+=(cpu_sdpa "$build"/tests/templates/*/my_attention.so)
  # LibTorch's attention, where it was built (-DHEDDLE_WITH_TORCH_EXAMPLE=ON).
  torch=$build/lib/heddle/plugins/heddle_torch_sdpa.so
  if [ -e "$torch" ]; then right+=("$torch"); else echo "not checked: torch_sdpa (not built)"; fi
fi
for each in "${right[@]}"; do
  for ((seed = 1; seed <= seeds; ++seed)); do check_right_plugin "$each" $seed; done
done
echo "$caught mutants caught, $survivors not;" \
  "$alarms false alarms of ${#right[@]} right plugins in $seeds seeds"
[ $caught -gt 0 ] && [ $survivors -eq 0 ] && [ $alarms -eq 0 ]

#!/usr/bin/env bash
# Configures and builds one preset: tools/build.sh [release|debug|asan|tsan] [cmake options...]
# Prints only what matters; the whole output is in build/<preset>/build.log.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-release}
shift || true
mkdir -p "build/$preset"
log=build/$preset/build.log

# Clones in other folders share what ccache has compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

options=("$@")
[ "${CI:-}" = true ] && options+=(-DHEDDLE_WERROR=ON)

echo "build: preset $preset ($(nproc) cores; log: $log)"
started=$SECONDS
if ! { cmake --preset "$preset" "${options[@]}" && cmake --build --preset "$preset"; } >"$log" 2>&1; then
  grep -nE "error|Error|FAILED" "$log" | head -n 30 >&2 || true
  echo "build: failed, see $log" >&2
  exit 1
fi
grep -E "^-- (HEDDLE_|heddle:)" "$log" || true
echo "build: done in $((SECONDS - started)) s"

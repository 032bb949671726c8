#!/usr/bin/env bash
# Checks and times Heddle on the first GPU in at most ten minutes; `--dry-run` prints what it would do.
#   tools/gpu_check.sh [--fresh] [--retry] [--only STEP] [--out FOLDER] [--budget SECONDS] [--dry-run]
# In the repository it uses build/cuda and builds it first where it is missing, which the ten minutes do
# not count; in a folder made by tools/gpu_bundle.sh it needs nothing but python3 and a driver.
# The report is FOLDER/gpu_report.json (gpu_check/ by default); a second start goes on where the first
# one stopped. Exit codes: 0 all steps passed or were skipped with a reason, 1 a step failed, 3 time was up.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

if [ -x "$here/bin/heddle" ]; then  # a bundle
  exec python3 "$here/gpu_check.py" --prefix "$here" --data "$here" "$@"
fi

root=$(dirname "$here")
prefix=$root/build/cuda
if [[ " $* " != *" --dry-run "* ]]; then
  for built in bin/heddle bin/heddle_golden_cuda lib/heddle/libheddle_cuda.so \
               lib/heddle/plugins/heddle_cuda_flash.so; do
    [ -e "$prefix/$built" ] || { bash "$root/tools/build.sh" cuda; break; }
  done
fi
exec python3 "$here/gpu_check.py" --prefix "$prefix" --data "$root" "$@"

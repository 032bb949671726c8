#!/usr/bin/env bash
# Starts heddle on N processes of this machine with Open MPI:
#   launch/mpirun.sh 2 train configs/runs/recall_cpu.yaml [key=value ...]
# More hosts: HOSTFILE=hosts launch/mpirun.sh 16 train run.yaml
# Maps the environment only; every setting of the run is in the YAML file.
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,4s/^# //p' "$0" >&2
  exit 2
fi
ranks=$1
shift
heddle=${HEDDLE:-$(dirname "$0")/../build/release/bin/heddle}
[ -x "$heddle" ] || { echo "mpirun.sh: no heddle at $heddle; run tools/build.sh or set HEDDLE" >&2; exit 4; }

options=(-n "$ranks" --oversubscribe --bind-to none)
[ -n "${HOSTFILE:-}" ] && options+=(--hostfile "$HOSTFILE")
if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
exec mpirun "${options[@]}" "$heddle" "$@"

#!/usr/bin/env bash
# Starts heddle on N processes of this machine with torchrun:
#   launch/torchrun.sh 2 train configs/runs/recall_cpu.yaml [key=value ...]
# More hosts: the same on each, N being its processes, with
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=host0 [MASTER_PORT=29500] launch/torchrun.sh 8 train run.yaml
# Maps the environment only; every setting of the run is in the YAML file.
#
# MASTER_ADDR is host 0's, as all hosts reach it. torchrun's agent listens at MASTER_PORT; Heddle's
# store then takes the port after it. Two jobs on one host need two ports, two apart.
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
ranks=$1
shift
heddle=${HEDDLE:-$(dirname "$0")/../build/release/bin/heddle}
[ -x "$heddle" ] || { echo "torchrun.sh: no heddle at $heddle; run tools/build.sh or set HEDDLE" >&2; exit 4; }
torchrun=${TORCHRUN:-torchrun}
command -v "$torchrun" >/dev/null || {
  echo "torchrun.sh: no torchrun here (Debian: python3-torch); one machine: heddle launch -n $ranks -- $*" >&2
  exit 4
}

# --no_python with an underscore: older ones know no other spelling. -r 1 -t 1 writes standard
# output to files and to the terminal: without both, torchrun 1.13 fails under Python 3.11.
# torchrun gives a rank one OpenMP thread unless told otherwise; Heddle counts processors itself.
logs=$(mktemp -d "${TMPDIR:-/tmp}/heddle-torchrun.XXXXXX")
trap 'rm -rf "$logs"' EXIT
options=(--no_python -r 1 -t 1 --log_dir "$logs"
         --nnodes "${NNODES:-1}" --node_rank "${NODE_RANK:-0}" --nproc_per_node "$ranks"
         --master_addr "${MASTER_ADDR:-127.0.0.1}" --master_port "${MASTER_PORT:-29500}")
if [ -n "${MAX_RESTARTS:-}" ]; then options+=(--max_restarts "$MAX_RESTARTS"); else options+=(--max_restarts 0); fi

# torchrun passes SIGTERM and SIGINT on and gives the ranks 30 s to save; SIGUSR1 would kill it and
# leave them, so it becomes SIGTERM here.
"$torchrun" "${options[@]}" "$heddle" "$@" &
agent=$!
trap 'kill -TERM $agent 2>/dev/null' TERM USR1
trap 'kill -INT $agent 2>/dev/null' INT
code=0
wait "$agent" || code=$?
while kill -0 "$agent" 2>/dev/null; do
  code=0
  wait "$agent" || code=$?
done
exit "$code"

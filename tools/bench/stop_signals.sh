#!/usr/bin/env bash
# What happens when a signal reaches mpirun during a run of two ranks: exit code, how long the job
# lived on, and whether it saved. Prints one row a signal.
set -euo pipefail
cd "$(dirname "$0")/../.."
heddle=${HEDDLE:-build/release/bin/heddle}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

printf '%-8s %6s %14s %s\n' signal exit "lived on (s)" checkpoint
for signal in USR1 TERM INT; do
  # Steps of about two seconds, so that a step is under way whenever the signal comes.
  mpirun -n 2 --oversubscribe --bind-to none "$heddle" train configs/runs/d6_cpu.yaml \
    log.dir="$out" log.name="$signal" train.total_batch_size=4096 train.device_batch_size=4 \
    train.num_iterations=500 >"$out/$signal.log" 2>&1 &
  launcher=$!
  until [ -s "$out/$signal/metrics.jsonl" ]; do sleep 0.1; done
  sleep 1
  begin=$(date +%s.%N)
  kill -"$signal" "$launcher"
  code=0
  wait "$launcher" || code=$?
  lived=$(python3 -c "print(f'{$(date +%s.%N) - $begin:.1f}')")
  saved=$(ls "$out/$signal/checkpoints" 2>/dev/null | grep -c '^step-' || true)
  printf '%-8s %6s %14s %s\n' "$signal" "$code" "$lived" "$([ "$saved" -gt 0 ] && echo saved || echo none)"
done

#!/usr/bin/env bash
# Two ranks of one thread against one rank of two threads, on the same cores and the same batch, one
# after the other in pairs: tokens/s, the share of communication that is hidden, and what
# `heddle plan --calibrate` predicts for 1, 2 and 4 ranks from the one-rank run.
#   tools/bench/scaling_cpu.sh [pairs] [steps of a run]
set -euo pipefail
cd "$(dirname "$0")/../.."
pairs=${1:-5}
steps=${2:-30}

bash tools/setup.sh
bash tools/build.sh release
bin=build/release/bin
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

run() {  # name, ranks, threads, steps, overrides...
  local name=$1 ranks=$2 threads=$3 n=$4
  shift 4
  local start=()
  if [ "$ranks" -gt 1 ]; then
    start=(mpirun -n "$ranks" --oversubscribe --bind-to none)
    if [ $((ranks * threads)) -gt "$(nproc)" ]; then start+=(--mca mpi_yield_when_idle 1); fi
  fi
  "${start[@]}" "$bin/heddle" train "$@" log.dir="$out" log.name="$name" train.threads="$threads" \
    train.num_iterations="$n" train.eval_every=0 train.eval_tokens=0 train.sample_tokens=0 \
    checkpoint.at_end=false >"$out/$name.log" 2>&1 || { cat "$out/$name.log" >&2; exit 1; }
}

measure() {  # title, steps, overrides...
  local title=$1 n=$2
  shift 2
  for ((i = 1; i <= pairs; ++i)); do
    "$bin/heddle_peak_cpu" 2 >"$out/$title-$i.peak1"
    run "$title-one-$i" 1 2 "$n" "$@"
    "$bin/heddle_peak_cpu" 2 >"$out/$title-$i.peak2"
    run "$title-two-$i" 2 1 "$n" "$@"
    "$bin/heddle_peak_cpu" 2 >"$out/$title-$i.peak3"
  done
  run "$title-four" 4 1 "$n" "$@"
  python3 tools/bench/scaling_summary.py "$bin/heddle" "$out" "$title" "$pairs"
}

measure small "$steps" configs/runs/kjv_cpu.yaml data.path= data.kind=recall model.vocab_size=257
measure d6 "$((steps / 6 > 4 ? steps / 6 : 4))" configs/runs/d6_cpu.yaml

#!/usr/bin/env bash
# How a training step grows with the sequence: d6, one sequence a step, T from 512 to 16384, for
# windows L (all), SSSL (three of four layers see a quarter) and 512 (every layer sees 512 tokens).
# Prints a table with what `heddle plan` expects and fits in T, and draws growth_cpu.svg beside it.
#   tools/bench/growth_cpu.sh [--lengths 512,1024] [--windows L,SSSL,512] [--steps 4] [--out DIR]
# A run that is in DIR (build/growth) already is not repeated: the whole can be measured in pieces.
set -euo pipefail
cd "$(dirname "$0")/../.."
lengths=512,1024,2048,4096,8192,16384
windows=L,SSSL,512
steps=4
results=build/growth
while [ $# -gt 0 ]; do
  case $1 in
    --lengths) lengths=$2 ;;
    --windows) windows=$2 ;;
    --steps) steps=$2 ;;
    --out) results=$2 ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done

[ "$steps" -ge 3 ] || { echo "growth_cpu: --steps: got $steps, expected at least 3" >&2; exit 2; }

bash tools/setup.sh
bash tools/build.sh release
bin=build/release/bin
mkdir -p "$results/runs"

for t in ${lengths//,/ }; do
  for window in ${windows//,/ }; do
    run=$results/runs/$window-$t
    [ -f "$run/metrics.jsonl" ] && continue
    pattern=$window
    [[ $window =~ ^[0-9]+$ ]] && pattern="[$window]"
    unfinished=$(mktemp -d "$results/unfinished.XXXXXX")
    "$bin/heddle" train configs/runs/d6_cpu.yaml model.sequence_len="$t" train.device_batch_size=1 \
      train.total_batch_size="$t" model.window_pattern="$pattern" log.dir="$unfinished" \
      log.name=run train.num_iterations=$((steps + 1)) train.eval_every=0 train.eval_tokens=0 \
      train.sample_tokens=0 checkpoint.at_end=false >"$unfinished/log" 2>&1 ||
      { cat "$unfinished/log" >&2; exit 1; }
    "$bin/heddle_peak_cpu" >"$unfinished/run/peak"
    mv "$unfinished/run" "$run"
    rm -r "$unfinished"
  done
done
python3 tools/bench/growth_summary.py "$bin/heddle" "$results"

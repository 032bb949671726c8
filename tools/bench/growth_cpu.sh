#!/usr/bin/env bash
# How a training step grows with the sequence: d6, one sequence a step, T from 512 to 16384, for
# windows L (all), SSSL (three of four layers see a quarter) and 512 (every layer sees 512 tokens).
# Prints a table with what `heddle plan` expects and writes growth_cpu.svg beside it.
#   tools/bench/growth_cpu.sh [measured steps] [longest T] [where the table and the picture go]
set -euo pipefail
cd "$(dirname "$0")/../.."
steps=${1:-4}
longest=${2:-16384}
results=${3:-build/growth}

bash tools/setup.sh
bash tools/build.sh release
bin=build/release/bin
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mkdir -p "$results"

for ((t = 512; t <= longest; t *= 2)); do
  for pattern in L SSSL '[512]'; do
    name="$pattern-$t"
    "$bin/heddle_peak_cpu" >"$out/$name.peak"
    "$bin/heddle" train configs/runs/d6_cpu.yaml model.sequence_len="$t" train.device_batch_size=1 \
      train.total_batch_size="$t" model.window_pattern="$pattern" log.dir="$out" log.name=run \
      train.num_iterations=$((steps + 1)) train.eval_every=0 train.eval_tokens=0 \
      train.sample_tokens=0 checkpoint.at_end=false >"$out/$name.log" 2>&1 ||
      { cat "$out/$name.log" >&2; exit 1; }
    mv "$out/run" "$out/$name"
  done
done
python3 tools/bench/growth_summary.py "$bin/heddle" "$out" "$results" "$longest"

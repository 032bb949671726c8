#!/usr/bin/env bash
# Training speed on this machine as a share of its FMA peak, which is sampled before and after each
# run: tokens/s, GFLOP/s (nanochat's count, see docs/architecture.md), share of peak, peak memory.
#   tools/bench/train_cpu.sh [steps of the small model] [steps of d6]
set -euo pipefail
cd "$(dirname "$0")/../.."
steps_small=${1:-60}
steps_d6=${2:-5}

bash tools/setup.sh
bash tools/build.sh release
bin=build/release/bin
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

bench() {  # title, configuration, steps, overrides...
  local before after
  local title=$1 config=$2 steps=$3
  shift 3
  before=$("$bin/heddle_peak_cpu")
  "$bin/heddle" train "$config" "$@" log.dir="$out" log.name="$title" train.num_iterations="$steps" \
    train.eval_every=0 train.eval_tokens=0 train.sample_tokens=0 checkpoint.at_end=false \
    data.path= data.kind=recall >"$out/$title.log" 2>&1 || { cat "$out/$title.log" >&2; exit 1; }
  after=$("$bin/heddle_peak_cpu")
  python3 tools/bench/train_summary.py "$title" "$out/$title/metrics.jsonl" "$out/$title.log" "$before" "$after"
}

printf '%-10s %10s %9s %9s %9s %9s %9s\n' model tokens/s GFLOP/s peak-1 peak-2 share GiB
bench small_byte configs/runs/kjv_cpu.yaml "$steps_small" model.vocab_size=257
bench d6 configs/runs/d6_cpu.yaml "$steps_d6"

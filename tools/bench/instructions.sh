#!/usr/bin/env bash
# Instructions per token of a small training run on one thread, counted by callgrind: a measure of
# the step that noise cannot touch. Prints one line with the change against the kept figure.
#   tools/bench/instructions.sh            counts and compares
#   tools/bench/instructions.sh --keep     counts and keeps the figure
# Counted inside Trainer::step() and as the difference of two runs, so that start-up and what only
# the first steps do cancel. The kernels are the baseline ones, ours and oneDNN's: valgrind knows no
# AVX-512 and computes each lane of an FMA by a function call. oneDNN cuts its blocks by the caches
# that it finds, so a figure belongs to a processor.
set -euo pipefail
cd "$(dirname "$0")/../.."
kept=docs/benchmarks/instructions.txt
heddle=build/release/bin/heddle
layers=2 width=64 batch=2 length=128 few=2 many=4

command -v valgrind >/dev/null || {
  echo "instructions: not counted, valgrind is not installed"
  exit 0
}
[ -x "$heddle" ] || { echo "instructions: $heddle is missing; run tools/build.sh" >&2; exit 4; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

count() {  # steps -> instructions
  HEDDLE_CPU_ISA=baseline DNNL_MAX_CPU_ISA=SSE41 valgrind --tool=callgrind \
    --toggle-collect='heddle::Trainer::step()' --callgrind-out-file="$out/callgrind.$1" \
    "$heddle" train configs/runs/kjv_cpu.yaml data.kind=recall data.path= \
    model.n_layer=$layers model.n_embd=$width model.sequence_len=$length \
    train.device_batch_size=$batch train.total_batch_size=$((batch * length)) \
    train.num_iterations="$1" train.threads=1 \
    train.eval_every=0 train.eval_tokens=0 train.sample_every=0 train.sample_tokens=0 \
    train.peak_flops=1e11 checkpoint.at_end=false log.dir="$out" log.name="$1" \
    >"$out/log.$1" 2>&1 || { tail -20 "$out/log.$1" >&2; exit 1; }
  awk '/^(summary|totals):/ { print $2; exit }' "$out/callgrind.$1"
}

first=$(count $few)
second=$(count $many)
now=$(((second - first) / ((many - few) * batch * length)))
[ "$now" -gt 0 ] || { echo "instructions: callgrind counted none in Trainer::step()" >&2; exit 1; }
processor=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)

if [ "${1:-}" = --keep ]; then
  echo "$now instructions per token, $layers layers of C $width, T $length, baseline," \
    "$processor" >"$kept"
fi
read -r before rest <"$kept"
awk -v now="$now" -v before="$before" -v rest="$rest" 'BEGIN {
  printf "instructions: %d per token, %+.2f %% (kept: %d %s)\n", now, 100 * (now / before - 1),
         before, rest }'

#!/usr/bin/env bash
# Attention kernels forward, backward and decode as a share of the FMA peak that is measured around
# each case. HEDDLE_CPU_ISA=baseline|avx2|avx512 chooses the instructions.
#   tools/bench/attention_cpu.sh [repetitions] [threads...]
set -euo pipefail
cd "$(dirname "$0")/../.."
repetitions=${1:-7}
shift || true
[ $# -gt 0 ] || set -- 1 "$(nproc)"

bash tools/setup.sh
bash tools/build.sh release
for threads in "$@"; do
  build/release/bin/heddle_attention_kernels "$threads" "$repetitions"
done

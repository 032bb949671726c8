#!/usr/bin/env bash
# The project that `heddle plugin new --lang cuda` writes compiles with nvcc and is a plugin that
# Heddle recognises. Exit 77 where there is no nvcc.
#   tests/e2e/template_cuda.sh [build folder]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build/release}" && pwd)
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
if [ -z "$nvcc" ]; then
  echo "template_cuda: skipped, no nvcc on the PATH or in /usr/local/cuda/bin"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$build/bin/heddle" plugin new on_a_gpu --lang cuda --dir "$work/project" >/dev/null
cmake -S "$work/project" -B "$work/build" -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES=80 \
  -DHEDDLE_INCLUDE="$build/include" >"$work/log" 2>&1 && cmake --build "$work/build" >>"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
if grep -i "warning" "$work/log"; then exit 1; fi
exported=$(nm -D --defined-only "$work/build/on_a_gpu.so" | awk '{print $3}')
if [ "$exported" != heddle_attention_plugin_v1 ]; then
  echo "template_cuda: exports $exported" >&2
  exit 1
fi
"$build/bin/heddle" plugin list --plugin-path "$work/build/on_a_gpu.so" | grep "on_a_gpu 0.1.0 (ABI 1.0, cuda)"

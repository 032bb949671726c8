#!/usr/bin/env bash
# Makes a folder that checks and times Heddle on a GPU machine without a compiler and without a network:
# copy it there, run gpu_check.sh in it.
#   tools/gpu_bundle.sh [FOLDER] [--build BUILD]     (gpu_bundle, build/cuda)
# It holds the programs, the CUDA device, the plugins, golden data and the shared libraries of this
# distribution that they need, but the C library: the target's must be as new as this one's. Not in it,
# for their size: the driver (any that serves the CUDA of the build), cuBLASLt, cuDNN and NCCL, which
# gpu_check.sh looks for in CUDA toolkits and Python wheels there; what lacks one is skipped with the
# reason. Libraries of more than 4 MiB are packed until gpu_check.sh starts. Fails when the folder is larger
# than 60 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."

most_mib=60
bundle=gpu_bundle
build=build/cuda
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    -*) sed -n '2,11s/^# \?//p' "$0" >&2; exit 2 ;;
    *) bundle=$1; shift ;;
  esac
done

if [ ! -e "$build/cmake_install.cmake" ]; then
  echo "gpu_bundle: $build is not built: tools/build.sh cuda" >&2
  exit 4
fi
if [ -e "$bundle" ] && [ ! -e "$bundle/gpu_check.py" ]; then
  echo "gpu_bundle: $bundle exists and is no bundle: name another folder" >&2
  exit 2
fi
rm -rf "$bundle"
cmake --install "$build" --prefix "$bundle" --strip >/dev/null
cmake --install "$build" --prefix "$bundle" --strip --component gpu_check >/dev/null
rm -rf "$bundle/include" "$bundle/share"

# Every library that something here needs, those of libraries included. The C library and the loader
# belong together, and to the target.
libraries() {
  find "$bundle" -type f \( -path '*/bin/*' -o -name '*.so*' \) -exec ldd {} + 2>/dev/null |
    awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*)\.so' |
    grep -vE '/(libcuda|libcudart|libcublas|libcublasLt|libcudnn[^/]*|libnccl|libnvrtc)\.so'
}
mkdir -p "$bundle/lib"
for library in $(libraries); do
  case $library in "$(realpath "$bundle")"/*) continue ;; esac
  cp -L "$library" "$bundle/lib/"
done
strip --strip-unneeded "$bundle"/lib/*.so* 2>/dev/null || true

# Large ones travel packed; gpu_check.py unpacks them where it starts.
find "$bundle/lib" -name '*.so*' -size +4M -exec xz -6 {} +

mkdir -p "$bundle/configs/runs" "$bundle/tests/golden"
cp configs/runs/d12_gpu.yaml "$bundle/configs/runs/"
cp tests/golden/*.json tests/golden/{attention,sssl_gqa,l_mha,sl_mqa}.safetensors "$bundle/tests/golden/"
cp tools/gpu_check.sh tools/gpu_check.py "$bundle/"

echo "gpu_bundle: what is in $bundle"
for part in bin lib/heddle lib tests; do
  printf '  %8s KiB  %s\n' "$(du -sk "$bundle/$part" | cut -f1)" "$part"
done
for plugin in cuda_flash cudnn; do
  compgen -G "$bundle/lib/heddle/plugins/heddle_$plugin.so*" >/dev/null || echo "  without the plugin $plugin: it is not built"
done
kib=$(du -sk --apparent-size "$bundle" | cut -f1)
echo "gpu_bundle: $((kib / 1024)).$((kib % 1024 * 10 / 1024)) MiB, at most $most_mib MiB"
if [ "$kib" -gt $((most_mib * 1024)) ]; then
  echo "gpu_bundle: too large" >&2
  exit 1
fi

#!/usr/bin/env bash
# Installs the Debian 12 packages that Heddle builds with. Quiet when nothing is missing.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache git python3 pkg-config
  libopenmpi-dev openmpi-bin libgloo-dev libdnnl-dev ocl-icd-libopencl1 libyaml-cpp-dev libcli11-dev libspdlog-dev libfmt-dev
  libboost1.81-dev libboost-json1.81-dev libboost-filesystem1.81-dev libboost-context1.81-dev
  libgtest-dev libgmock-dev
)
[ "${CI:-}" != true ] || packages+=(valgrind)  # tools/bench/instructions.sh

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "setup: not root and no sudo; ask an administrator to install: ${missing[*]}" >&2
    exit 4
  }
  sudo=sudo
fi

echo "setup: installing ${missing[*]}"
log=$(mktemp)
if ! { $sudo apt-get update && DEBIAN_FRONTEND=noninteractive \
       $sudo apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup: apt-get failed (whole log: $log)" >&2
  exit 4
fi
rm -f "$log"

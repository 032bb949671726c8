#!/bin/bash
# Writes data/kjv.txt, the King James Bible from Debian's bible-kjv package (public domain), for
# configs/runs/kjv_cpu.yaml. Does nothing when the file is there.
set -euo pipefail

expected=4404412
root=$(cd "$(dirname "$0")/../.." && pwd)
target=$root/data/kjv.txt

size_of() { if [ -f "$1" ]; then stat -c %s "$1"; else echo 0; fi; }

if [ "$(size_of "$target")" -eq $expected ]; then
  echo "$target: there already ($expected bytes)"
  exit 0
fi

if ! command -v bible >/dev/null; then
  echo "installing bible-kjv"
  sudo=
  if [ "$(id -u)" -ne 0 ]; then
    sudo=$(command -v sudo) || { echo "get_kjv.sh: bible-kjv is missing. Run as root: apt-get install bible-kjv" >&2; exit 4; }
  fi
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  install() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends bible-kjv; }
  if ! install >"$log" 2>&1 && ! { $sudo apt-get update -q && install; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "get_kjv.sh: apt-get could not install bible-kjv" >&2
    exit 4
  fi
fi

mkdir -p "$root/data"
bible -f gen1:1-rev22:21 >"$target.tmp"
size=$(size_of "$target.tmp")
if [ "$size" -ne $expected ]; then
  rm -f "$target.tmp"
  echo "get_kjv.sh: bible printed $size bytes, expected $expected (bible-kjv 4.38)" >&2
  exit 4
fi
mv "$target.tmp" "$target"
echo "$target: $size bytes"

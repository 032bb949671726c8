#!/usr/bin/env bash
# What an author of an attention backend does, outside the tree and against an installation: every
# command of docs/plugins.md, then every command of the READMEs that `heddle plugin new` writes.
#   tests/e2e/plugin_author.sh [build folder]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
HEDDLE_BUILD=$(cd "${1:-$root/build/release}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HEDDLE_BUILD PREFIX="$work/an installation"
# Nothing of the machine's own settings may help.
unset HEDDLE_PLUGIN_PATH HEDDLE_PROBE_EXE PKG_CONFIG_PATH CMAKE_PREFIX_PATH
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Turns the ```sh blocks of a page into a script. A block that is marked `fails` has to.
script_of() {
  awk '
    /^```sh fails$/ { fails = in_block = 1; print "if ("; next }
    /^```sh$/ { in_block = 1; next }
    /^```$/ && in_block {
      if (fails) print "); then echo \"plugin_author: that should have failed\" >&2; exit 1; fi"
      fails = in_block = 0
      next
    }
    in_block' "$1"
}

run_page() {  # page, folder
  echo
  echo "== $1"
  script_of "$1" >"$work/commands.sh"
  (cd "$2" && bash -v -euo pipefail "$work/commands.sh")
}

mkdir "$work/author"
run_page "$root/docs/plugins.md" "$work/author"
test -s "$work/author/my_attention/bench.svg"
grep -q '"plugin": "cpu_sdpa"' "$work/author/my_attention/bench.json"
test -d "$work/author/my_attention/runs/my_attention"
test -d "$work/author/my_attention/runs/validated"

export PATH="$PREFIX/bin:$PATH"
cd "$work/author"
for lang in c cpp; do
  heddle plugin new "tiled_$lang" --lang "$lang" --dir "$work/author/in $lang" >/dev/null
  run_page "$work/author/in $lang/README.md" "$work/author/in $lang"
done

echo
echo "== the header by pkg-config and by folder"
export PKG_CONFIG_PATH="$PREFIX/share/pkgconfig"
pkg-config --exists 'heddle-attention >= 1.0'
plugins=$(pkg-config --variable=plugindir heddle-attention | sed 's/\\ / /g')  # it escapes blanks
test "$(realpath "$plugins")" = "$(realpath "$PREFIX/lib/heddle/plugins")"
cmake -S "in c" -B by_pkg_config -DCMAKE_DISABLE_FIND_PACKAGE_heddle-attention=ON >/dev/null
cmake --build by_pkg_config >/dev/null
unset PKG_CONFIG_PATH
cmake -S "in c" -B by_folder -DHEDDLE_INCLUDE="$PREFIX/include" >/dev/null
cmake --build by_folder >/dev/null
heddle plugin list --plugin-path by_pkg_config/tiled_c.so | grep -q '^tiled_c 0.1.0'
heddle plugin list --plugin-path by_folder/tiled_c.so | grep -q '^tiled_c 0.1.0'

echo
echo "plugin_author: done in $SECONDS s"

#!/usr/bin/env bash
# Sets up, builds and runs the tests, all but the long ones on the CUDA emulator (ctest -L emulator).
# `tools/test.sh -R attention` passes options on to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."

bash tools/setup.sh
python3 tools/check_includes.py
bash tools/build.sh release -DHEDDLE_BUILD_TESTS=ON
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Waiting ranks give their core away: tests share the machine with whatever else runs on it.
export OMPI_MCA_mpi_yield_when_idle=1
ctest --preset release --output-on-failure -LE '^emulator$' "$@"

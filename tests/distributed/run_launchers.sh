#!/usr/bin/env bash
# The same run of two ranks under every launcher: Open MPI, heddle launch, torchrun, MPICH's Hydra,
# Slurm, and on two hosts (network namespaces). All must come to the same losses, or be refused in
# words; prints one table. What is not installed, or needs root, is skipped and said.
#   run_launchers.sh [--build DIR] [ROW...]
# Debian 12: apt-get install --no-install-recommends mpich python3-torch slurm-wlm munge iproute2
set -euo pipefail
exec python3 "$(cd "$(dirname "$0")" && pwd)/lab/launchers.py" "$@"

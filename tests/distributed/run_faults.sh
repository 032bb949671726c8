#!/usr/bin/env bash
# The fault table of docs/distributed.md: what is done to a job of several ranks, what must come of
# it, and what did. Every row under mpi and gloo; fails when one comes out otherwise than stated in
# tests/distributed/lab/fault_rows.py.
#   run_faults.sh [--build DIR] [--backend mpi|gloo] [--quick] [ROW...]
# As root also the rows that need two hosts (network namespaces, seen by nobody else).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null; then
  exec unshare -m python3 "$here/lab/faults.py" "$@"
fi
exec python3 "$here/lab/faults.py" "$@"

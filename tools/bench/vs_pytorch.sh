#!/usr/bin/env bash
# Heddle beside the reference in PyTorch on the same cores, measured in turn; prints ratios.
#   tools/bench/vs_pytorch.sh REFERENCE_DIR [--parts training,attention,own,decode,kjv] [--rounds 5]
#                             [--only TEXT] [--threads N] [--json FILE] [--text-seconds 75] [--seeds 1]
#                             [--resume]
# REFERENCE_DIR is a checkout of karpathy/nanochat outside of this repository. PYTHON names a python
# that has PyTorch; default: the one in REFERENCE_DIR/.venv. For example:
#   git clone https://github.com/karpathy/nanochat ~/nanochat && git -C ~/nanochat checkout 92d63d4
#   python3 -m venv ~/nanochat/.venv && ~/nanochat/.venv/bin/pip install torch numpy filelock rustbpe tiktoken tokenizers
# tools/bench/vs_pytorch/table.py FILE prints the JSON file as the tables of docs/benchmarks/cpu.md.
# An hour on two cores with all parts; nothing else should run meanwhile. Interrupted, it goes on with
# --resume.
set -euo pipefail
cd "$(dirname "$0")/../.."
reference=${1:-}
shift || true
[ -f "$reference/nanochat/gpt.py" ] || {
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  echo "vs_pytorch: ${reference:-no folder given}: no nanochat checkout" >&2
  exit 2
}
python=${PYTHON:-$reference/.venv/bin/python}
"$python" -c 'import torch' || { echo "vs_pytorch: $python has no PyTorch; set PYTHON" >&2; exit 4; }

bash tools/setup.sh
bash tools/build.sh release
"$python" -c 'import torch; print("PyTorch", torch.__version__)'
exec python3 tools/bench/vs_pytorch/compare.py "$reference" --python "$python" "$@"

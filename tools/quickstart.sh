#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds, trains a small GPT with
# two MPI ranks on the embedded corpus, then the same model with short windows, and shows what each
# remembers.
set -euo pipefail
cd "$(dirname "$0")/.."

bash tools/setup.sh
bash tools/build.sh release -DHEDDLE_BUILD_TESTS=OFF
heddle=build/release/bin/heddle
out=${HEDDLE_RUNS:-runs}/quickstart-$(date +%Y%m%d-%H%M%S)

train() {  # name, window_pattern, steps
  echo
  echo "== $1: window_pattern $2, $3 steps, two ranks"
  launch/mpirun.sh 2 train configs/runs/recall_cpu.yaml log.dir="$out" log.name="$1" \
    log.every=30 model.window_pattern="$2" train.num_iterations="$3"
}

echo
echo "== the attention plugins"
"$heddle" plugin list
train full L 180
train window64 '[64]' 180
train window32 '[32]' 180
train sssl-long SSSL 600

echo
echo "== what each model remembers, by distance"
"$heddle" eval "$out/full" "$out/window64" "$out/window32" "$out/sssl-long"
echo "Inside its window a model remembers; outside it guesses (1 of 16). SSSL has one layer that"
echo "sees everything, and learns the far facts later: that is why it trained longer."

echo
echo "== the model writes"
"$heddle" generate --checkpoint "$out/full" --tokens 120 --temperature 0.8
echo
echo "checkpoint: $(ls -d "$out"/full/checkpoints/step-*)"
echo "next: heddle train configs/runs/recall_cpu.yaml data.path=YOUR.txt, or see README.md"

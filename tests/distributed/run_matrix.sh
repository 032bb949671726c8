#!/usr/bin/env bash
# Ranks x backends x dist.shard x resume, real processes on this machine; prints one table and ends
# with 1 when a row fails. From the golden parameters, so that rounding is not amplified.
#
#   bash tests/distributed/run_matrix.sh [BUILD]     BUILD: build/release
#
# HEDDLE_MATRIX_RANKS="2 3 4 5", HEDDLE_MATRIX_BACKENDS="mpi gloo" and HEDDLE_MATRIX_STEPS=50 (of the
# reproducible runs) narrow it down.
set -uo pipefail
cd "$(dirname "$0")/../.."
heddle=${1:-build/release}/bin/heddle
compare="python3 tests/distributed/compare_runs.py"
read -ra ranks <<<"${HEDDLE_MATRIX_RANKS:-2 3 4 5}"
long=${HEDDLE_MATRIX_STEPS:-50}
out=$(mktemp -d /tmp/heddle-matrix.XXXXXX)
trap 'rm -rf "$out"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
failed=0
golden=(tests/e2e/sssl_gqa.yaml train.init_from=tests/golden/sssl_gqa.safetensors
        checkpoint.at_end=true data.kind=text data.path=docs/plugins.md data.val_fraction=0 "data.cache_dir=$out/cache")
recall=(configs/runs/recall_cpu.yaml "train.num_iterations=$long" train.reproducible=true
        train.eval_every=0 train.eval_tokens=512 train.sample_tokens=0 train.threads=1)

# start BACKEND RANKS ARGS...: heddle train on so many processes.
start() {
  local backend=$1 n=$2
  shift 2
  case $backend in
    self) "$heddle" train "$@" ;;
    mpi) mpirun -n "$n" --oversubscribe --bind-to none "$heddle" train "$@" dist.backend=mpi ;;
    gloo) "$heddle" launch -n "$n" -- train "$@" dist.backend=gloo ;;
  esac
}
# run NAME BACKEND RANKS ARGS...: its run folder is $out/NAME.
run() {
  local name=$1 backend=$2 n=$3
  shift 3
  start "$backend" "$n" "$@" "log.dir=$out" "log.name=$name" >"$out/$name.out" 2>&1 && return 0
  echo "run $name failed; its last lines:" >&2
  tail -5 "$out/$name.out" >&2
  return 1
}
row() { printf '%-7s %5s  %-10s %-46s %-22s %s\n' "$@"; }
# expect BACKEND RANKS SHARD WHAT GOT LIMIT: GOT <= LIMIT as numbers.
expect() {
  if python3 -c "import sys; sys.exit(not float(sys.argv[1]) <= float(sys.argv[2]))" \
      "${5:-nan}" "$6" 2>/dev/null; then
    row "$1" "$2" "$3" "$4" "$5" ok
  else
    row "$1" "$2" "$3" "$4" "${5:-nothing}" "FAILED (expected <= $6)"
    failed=1
  fi
}

backends=()
for backend in ${HEDDLE_MATRIX_BACKENDS:-mpi gloo}; do
  if start "$backend" 2 "${golden[@]}" --dry-run >"$out/probe.out" 2>&1; then
    backends+=("$backend")
  else
    echo "backend $backend cannot run here: $(grep -m1 -i 'error' "$out/probe.out")"
  fi
done

row backend ranks shard check result ""
run alone self 1 "${golden[@]}" || exit 1
for backend in "${backends[@]}"; do
  for n in "${ranks[@]}"; do
    for shard in none optimizer gradients; do
      run "$backend-$n-$shard" "$backend" "$n" "${golden[@]}" "dist.shard=$shard"
      expect "$backend" "$n" "$shard" "losses of 20 steps, against one rank" \
        "$($compare losses "$out/alone" "$out/$backend-$n-$shard")" 1e-5
      formula=$(start "$backend" "$n" "${golden[@]}" "dist.shard=$shard" --dry-run 2>/dev/null |
        grep -oE '[0-9]+ bytes handed' | grep -oE '[0-9]+')
      counted=$($compare metric "$out/$backend-$n-$shard" train/comm_bytes)
      expect "$backend" "$n" "$shard" "bytes a step: counted $counted, formula $formula" \
        "$([ "$counted" = "$formula" ] && echo 0 || echo 1)" 0
      [ "$shard" = none ] && continue
      expect "$backend" "$n" "$shard" "tensors that differ from shard none" \
        "$($compare bits "$out/$backend-$n-none" "$out/$backend-$n-$shard" 20)" 0
    done
    run "$backend-$n-again" "$backend" "$n" "${golden[@]}"
    expect "$backend" "$n" optimizer "tensors that differ, same run twice" \
      "$($compare bits "$out/$backend-$n-optimizer" "$out/$backend-$n-again" 20)" 0
    if [ "$backend" != "${backends[0]}" ]; then
      expect "$backend" "$n" optimizer "tensors that differ from ${backends[0]}" \
        "$($compare bits "$out/${backends[0]}-$n-optimizer" "$out/$backend-$n-optimizer" 20)" 0
    fi
  done
  # 8 sequences one at a time on 3 ranks: 3, 3 and 2 micro-steps.
  for shard in none optimizer gradients; do
    run "$backend-micro-$shard" "$backend" 3 "${golden[@]}" "dist.shard=$shard" \
      train.device_batch_size=1
    [ "$shard" = none ] && continue
    expect "$backend" 3 "$shard" "losses in micro-steps, against shard none" \
      "$($compare losses "$out/$backend-micro-none" "$out/$backend-micro-$shard")" 1e-6
  done
done

# Saved by n ranks after 10 of 20 steps, continued by m.
for backend in "${backends[@]}"; do
  for n in 1 2 3 4; do
    from=$backend-save-$n
    run "$from" "$([ "$n" = 1 ] && echo self || echo "$backend")" "$n" "${golden[@]}" \
      checkpoint.every=10 checkpoint.keep=2
    for m in 1 2 3 4; do
      on=$([ "$m" = 1 ] && echo self || echo "$backend")
      resume="train.resume=$out/$from/checkpoints/step-000010"
      run "$from-$m-loaded" "$on" "$m" "${golden[@]}" "$resume" train.init_from= \
        train.num_iterations=10
      run "$from-$m" "$on" "$m" "${golden[@]}" "$resume" train.init_from=
      expect "$backend" "$n-$m" optimizer "tensors that differ once loaded" \
        "$($compare bits "$out/$from" "$out/$from-$m-loaded" 10)" 0
      expect "$backend" "$n-$m" optimizer "losses of the next 10 steps" \
        "$($compare losses "$out/$from" "$out/$from-$m" 11 20)" 1e-5
    done
  done
done

run exact-alone self 1 "${recall[@]}"
run exact-alone-3 self 1 "${recall[@]}" train.device_batch_size=3 train.threads=2
expect self 1 none "reproducible: other micro-batch, 2 threads" \
  "$($compare bits "$out/exact-alone" "$out/exact-alone-3" "$long")" 0
for backend in "${backends[@]}"; do
  for n in "${ranks[@]}"; do
    run "exact-$backend-$n" "$backend" "$n" "${recall[@]}"
    expect "$backend" "$n" optimizer "reproducible: tensors that differ from one rank" \
      "$($compare bits "$out/exact-alone" "$out/exact-$backend-$n" "$long")" 0
  done
done
exit $failed

#!/usr/bin/env python3
"""The tables of tools/bench/scaling_cpu.sh: HEDDLE FOLDER TITLE PAIRS."""
import json
import pathlib
import statistics
import subprocess
import sys

heddle, folder, title, pairs = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
PEAKS_APART = 1.05  # pairs whose peaks differ by more met somebody else on the cores


def steps(name):
    lines = [json.loads(line) for line in open(folder / name / "metrics.jsonl")]
    return [m for m in lines if "train/dt" in m][1:]  # the first step warms up


def median(name, key):
    return statistics.median(m[key] for m in steps(name))


def peaks(i):
    return [float((folder / f"{title}-{i}.peak{k}").read_text()) for k in (1, 2, 3)]


def planned_ms(ranks, threads):
    """Of a run on `ranks` ranks, from the run on one rank of the quietest pair."""
    run = folder / f"{title}-one-{quietest}"
    done = subprocess.run(
        [heddle, "plan", str(run / "config.yaml"), "--calibrate", str(run / "metrics.jsonl"),
         "--ranks", str(ranks), f"train.threads={threads}", "--json"],
        capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    plan = json.loads(done.stdout)
    return plan["levels"][plan["shard"]]["seconds"]["step"] * 1e3


print(f"\n{title}: {pairs} pairs")
print(f"{'pair':>4} {'peaks GFLOP/s':>22} {'1x2 tok/s':>10} {'2x1 tok/s':>10} {'ratio':>7}")
ratios, kept = [], []
for i in range(1, pairs + 1):
    one, two = (median(f"{title}-{n}-{i}", "train/tok_per_sec") for n in ("one", "two"))
    p = peaks(i)
    quiet = max(p) <= PEAKS_APART * min(p)
    ratios.append(two / one)
    if quiet:
        kept.append(two / one)
    print(f"{i:>4} {p[0]:>7.0f}{p[1]:>7.0f}{p[2]:>7.0f} {one:>10.0f} {two:>10.0f} {two / one:>7.3f}"
          + ("" if quiet else "  peaks differ"))
print(f"ratio: median {statistics.median(ratios):.3f} of all, {min(ratios):.3f} to "
      f"{max(ratios):.3f}" + (f"; median {statistics.median(kept):.3f} of the {len(kept)} pairs "
                              "with steady peaks" if kept else "; no pair had steady peaks"))

quietest = min(range(1, pairs + 1), key=lambda i: max(peaks(i)) / max(min(peaks(i)), 1))
two = f"{title}-two-{quietest}"
print(f"pair {quietest}, two ranks: {median(two, 'train/comm_ms'):.2f} ms a step inside communication of "
      f"{median(two, 'train/dt') * 1e3:.2f}; {median(two, 'train/comm_hidden'):.0%} of the time in "
      f"which transfers were under way went into computing; "
      f"{median(two, 'train/comm_bytes') / 1e6:.2f} MB sent by rank 0")
print(f"{'ranks':>6} {'measured ms':>12} {'planned ms':>12}")
for ranks, threads, name in ((1, 2, f"one-{quietest}"), (2, 1, f"two-{quietest}"), (4, 1, "four")):
    measured, planned = median(f"{title}-{name}", "train/dt") * 1e3, planned_ms(ranks, threads)
    print(f"{ranks:>6} {measured:>12.2f} {planned:>12.2f} {planned / measured - 1:>+8.1%}")

#!/usr/bin/env python3
"""One row of tools/bench/train_cpu.sh: NAME METRICS LOG PEAK_BEFORE PEAK_AFTER."""
import json
import re
import statistics
import sys

name, metrics, log, before, after = sys.argv[1:]
lines = [json.loads(line) for line in open(metrics)]
steps = [m for m in lines if "train/tok_per_sec" in m][1:]  # the first step warms up
rates = [m["train/tok_per_sec"] for m in steps]
rate = statistics.median(rates)
# mfu = FLOPs per token * tokens/s / the peak that the run itself measured
run_peak = float(re.search(r"peak: ([\d.]+) GFLOP/s", open(log).read()).group(1))
gflops = statistics.median(m["train/mfu"] for m in steps) * run_peak
peak = (float(before) + float(after)) / 2
gib = max(m.get("memory/peak_rss_gib", 0) for m in lines)
print(f"{name:<10} {rate:>10.0f} {gflops:>9.1f} {float(before):>9.1f} {float(after):>9.1f} "
      f"{gflops / peak:>8.1%} {gib:>9.2f}   (spread {min(rates):.0f} to {max(rates):.0f})")

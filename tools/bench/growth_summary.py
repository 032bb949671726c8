#!/usr/bin/env python3
"""Table and picture of tools/bench/growth_cpu.sh: HEDDLE RUNS RESULTS LONGEST."""
import json
import math
import pathlib
import statistics
import subprocess
import sys

heddle, runs, results = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
LENGTHS = [512 << i for i in range(12) if 512 << i <= int(sys.argv[4])]
PATTERNS = {"L": ("L", "#1f6f8b"), "SSSL": ("SSSL", "#c8553d"), "[512]": ("window 512", "#588157")}


def measured(pattern, length):
    """Seconds of forward and backward, and peak memory in GiB."""
    lines = [json.loads(s) for s in open(runs / f"{pattern}-{length}" / "metrics.jsonl")]
    steps = [m for m in lines if "train/dt" in m][1:]
    seconds = statistics.median(m["train/dt"] - m["train/optim_ms"] / 1e3 for m in steps)
    return seconds, max(m.get("memory/peak_rss_gib", 0) for m in lines)


def planned(pattern, length):
    """The same from `heddle plan` with the rates of L at the shortest length."""
    first = runs / f"L-{LENGTHS[0]}" / "metrics.jsonl"
    done = subprocess.run([heddle, "plan", str(runs / f"{pattern}-{length}" / "config.yaml"),
                           "--calibrate", str(first), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    level = json.loads(done.stdout)["levels"]["none"]
    seconds = level["seconds"]["forward"] + level["seconds"]["backward"]
    return seconds, level["memory_total"] / 2**30


def table(rows):
    head = "| T | peak GFLOP/s |" + "".join(
        f" {name}: s | planned | GiB | planned |" for name, _ in PATTERNS.values())
    text = head + "\n|" + "---|" * (head.count("|") - 1) + "\n"
    for length in LENGTHS:
        peak = statistics.median(float((runs / f"{p}-{length}.peak").read_text()) for p in PATTERNS)
        text += f"| {length} | {peak:.0f} |"
        for pattern in PATTERNS:
            (s, gib), (ps, pgib) = rows[pattern, length]
            text += f" {s:.3f} | {ps:.3f} | {gib:.2f} | {pgib:.2f} |"
        text += "\n"
    return text


def picture(rows):
    """Seconds against T, both axes logarithmic; lines measured, dots planned."""
    width, height, left, bottom = 640, 400, 60, 50
    values = [v[0] for r in rows.values() for v in r]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def x(length):
        span = math.log2(LENGTHS[-1] / LENGTHS[0]) or 1
        return left + (width - left - 130) * math.log2(length / LENGTHS[0]) / span

    def y(seconds):
        return height - bottom - (height - bottom - 30) * (math.log10(seconds) - low) / (high - low)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="{left}" y="18">seconds of forward and backward, one sequence of T tokens '
             '(line: measured, dots: heddle plan)</text>']
    for e in range(low, high + 1):
        parts.append(f'<line x1="{left}" x2="{width - 130}" y1="{y(10**e):.1f}" '
                     f'y2="{y(10**e):.1f}" stroke="#ddd"/><text x="{left - 8}" '
                     f'y="{y(10**e) + 4:.1f}" text-anchor="end">{10.0**e:g}</text>')
    for length in LENGTHS:
        parts.append(f'<text x="{x(length):.1f}" y="{height - 28}" text-anchor="middle">{length}'
                     '</text>')
    for pattern, (name, colour) in PATTERNS.items():
        line = " ".join(f"{x(t):.1f},{y(rows[pattern, t][0][0]):.1f}" for t in LENGTHS)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(t):.1f}" cy="{y(rows[pattern, t][1][0]):.1f}" r="3.5" '
                  f'fill="none" stroke="{colour}"/>' for t in LENGTHS]
        end = rows[pattern, LENGTHS[-1]][0][0]
        parts.append(f'<text x="{x(LENGTHS[-1]) + 10:.1f}" y="{y(end) + 4:.1f}" fill="{colour}">'
                     f'{name}</text>')
    return "\n".join(parts + ["</svg>", ""])


rows = {(p, t): (measured(p, t), planned(p, t)) for p in PATTERNS for t in LENGTHS}
(results / "growth_cpu.md").write_text(table(rows))
(results / "growth_cpu.svg").write_text(picture(rows))
print(table(rows))
last = LENGTHS[-1]
for pattern, (name, _) in PATTERNS.items():
    grown = rows[pattern, last][0][0] / rows[pattern, last // 2][0][0]
    print(f"{name}: T {last // 2} to {last} takes {grown:.2f} times as long")
print(f"SSSL takes {rows['SSSL', last][0][0] / rows['L', last][0][0]:.2f} of L's time at T {last}")

#!/usr/bin/env python3
"""Table, fits and picture of tools/bench/growth_cpu.sh: HEDDLE RESULTS."""
import json
import math
import pathlib
import statistics
import subprocess
import sys

heddle, results = sys.argv[1], pathlib.Path(sys.argv[2])
WINDOWS = {"L": ("L", "#1f6f8b"), "SSSL": ("SSSL", "#c8553d"), "512": ("window 512", "#588157")}


def measured(run):
    """Seconds of forward and backward, and peak memory in GiB."""
    lines = [json.loads(s) for s in open(run / "metrics.jsonl")]
    steps = [m for m in lines if "train/dt" in m][1:]
    seconds = statistics.median(m["train/dt"] - m["train/optim_ms"] / 1e3 for m in steps)
    return seconds, max(m.get("memory/peak_rss_gib", 0) for m in lines)


def planned(run, first):
    """The same from `heddle plan` with the rates of the run `first`."""
    done = subprocess.run([heddle, "plan", str(run / "config.yaml"), "--calibrate",
                           str(first / "metrics.jsonl"), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    level = json.loads(done.stdout)["levels"]["none"]
    seconds = level["seconds"]["forward"] + level["seconds"]["backward"]
    return seconds, level["memory_total"] / 2**30


def read_runs():
    """{window: {T: (measured, planned, peak)}}; plans are calibrated by L at the shortest T."""
    found = {w: {} for w in WINDOWS}
    for run in (results / "runs").iterdir():
        window, length = run.name.split("-")
        found[window][int(length)] = run
    if not found["L"]:
        sys.exit("growth_summary: no run with window L to calibrate the plan by")
    first = found["L"][min(found["L"])]
    return {w: {t: (measured(r), planned(r, first), float((r / "peak").read_text()))
                for t, r in sorted(runs.items())} for w, runs in found.items() if runs}


def table(rows):
    head = "| T | peak GFLOP/s |" + "".join(
        f" {WINDOWS[w][0]}: s | planned | GiB | planned |" for w in rows)
    text = head + "\n|" + "---|" * (head.count("|") - 1) + "\n"
    for length in sorted({t for runs in rows.values() for t in runs}):
        here = {w: runs[length] for w, runs in rows.items() if length in runs}
        text += f"| {length} | {statistics.median(r[2] for r in here.values()):.0f} |"
        for window in rows:
            if window not in here:
                text += " | | | |"
                continue
            (s, gib), (ps, pgib), _ = here[window]
            text += f" {s:.3f} | {ps:.3f} | {gib:.2f} | {pgib:.2f} |"
        text += "\n"
    return text


def fit(xs, ys, degree):
    """Coefficients of the polynomial with the least squares of relative errors."""
    n = degree + 1
    rows = [[(x**p) / y for p in range(n)] for x, y in zip(xs, ys)]
    m = [[sum(r[i] * r[j] for r in rows) for j in range(n)] + [sum(r[i] for r in rows)]
         for i in range(n)]
    for i in range(n):  # Gauss-Jordan; positive definite, so no pivoting
        m[i] = [v / m[i][i] for v in m[i]]
        for j in range(n):
            if j != i:
                m[j] = [a - m[j][i] * b for a, b in zip(m[j], m[i])]
    return [row[n] for row in m]


def fits(rows):
    """Seconds as a polynomial in T: a window's is linear, L's and SSSL's need a square."""
    text = ""
    for window, runs in rows.items():
        for degree in (1, 2):
            if len(runs) < degree + 2:
                continue
            xs, ys = [t / 1024 for t in runs], [r[0][0] for r in runs.values()]
            c = fit(xs, ys, degree)
            worst = max(abs(sum(k * x**p for p, k in enumerate(c)) / y - 1) for x, y in zip(xs, ys))
            terms = " ".join(f"{k:+.4f} {('', 'T', 'T^2')[p]}".strip() for p, k in enumerate(c))
            text += (f"{WINDOWS[window][0]}: seconds = {terms} (T in units of 1024), off by "
                     f"{worst:.1%} at most\n")
    return text


class Panel:
    """Values against T, both axes logarithmic; lines measured, rings planned."""
    WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 380, 56, 90, 34, 44

    def __init__(self, rows, index, title, x0):
        self.rows, self.index, self.title, self.x0 = rows, index, title, x0
        self.lengths = sorted({t for runs in rows.values() for t in runs})
        values = [v[kind][index] for runs in rows.values() for v in runs.values()
                  for kind in (0, 1)]
        self.low, self.high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))

    def x(self, length):
        span = math.log2(self.lengths[-1] / self.lengths[0]) or 1
        inner = self.WIDTH - self.LEFT - self.RIGHT
        return self.x0 + self.LEFT + inner * math.log2(length / self.lengths[0]) / span

    def y(self, value):
        inner = self.HEIGHT - self.TOP - self.BOTTOM
        return self.HEIGHT - self.BOTTOM - inner * (math.log2(value) - self.low) / (
            (self.high - self.low) or 1)

    def text(self, x, y, words, more=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>'

    def draw(self):
        left, right = self.x(self.lengths[0]), self.x(self.lengths[-1])
        parts = [self.text(self.x0 + 12, 20, self.title, 'font-weight="bold"')]
        for e in range(self.low, self.high + 1):
            at = self.y(2.0**e)
            parts += [f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{at:.1f}" y2="{at:.1f}" '
                      'stroke="#ddd"/>',
                      self.text(left - 8, at + 4, f"{2.0**e:g}", 'text-anchor="end"')]
        parts += [self.text(self.x(t), self.HEIGHT - self.BOTTOM + 18, t, 'text-anchor="middle"')
                  for t in self.lengths]
        for window, runs in self.rows.items():
            name, colour = WINDOWS[window]
            line = " ".join(f"{self.x(t):.1f},{self.y(r[0][self.index]):.1f}"
                            for t, r in runs.items())
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" '
                         'stroke-width="2"/>')
            parts += [f'<circle cx="{self.x(t):.1f}" cy="{self.y(r[1][self.index]):.1f}" r="4" '
                      f'fill="none" stroke="{colour}"/>' for t, r in runs.items()]
        return parts + self.names()

    def names(self):
        """At the ends of the lines, one below the other where they would overlap."""
        ends = sorted((self.y(runs[max(runs)][0][self.index]) + 4, window)
                      for window, runs in self.rows.items())
        parts, free = [], 0
        for y, window in ends:
            name, colour = WINDOWS[window]
            free = max(y, free)
            parts.append(self.text(self.x(max(self.rows[window])) + 8, free, name,
                                   f'fill="{colour}"'))
            free += 14
        return parts


def picture(rows):
    panels = [Panel(rows, 0, "Seconds of forward and backward against T", 0),
              Panel(rows, 1, "Peak memory in GiB against T", Panel.WIDTH)]
    width, height = Panel.WIDTH * 2, Panel.HEIGHT + 24
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for panel in panels:
        parts += panel.draw()
    parts.append(panels[0].text(12, height - 12, "d6, one sequence of T tokens a step. Lines: "
                                "measured. Rings: heddle plan, calibrated by L at the shortest T."))
    return "\n".join(parts + ["</svg>", ""])


rows = read_runs()
text = table(rows) + "\n" + fits(rows)
(results / "growth_cpu.md").write_text(text)
(results / "growth_cpu.svg").write_text(picture(rows))
print(text + f"\nwritten: {results}/growth_cpu.md, growth_cpu.svg")

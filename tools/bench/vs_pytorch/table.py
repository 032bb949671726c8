#!/usr/bin/env python3
"""The results of vs_pytorch.sh as the tables of docs/benchmarks/cpu.md: table.py vs_pytorch.json.

A ratio is the median over rounds and, in brackets, its range.
"""
import json
import statistics
import sys

with open(sys.argv[1]) as file:
    rows = json.load(file)


def ratio(values, digits=2, unit="×"):
    return (f"{statistics.median(values):.{digits}f}{unit} ({min(values):.{digits}f} to "
            f"{max(values):.{digits}f})")


def rounds(name):
    return rows.get(name, {}).get("rounds", [])


def table(head, lines):
    if lines:
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for line in lines:
            print(f"| {' | '.join(line)} |")
        print()


def training():
    shapes = [("d6 T 512 L", 32 * 512, "2.2× / 1.35×", "2.5× / 1.55×"),
              ("4 layers C 128 T 256", 16 * 256, "1.8× / 1.25×", "2.0× / 1.4×"),
              ("d6 T 2048 SSSL", 4 * 2048, "1.95× / 1.2×", "2.15× / 1.35×"),
              ("d6 T 8192 SSSL", 8192, "2.2× / 1.55×", "2.5× / 1.75×")]
    lines = []
    for name, tokens, least, goal in shapes:
        kept = rounds(name)
        if not kept:
            continue
        rate = {k: tokens / statistics.median(r[k] for r in kept)
                for k in ("heddle", "eager", "compile")}
        gib = rows[name]["memory"]
        lines.append([name, *(f"{rate[k]:,.0f}" for k in rate),
                      *(ratio([r[k] / r["heddle"] for r in kept]) for k in ("eager", "compile")),
                      least, goal,
                      " / ".join(f"{gib[k]:.2f}" for k in ("heddle", "eager", "compile")),
                      " / ".join(f"{gib['heddle'] / gib[k]:.2f}" for k in ("eager", "compile"))])
    table(["training step", "tokens/s", "eager", "compiled", "against eager", "against compiled",
           "at least", "goal", "peak memory, GiB: Heddle / eager / compiled",
           "of eager's / compiled's"], lines)


def attention():
    wanted = {"T 2048 H 6 K 6 D 64 window -1": ("1.15×", "1.3×"),
              "T 8192 H 6 K 6 D 64 window -1": ("1.0×", "1.1×"),
              "T 2048 H 6 K 6 D 64 window 512": ("3×", "4.5×"),
              "T 8192 H 6 K 6 D 64 window 2048": ("3×", "4.5×")}
    lines = []
    for name in rows:
        kept = rounds(name)
        if not name.startswith("attention ") or not kept:
            continue
        cells = [ratio([r[mode][i] / r["heddle"][i] for r in kept])
                 for i in (0, 1) for mode in ("eager", "compile")]
        shape = name.removeprefix("attention ")
        lines.append([shape, *cells, *wanted.get(shape, ("", ""))])
    table(["attention alone", "forward against eager", "compiled", "backward against eager",
           "compiled", "compiled: at least", "goal"], lines)


def own():
    def share(row, part, whole):
        return [r[part] / r[whole] for r in rounds(row)]

    asked = [
        ("the step's own products and attention, as a share of its time (d6 T 512 L)",
         share("parts", "parts", "step"), "≥ 0.85", "0.92"),
        ("quarter window's attention time of full's, T 8192", share("window", "window", "full"),
         "≤ 0.50", "0.46"),
        ("SSSL's step time of L's, d6 T 8192", share("SSSL against L", "SSSL", "L"), "≤ 0.87",
         "0.82"),
        ("attention time with 2 kv heads of that with 6, T 2048", share("groups", "gqa", "mha"),
         "≤ 1", ""),
        ("2 threads against 1, as a share of the FMA ratio",
         [(r["all"] / r["one"]) / (r["peak all"] / r["peak one"]) for r in rounds("threads")],
         "0.93", "0.97")]
    table(["Heddle against itself", "measured", "at least", "goal"],
          [[what, ratio(values, 3, ""), least, goal] for what, values, least, goal in asked
           if values])


def decoding():
    lines = []
    for batch, least, goal in ((1, "2.2×", "3×"), (8, "3.5×", "6×")):
        kept = rounds(f"decode {batch}")
        if kept:
            lines.append([f"batch {batch}",
                          *(f"{statistics.median(r[k] for r in kept):,.0f}"
                            for k in ("heddle", "eager")),
                          ratio([r["heddle"] / r["eager"] for r in kept]), least, goal])
    table(["decode, d6, context 512", "tokens/s", "eager", "ratio", "at least", "goal"], lines)


def text():
    table(["King James bytes", "seconds", "steps", "bits per byte", "compiled: seconds", "steps",
           "bits per byte", "lower by"],
          [[f"seed {seed}", f"{r['seconds']:.1f}", f"{r['steps']}", f"{r['ours']:.3f}",
            f"{r['their_seconds']:.1f}", f"{r['their_steps']}", f"{r['theirs']:.3f}",
            f"{r['theirs'] - r['ours']:.3f}"] for seed, r in enumerate(rounds("text"), 1)])


for part in (training, attention, own, decoding, text):
    part()

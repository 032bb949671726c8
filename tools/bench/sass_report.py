#!/usr/bin/env python3
"""Prints what nvcc made of the CUDA kernels of a build folder: registers, spills, shared memory,
occupancy, and for the main loops of tensor core kernels two bounds on the share of the tensor
cores' peak. Needs no GPU.

    cmake --preset cuda && cmake --build --preset cuda
    python3 tools/bench/sass_report.py build/cuda [--arch sm_80] [--kernel 'attend.*128'] [--json]

The disassembler comes from PyPI, into a virtual environment beside the build folder (--tools DIR: a
folder that has cuobjdump and nvdisasm already). Exit codes: 0 fine, 2 usage, 4 something is
missing, 1 a kernel has spills in its main loop or, with --strict, misses its target."""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

import sass_model as model

# A disassembler reads what older toolkits of its generation made, as nvcc 13.0.
WHEELS = ("nvidia-cuda-cuobjdump==13.2.51", "nvidia-cuda-nvdisasm==13.2.51")

# On the serial bound, sm_80, head_dim 128.
TARGETS = {"forward": 0.50, "backward": 0.40}

# Measured on hardware by others, T 4096, no mask; share of the dense 16-bit peak (A100 312 TFLOP/s,
# H100 SXM 989). Of backward alone on A100 none is known: FlashAttention-2's is forward + backward.
PUBLIC = {
    ("sm_80", "forward", 128): "FA2 60 %",
    ("sm_80", "backward", 128): "FA2 63 % (fwd+bwd)",
    ("sm_80", "backward", 64): "FA2 55 % (fwd+bwd)",
    ("sm_90", "forward", 64): "FA2 32 %, cuDNN 41 %, FA3 48 %",
    ("sm_90", "forward", 128): "FA2 37 %, cuDNN 62 %, FA3 65 %",
    ("sm_90", "forward", 256): "FA2 33 %, cuDNN 59 %, FA3 74 %",
    ("sm_90", "backward", 64): "FA2 28 %, cuDNN 42 %, FA3 46 %",
    ("sm_90", "backward", 128): "FA2 31 %, cuDNN 50 %, FA3 55 %",
}


def fail(text):
    print(f"sass_report: {text}", file=sys.stderr)
    sys.exit(4)


def run(*command, env=None):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def find_tools(folder, build):
    """Folder of cuobjdump and nvdisasm, installed when it is not there yet."""
    if folder:
        return pathlib.Path(folder)
    venv = build.resolve().parent / "sass-tools"
    stamp = venv / "wheels.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(WHEELS):
        print(f"sass_report: installing {' '.join(WHEELS)} into {venv}", file=sys.stderr)
        run(sys.executable, "-m", "venv", venv)
        run(venv / "bin" / "python", "-m", "pip", "install", "--quiet",
            "--disable-pip-version-check", *WHEELS)
        stamp.write_text("\n".join(WHEELS))
    for tool in venv.glob("lib/python*/site-packages/nvidia/*/bin/cuobjdump"):
        return tool.parent
    fail(f"{venv} has no cuobjdump; remove that folder and try again")


def demangle(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    plain = {}
    for name, text in zip(names, done.stdout.splitlines()):
        text = re.sub(r"\((?:\w|::)*Arguments\)$|\(.*\)$", "", text.replace("(int)", ""))
        text = text.replace("(bool)1", "true").replace("(bool)0", "false")
        plain[name] = re.sub(r"^void |heddle::kernels::cuda::|__nv_|, ", lambda m: "," if
                             m[0] == ", " else "", text).replace("bfloat16", "bf16").replace(
                                 "__half", "fp16")
    return plain


def row_of(kernel, rows):
    """The row of the table of variants that starts a kernel, and what the kernel is; or None."""
    if m := re.match(r"plain::(\w+)<(\d+)>", kernel):
        op = "forward" if m[1] == "attend" else "backward"
        return find_row(kernel, rows, f"plain_f32_d{m[2]}", op)
    m = re.match(r"(attend|key_gradients|query_gradients)_mma<(bf16|fp16),(\d+)(?:,(\w+))?>",
                 kernel)
    if not m:
        return None
    function, element, dim, last = m[1], m[2], int(m[3]), m[4]
    if function == "attend":
        op, suffix = ("decode", "_split") if last == "1" else ("forward", "")
    else:
        op, suffix = "backward", "_atomic" if last == "true" else "_ordered"
    return find_row(kernel, rows, f"mma_{element}_d{dim}{suffix}", op)


def find_row(kernel, rows, name, op):
    for row in rows:
        if row["name"] == name and row["op"] == op:
            return row
    fail(f"{kernel}: the table of variants has no row {name} for {op}")


def read_object(path, tools, arch_filter):
    env = dict(os.environ, PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")
    dump = tools / "cuobjdump"
    usage = model.parse_usage(run(dump, "-res-usage", path, env=env))
    threads = model.parse_threads(run(dump, "-elf", path, env=env))
    kernels = model.parse_sass(run(dump, "-sass", path, env=env))
    for k in kernels:
        used = usage.get((k.arch, k.name), {})
        k.registers, k.stack, k.shared = (used.get(n, 0) for n in ("REG", "STACK", "SHARED"))
        k.threads = threads.get((k.arch, k.name), 0)
    return [k for k in kernels if not arch_filter or k.arch == arch_filter]


def describe(kernel, name, rows):
    arch = model.base_arch(kernel.arch)
    row = row_of(name, rows)
    # From sm_90 on the compiler's figure has the system's share in it.
    fixed = kernel.shared - (model.SYSTEM_SHARED if arch == "sm_90" else 0)
    shared = max(fixed, 0) + (row["shared_bytes"] if row else 0)
    loop = model.analyse(kernel)
    report = {
        "kernel": name, "arch": kernel.arch, "registers": kernel.registers, "stack": kernel.stack,
        "spills": model.spills(kernel.code), "shared": shared, "threads": kernel.threads,
        "occupancy": model.occupancy(model.ARCHS[arch], kernel.registers, shared, kernel.threads)
        if kernel.threads else None,
        "op": row["op"] if row else None, "head_dim": row["head_dim"] if row else None,
        "loop": loop,
    }
    if row:
        report["public"] = PUBLIC.get((arch, row["op"], row["head_dim"]))
        if arch == "sm_80" and row["head_dim"] == 128:
            report["target"] = TARGETS.get(row["op"])
    return report


def print_resources(reports):
    width = max(len(r["kernel"]) for r in reports)
    print(f"{'kernel':{width}} {'arch':7} {'regs':>4} {'spills':>6} {'stack':>5} {'shared':>7} "
          f"{'threads':>7} {'blocks/SM':>9} {'warps/SM':>8} {'limit':9}")
    for r in reports:
        o = r["occupancy"]
        where = f"{o['blocks']:>9} {o['warps']:>4} {o['share']:>3.0%} {o['by']:9}" if o else ""
        print(f"{r['kernel']:{width}} {r['arch']:7} {r['registers']:>4} {r['spills']:>6} "
              f"{r['stack']:>5} {r['shared']:>7} {r['threads'] or '-':>7} {where}")


def verdict(report):
    """Of a kernel with a target. A bound that leaves instructions out proves nothing when high."""
    loop = report["loop"]
    if loop["serial"] < report["target"]:
        return "MISSED"
    return "not proven" if loop["inner_loops"] or loop["calls"] else "met"


def print_loops(reports):
    width = max(len(r["kernel"]) for r in reports)
    pipes = model.PIPES
    print(f"{'kernel':{width}} {'arch':7} " + " ".join(f"{p:>7}" for p in pipes) +
          f" {'spills':>6} {'overlapped':>15} {'serial':>7} {'every branch':>12}  "
          "target; on hardware")
    for r in reports:
        loop = r["loop"]
        note = []
        if t := r.get("target"):
            note.append(f"{t:.0%} {verdict(r)}")
        if r.get("public"):
            note.append(r["public"])
        if r["op"] == "decode":
            note.append("decode: device memory limits it long before")
        if loop["inner_loops"]:
            note.append(f"{loop['inner_loops']} inner loops counted once: too high")
        if loop["calls"]:
            note.append(f"{loop['calls']} calls not followed")
        print(f"{r['kernel']:{width}} {r['arch']:7} " +
              " ".join(f"{loop['instructions'][p]:>7}" for p in pipes) +
              f" {loop['spills']:>6} {loop['overlapped']:>6.0%} ({loop['busiest']:>6}) "
              f"{loop['serial']:>7.1%} {loop['serial_every_branch']:>12.1%}  {'; '.join(note)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build", type=pathlib.Path, help="build folder of the preset cuda")
    parser.add_argument("--arch", help="only this one, for example sm_80")
    parser.add_argument("--kernel", default="", help="only kernels that this expression matches")
    parser.add_argument("--json", action="store_true", help="everything, opcodes included, as JSON")
    parser.add_argument("--strict", action="store_true", help="a missed target fails too")
    parser.add_argument("--tools", help="folder of cuobjdump and nvdisasm")
    options = parser.parse_args()

    objects = sorted(options.build.glob("kernels/cuda/**/*.cu.o"))
    table = options.build / "bin" / "heddle_cuda_variants"
    if not objects or not table.exists():
        fail(f"{options.build} has no compiled kernels; run cmake --preset cuda && "
             "cmake --build --preset cuda")
    tools = find_tools(options.tools, options.build)
    rows = json.loads(run(table))
    kernels = [k for o in objects for k in read_object(o, tools, options.arch)]
    names = demangle([k.name for k in kernels])
    reports = [describe(k, names[k.name], rows) for k in kernels
               if re.search(options.kernel, names[k.name])]
    reports.sort(key=lambda r: (r["arch"], r["op"] is None, r["kernel"]))
    if not reports:
        fail("no kernel matches")
    loops = [r for r in reports if r["loop"]]
    if options.json:
        print(json.dumps({"assumptions": model.ASSUMPTIONS, "kernels": reports}, indent=1))
    else:
        print_resources(reports)
        if loops:
            print("\nMain loops: instructions of one pass of a warp, bounds on the share of peak")
            print_loops(loops)
            print(f"\n{model.ASSUMPTIONS}")
    spilled = [r["kernel"] for r in loops if r["loop"]["spills"]]
    missed = [r["kernel"] for r in loops if r.get("target") and verdict(r) != "met"]
    if spilled:
        print(f"sass_report: spills in the main loop of {', '.join(spilled)}", file=sys.stderr)
    sys.exit(1 if spilled or options.strict and missed else 0)


if __name__ == "__main__":
    main()

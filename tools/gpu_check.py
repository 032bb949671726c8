#!/usr/bin/env python3
"""Checks and times Heddle on one GPU, step by step, and keeps what came out in gpu_report.json.

Started by gpu_check.sh. Every step has a limit of its own, all together have --budget; what was done is
not done again by the next start, on the same GPU. Exit codes: 0 everything ran and passed (skipped steps
have a reason), 1 something failed, 3 time was up before the last step.
"""
import argparse
import glob
import json
import lzma
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time

LEAST_SECONDS = 10  # of the budget that a step is started with
KEPT_OUTPUT = 3000  # characters


class Step:
    """command: a list, or a function of the results so far that gives one. missing(): why it cannot run
    here, or None. prepare(): before the command. parse(output): what the report keeps, whatever the
    exit code; may raise ValueError for a failure, Skip."""

    def __init__(self, name, command, limit, missing=None, parse=None, env=None, prepare=None):
        self.name, self.command, self.limit = name, command, limit
        self.missing, self.parse, self.env, self.prepare = missing, parse, env or {}, prepare


class Skip(Exception):
    """A step that ran as far as it can here."""


def run_command(command, limit, env):
    """(exit code or None when time was up, output). Ends everything that the command started."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", env={**os.environ, **env}, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output


class Report:
    def __init__(self, path, machine):
        self.path = path
        self.data = {"machine": machine, "steps": {}}
        try:
            with open(path) as f:
                kept = json.load(f)
        except (OSError, ValueError):
            return
        if kept.get("machine") == machine:
            self.data = kept
        else:
            print(f"{path} is of another machine ({kept.get('machine')}): starting over")

    @property
    def steps(self):
        return self.data["steps"]

    def results(self):
        """Also of steps that failed, as far as they came."""
        return {name: s["result"] for name, s in self.steps.items() if "result" in s}

    def record(self, name, entry):
        self.steps[name] = entry
        with open(self.path + ".part", "w") as f:
            json.dump(self.data, f, indent=1)
        os.replace(self.path + ".part", self.path)


def do_step(step, limit, results):
    """The entry of the report."""
    if step.prepare:
        step.prepare()
    command = step.command(results) if callable(step.command) else step.command
    begin = time.monotonic()
    try:
        code, output = run_command(command, limit, step.env)
    except OSError as error:
        return {"state": "failed", "reason": str(error), "command": command}
    entry = {"state": "ok", "seconds": round(time.monotonic() - begin, 1), "command": command}
    try:
        if code is None:
            raise ValueError(f"no end within {limit:.0f} s")
        entry["result"] = step.parse(output) if step.parse else {}
        if code != 0:
            raise ValueError
    except Skip as skip:
        entry.update(state="skipped", reason=str(skip))
    except (ValueError, OSError, KeyError) as error:
        reason = f"exit code {code}" if code else str(error) or repr(error)
        entry.update(state="failed", reason=reason, output=output[-KEPT_OUTPUT:])
    return entry


def run_steps(steps, report, budget, retry=False):
    end = time.monotonic() + budget
    out_of_time = False
    for number, step in enumerate(steps, 1):
        head = f"[{number}/{len(steps)}] {step.name}"
        kept = report.steps.get(step.name)
        if kept and (kept["state"] == "ok" or not retry):
            print(f"{head}: {kept['state']} before")
            continue
        reason = step.missing() if step.missing else None
        if reason:
            report.record(step.name, {"state": "skipped", "reason": reason})
            print(f"{head}: skipped, {reason}")
            continue
        left = end - time.monotonic()
        if left < min(LEAST_SECONDS, step.limit):
            out_of_time = True
            print(f"{head}: left for the next start, time is up")
            continue
        print(f"{head} ...", flush=True)
        entry = do_step(step, min(step.limit, left), report.results())
        if entry["state"] == "failed" and left < step.limit and entry["reason"].startswith("no end"):
            out_of_time = True  # its own limit was not reached
            print(f"{head}: left for the next start, time is up")
            continue
        report.record(step.name, entry)
        print(f"{head}: {entry['state']} ({entry.get('seconds', 0)} s)"
              + (f", {entry['reason']}" if "reason" in entry else ""))
    failed = [name for name, s in report.steps.items() if s["state"] == "failed"]
    return 1 if failed else 3 if out_of_time else 0


def dry_run(steps):
    for number, step in enumerate(steps, 1):
        command = step.command({}) if callable(step.command) else step.command
        print(f"{number:2}. {step.name}, at most {step.limit} s\n    {' '.join(command)}")
        reason = step.missing() if step.missing else None
        if reason:
            print(f"    cannot run here: {reason}")


# ---- what the commands say ----------------------------------------------------------------------


def parse_check(path):
    def parse(_):
        with open(path) as f:
            report = json.load(f)
        return {key: report[key] for key in ("cases", "passed", "failed", "skipped")}

    return parse


def parse_bench(path):
    def parse(_):
        with open(path) as f:
            bench = json.load(f)
        rows = []
        for r in bench["rows"]:
            row = {key: r[key] for key in ("plugin", "op", "seq_len", "head_dim", "window_left")}
            for key in ("failed", "refused", "kernel", "spread", "share_of_peak"):
                if key in r:
                    row[key] = r[key]
            if "gflops" in r:
                row["tflops"] = round(r["gflops"] / 1e3, 1)
            rows.append(row)
        return {"machine": bench["machine"], "peak_flops": bench["peak_flops"], "rows": rows}

    return parse


def parse_train(path):
    def parse(output):
        skip_without_cublas(output)
        with open(path) as f:
            steps = [m for m in map(json.loads, f) if "train/tok_per_sec" in m]
        if len(steps) < 4:
            raise ValueError(f"{len(steps)} steps in {path}")
        steps = steps[2:]  # the first ones warm up
        return {"tok_per_sec": round(statistics.median(m["train/tok_per_sec"] for m in steps)),
                "mfu": round(statistics.median(m["train/mfu"] for m in steps), 4),
                "loss": steps[-1].get("train/loss")}

    return parse


def parse_sanitizer(output):
    for sign in ("Device not supported", "not supported on this device", "Unable to find injection"):
        if sign in output:
            raise Skip(f"compute-sanitizer says: {sign}")
    lines = [line for line in output.splitlines() if "ERROR SUMMARY" in line]
    if not lines:
        raise ValueError("no ERROR SUMMARY")
    if any(": 0 errors" not in line for line in lines):
        raise ValueError(lines[-1].strip("= "))
    return {"summary": lines[-1].strip("= ")}


def skip_without_cublas(output):
    if "cuBLASLt cannot be loaded" in output:
        raise Skip("libcublasLt is not found; LD_LIBRARY_PATH can name its folder")


def parse_golden(output):
    skip_without_cublas(output)
    passed = [line for line in output.splitlines() if line.startswith("[  PASSED  ]")]
    return {"summary": passed[0] if passed else ""}


def parse_json(path):
    def parse(_):
        with open(path) as f:
            return json.load(f)

    return parse


# ---- the steps -----------------------------------------------------------------------------------


class Place:
    """A folder with bin/ and lib/: build/cuda of a repository, or a bundle."""

    def __init__(self, prefix, data, out):
        self.prefix, self.data, self.out = prefix, data, out
        self.heddle = os.path.join(prefix, "bin", "heddle")
        self.gpu = None if query_gpu() else "no GPU: nvidia-smi shows none"

    def file(self, name):
        return os.path.join(self.out, name)

    def plugin(self, name):
        return os.path.join(self.prefix, "lib", "heddle", "plugins", f"heddle_{name}.so")

    def missing(self, *programs):
        """A function that says which of bin/'s programs is not there, or that no GPU is."""

        def check():
            for program in ("heddle", *programs):
                path = os.path.join(self.prefix, "bin", program)
                if not os.path.exists(path):
                    return f"{path} is not built"
            return self.gpu

        return check


def query_gpu():
    """"NVIDIA H200, 580.95, 143771 MiB" of the first GPU; "" without one."""
    if not shutil.which("nvidia-smi"):
        return ""
    code, output = run_command(["nvidia-smi", "--format=csv,noheader",
                                "--query-gpu=name,driver_version,memory.total"], 20, {})
    return output.splitlines()[0].strip() if code == 0 and output.strip() else ""


def memory_mib(gpu):
    try:
        return int(gpu.split(",")[2].split()[0])
    except (IndexError, ValueError):
        return 0


def check_step(place, name, dtype, limit, level):
    report = place.file(f"{name}.json")
    command = [place.heddle, "plugin", "check", place.plugin("cuda_flash"), "--device", "cuda",
               "--dtype", dtype, "--json", report, *level]
    return Step(name, command, limit, place.missing(), parse_check(report))


def bench_step(place, head_dim, seq_len, ordered=False):
    """ordered: backward with the same bits every time, as training asks for."""
    name = f"attention_d{head_dim}_t{seq_len}" + ("_ordered" if ordered else "")
    shapes, report = place.file(f"{name}_shapes.json"), place.file(f"{name}.json")
    tokens, channels = 16384, 2048  # as the published figures have them
    heads = channels // head_dim

    def prepare():
        with open(shapes, "w") as f:
            json.dump([{"batch": tokens // seq_len, "seq_len": seq_len, "n_head": heads,
                        "head_dim": head_dim, "window_left": window,
                        "ops": ["backward"] if ordered else ["forward", "backward"]}
                       for window in (-1, seq_len // 4)], f)

    plugins = ["cuda_flash"] + (["cudnn"] if os.path.exists(place.plugin("cudnn")) else [])
    command = [place.heddle, "plugin", "bench", "--device", "cuda", "--shapes", shapes, "--reps", "2",
               "--json", report, "--plugins", ",".join(plugins)] + ([] if ordered else ["--any-order"])
    return Step(name, command, 60, place.missing(), parse_bench(report), prepare=prepare)


def train_step(place, pattern, gpu):
    run = f"d12_{pattern}"
    folder = place.file(run)

    def command(results):
        peaks = [r["peak_flops"] for n, r in results.items() if n.startswith("attention_")]
        batch = 16 if memory_mib(gpu) >= 70000 else 4
        return [place.heddle, "train", os.path.join(place.data, "configs/runs/d12_gpu.yaml"),
                f"model.window_pattern={pattern}", f"train.device_batch_size={batch}",
                f"train.peak_flops={max(peaks):.4g}" if peaks and max(peaks) else "train.peak_flops=auto",
                f"log.dir={place.out}", f"log.name={run}"]

    return Step(f"train_{run}", command, 90, place.missing(),
                parse_train(os.path.join(folder, "metrics.jsonl")),
                prepare=lambda: shutil.rmtree(folder, ignore_errors=True))  # of an earlier start


def sanitizer_step(place, tool, rule):
    folders = [os.environ.get("PATH", "")] + glob.glob("/usr/local/cuda*/bin")
    sanitizer = shutil.which("compute-sanitizer", path=":".join(folders))

    def missing():
        return place.missing()() if sanitizer else "compute-sanitizer is not found"

    command = [sanitizer or "compute-sanitizer", "--tool", tool, place.heddle, "plugin", "check-rule",
               place.plugin("cuda_flash"), rule, "--quick", "--device", "cuda", "--dtype", "bf16"]
    return Step(f"sanitizer_{tool}", command, 75, missing, parse_sanitizer)


def nccl_step(place):
    tool = os.path.join(place.prefix, "bin", "heddle_all_reduce_cuda")
    report = place.file("nccl.json")
    command = ["bash", "-c", 'exec "$1" launch -n "$("$2" --devices)" -- "$2" --out "$3"', "nccl",
               place.heddle, tool, report]
    return Step("nccl_all_reduce", command, 60, place.missing("heddle_all_reduce_cuda"),
                parse_json(report))


def make_steps(place, gpu):
    """The most valuable first: what is right, how fast it is, the rest."""

    def golden(what):
        program = os.path.join(place.prefix, "bin", "heddle_golden_cuda")
        return Step(f"golden_{what.lower()}", [program, f"--gtest_filter=*{what}*"], 60,
                    place.missing("heddle_golden_cuda"), parse_golden,
                    {"HEDDLE_GOLDEN": os.path.join(place.data, "tests/golden")})

    return [
        Step("doctor", [place.heddle, "doctor"], 60, place.missing(), lambda text: {"text": text}),
        check_step(place, "check_bf16", "bf16", 90, ["--quick"]),
        golden("Attention"),
        golden("Model"),
        *[bench_step(place, 128, t) for t in (4096, 16384, 2048, 1024, 8192)],
        train_step(place, "SSSL", gpu),
        train_step(place, "L", gpu),
        *[bench_step(place, 64, t) for t in (4096, 16384, 2048, 1024, 8192)],
        bench_step(place, 128, 4096, ordered=True),
        bench_step(place, 64, 4096, ordered=True),
        check_step(place, "check_f16", "f16", 90, ["--quick"]),
        check_step(place, "check_f32", "f32", 90, ["--quick"]),
        sanitizer_step(place, "memcheck", "GUARD"),
        sanitizer_step(place, "racecheck", "HEAD"),
        nccl_step(place),
        check_step(place, "check_bf16_full", "bf16", 200, []),
    ]


# ---- the table -----------------------------------------------------------------------------------


def bench_table(results):
    rows = {}
    for name, result in results.items():
        if not name.startswith("attention_"):
            continue
        ordered = name.endswith("_ordered")
        for r in result["rows"]:
            key = (r["head_dim"], r["window_left"] >= 0, r["seq_len"], ordered)
            value = r.get("tflops") or ("refused" if "refused" in r else "failed")
            rows.setdefault(key, {})[(r["plugin"], r["op"])] = value
    columns = [(p, op) for p in ("cuda_flash", "cudnn") for op in ("forward", "backward")]
    lines = ["| D | window | T | " + " | ".join(f"{p} {op}" for p, op in columns) + " |",
             "|---|---|---|" + "---|" * len(columns)]
    for (head_dim, windowed, seq_len, ordered), values in sorted(rows.items()):
        window = "T/4" if windowed else "full"
        lines.append(f"| {head_dim} | {window} | {seq_len}{', in order' if ordered else ''} | "
                     + " | ".join(str(values.get(c, "-")) for c in columns) + " |")
    return lines if rows else []


def make_table(report):
    """The report as Markdown, for docs/benchmarks/gpu.md."""
    results = report.results()
    lines = [report.data["machine"], ""] + bench_table(results) + [""]
    for name, r in results.items():
        if name.startswith("train_"):
            lines.append(f"- {name}: {r['tok_per_sec']:,} tokens/s, MFU {100 * r['mfu']:.1f} %")
        elif name.startswith("check_"):
            lines.append(f"- {name}: {r['cases']} cases, {r['passed']} rules passed, {r['failed']} failed")
        elif "summary" in r:
            lines.append(f"- {name}: {r['summary']}")
    for name, s in report.steps.items():
        if s["state"] != "ok":
            lines.append(f"- {name}: {s['state']}, {s['reason']}")
    return "\n".join(lines) + "\n"


# ---- the machine ---------------------------------------------------------------------------------


def library_folders():
    """Folders of NVIDIA's libraries that the loader may not know: toolkits and Python wheels."""
    wanted = ("libcublasLt.so.*", "libcudnn.so.9", "libnccl.so.2")
    places = glob.glob("/usr/local/cuda*/lib64")
    for site in sys.path:
        places += sorted(glob.glob(os.path.join(site, "nvidia", "*", "lib")))
    return [p for p in dict.fromkeys(places) if any(glob.glob(os.path.join(p, w)) for w in wanted)]


def unpack(prefix):
    """The large libraries of a bundle, which travel packed."""
    for packed in glob.glob(os.path.join(prefix, "lib", "**", "*.xz"), recursive=True):
        path = packed[:-len(".xz")]
        with lzma.open(packed) as source, open(path + ".part", "wb") as target:
            shutil.copyfileobj(source, target)
        shutil.copymode(packed, path + ".part")
        os.replace(path + ".part", path)
        os.remove(packed)


def main():
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__)
    parser.add_argument("--prefix", required=True, help=argparse.SUPPRESS)  # folder of bin/ and lib/
    parser.add_argument("--data", required=True, help=argparse.SUPPRESS)  # of configs/ and tests/golden/
    parser.add_argument("--out", default="gpu_check", help="folder of the report (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=570, help="seconds for everything (%(default)s)")
    parser.add_argument("--only", help="only steps whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    parser.add_argument("--retry", action="store_true", help="do again what failed or was skipped")
    parser.add_argument("--dry-run", action="store_true", help="print the steps and what they lack here")
    args = parser.parse_args()

    unpack(args.prefix)
    folders = library_folders()
    # Those of a bundle are found by themselves, but for what libraries with a path of their own need.
    known = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = ":".join(
        ([known] if known else []) + folders + [os.path.join(os.path.abspath(args.prefix), "lib")])
    gpu = query_gpu()
    place = Place(os.path.abspath(args.prefix), os.path.abspath(args.data), os.path.abspath(args.out))
    steps = [s for s in make_steps(place, gpu) if not args.only or args.only in s.name]
    if args.dry_run:
        print(f"GPU: {gpu or 'none'}\nNVIDIA's libraries: {', '.join(folders) or 'as the loader finds them'}")
        if not os.path.exists(place.plugin("cudnn")):
            print(f"without cuDNN beside it: {place.plugin('cudnn')} is not built")
        dry_run(steps)
        return 0
    if args.fresh:
        shutil.rmtree(args.out, ignore_errors=True)
    os.makedirs(args.out, exist_ok=True)
    report = Report(os.path.join(args.out, "gpu_report.json"), gpu or "no GPU")
    code = run_steps(steps, report, args.budget, args.retry)
    table = make_table(report)
    with open(os.path.join(args.out, "gpu_report.md"), "w") as f:
        f.write(table)
    print(table, end="")
    return code


if __name__ == "__main__":
    sys.exit(main())

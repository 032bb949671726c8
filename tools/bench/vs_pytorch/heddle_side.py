"""The other side of vs_pytorch.sh: Heddle's binaries."""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile

BIN = "build/release/bin"


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n"
                         f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def peak_gflops(threads):
    return float(run(f"{BIN}/heddle_peak_cpu", str(threads)))


def overrides(model, batch, seq_len, threads):
    pairs = {f"model.{key}": value for key, value in model.items()}
    pairs |= {"model.sequence_len": seq_len, "train.device_batch_size": batch,
              "train.total_batch_size": batch * seq_len, "train.threads": threads}
    return [f"{key}={value}" for key, value in pairs.items()]


def train_steps(model, batch, seq_len, threads, steps):
    """Seconds of each step but the first, and the peak memory in GiB."""
    folder = tempfile.mkdtemp()
    try:
        run(f"{BIN}/heddle", "train", "configs/runs/d6_cpu.yaml",
            *overrides(model, batch, seq_len, threads), f"train.num_iterations={steps + 1}",
            "train.eval_every=0", "train.eval_tokens=0", "train.sample_tokens=0",
            "checkpoint.at_end=false", f"log.dir={folder}", "log.name=run")
        lines = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    finally:
        shutil.rmtree(folder)
    seconds = [line["train/dt"] for line in lines if "train/dt" in line][1:]
    return seconds, max(line.get("memory/peak_rss_gib", 0.0) for line in lines)


def products_seconds(model, batch, seq_len, threads):
    """Seconds that the matrix products of such a step take alone."""
    return json.loads(run(f"{BIN}/heddle_step_parts_cpu", "configs/runs/d6_cpu.yaml", "3",
                          *overrides(model, batch, seq_len, threads)))["seconds"]


def attention(shape, threads, reps):
    """Seconds of each forward and each backward call."""
    b, t, h, k, d, w = shape
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/shapes.json", "w") as file:
            json.dump([{"batch": b, "seq_len": t, "n_head": h, "n_kv_head": k, "head_dim": d,
                        "window_left": w}], file)
        run(f"{BIN}/heddle", "plugin", "bench", "--shapes", f"{folder}/shapes.json", "--plugins",
            "cpu_sdpa", "--ops", "forward,backward", "--reps", str(reps), "--threads",
            str(threads), "--json", f"{folder}/bench.json")
        rows = json.load(open(f"{folder}/bench.json"))["rows"]
    return {row["op"]: [us * 1e-6 for us in row["us"]] for row in rows}


def tokenize(text, folder):
    run(f"{BIN}/heddle", "tokenize", text, "--out", folder)


def shard_vocabulary(folder):
    with open(next(pathlib.Path(folder).glob("*_train_*.bin")), "rb") as file:
        return struct.unpack("<4i", file.read(16))[3]


class TextRun:
    """configs/runs/kjv_cpu.yaml on token shards, in slices: stopped by a signal, then resumed."""

    def __init__(self, folder, data, threads, steps, seed):
        self.folder = f"{folder}/run"
        self.command = [
            f"{BIN}/heddle", "train", "configs/runs/kjv_cpu.yaml", f"data.path={data}",
            f"train.threads={threads}", f"train.num_iterations={steps}", f"train.seed={seed}",
            f"data.seed={seed}", "train.eval_every=0", "train.sample_every=0",
            "train.sample_tokens=0", f"log.dir={folder}", "log.name=run", "train.resume=auto"]

    def lines(self):
        with open(f"{self.folder}/metrics.jsonl") as file:
            return [json.loads(line) for line in file]

    def slice(self, seconds):
        """Runs at most so long. Returns (seconds of all steps so far, steps so far, finished)."""
        process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True)
        try:
            output = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            output = process.communicate()[0]
        lines = self.lines()
        if process.returncode not in (0, 128 + signal.SIGTERM):
            raise SystemExit(f"heddle train ended with {process.returncode}:\n{output[-2000:]}")
        last = [line for line in lines if "total_training_time" in line][-1]
        return last["total_training_time"], last["step"], any("val/bpb" in x for x in lines)

    def step_seconds(self):
        return [line["train/dt"] for line in self.lines() if "train/dt" in line]

    def bits_per_byte(self):
        return [line["val/bpb"] for line in self.lines() if "val/bpb" in line][-1]


def decode(batch, context, tokens):
    line = run(f"{BIN}/heddle_decode_cpu", "configs/runs/d6_cpu.yaml", str(context), str(tokens),
               str(batch))
    return json.loads(line)["tokens_per_second"]

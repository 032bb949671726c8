"""Jobs of several ranks for tests: starting them, watching them end, looking at what they left."""
import json
import os
import re
import signal
import subprocess
import threading
import time
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
MARK = "HEDDLE_LAB_JOB"
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_WAIT_POLICY": "passive",
}
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]


class Job:
    """A launcher with everything below it. Processes are found by a mark in their environment."""

    def __init__(self, argv, notes, env=None, marks=None):
        self.mark = uuid.uuid4().hex
        self.notes = notes
        self.seen = {}  # text -> time of the first line that has it
        self.lines = []
        self.watched = marks or ["HEDDLE_FAULT strikes"]
        full = {**os.environ, **ENVIRONMENT, **(env or {}), MARK: self.mark}
        self.started = time.time()
        self.process = subprocess.Popen(argv, env=full, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                        start_new_session=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            self.lines.append(line)
            for text in self.watched:
                if text in line:
                    self.seen.setdefault(text, time.time())

    def output(self):
        return "\n".join(self.lines)

    def processes(self, name=None):
        """Pids of this job that still run; name: only those of this program."""
        found = []
        wanted = f"{MARK}={self.mark}".encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as f:
                    if wanted not in f.read().split(b"\0"):
                        continue
                with open(f"/proc/{entry}/stat") as f:
                    stat = f.read()
                if stat[stat.rindex(")") + 2] in "ZX":
                    continue
                if name and stat[stat.index("(") + 1:stat.rindex(")")] != name:
                    continue
                found.append(int(entry))
            except (OSError, ValueError):
                continue
        return found

    def wait_ranks(self, deadline):
        """Waits until no heddle process is left; the time when that was, None: some are."""
        while time.time() < deadline:
            if self.process.poll() is not None and not self.processes("heddle"):
                return time.time()
            if not self.processes("heddle") and self.all_noted():
                return time.time()
            time.sleep(0.05)
        return None

    def all_noted(self):
        return bool(self.rank_ends()) and not self.processes("rank.sh")

    def wait_launcher(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self.reader.join(2)
        code = self.process.returncode
        return 128 - code if code < 0 else code

    def end(self):
        """Ends what is left; the number of processes that were."""
        left = self.processes()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        return len(left)

    def rank_ends(self):
        """rank -> (exit code, time) of ranks that ended under rank.sh."""
        ends = {}
        for name in os.listdir(self.notes):
            match = re.fullmatch(r"rank-(\d+)", name)
            if match:
                with open(os.path.join(self.notes, name)) as f:
                    words = f.read().split()
                if len(words) == 2:  # not only just being written
                    ends[int(match.group(1))] = (int(words[0]), float(words[1]))
        return ends


def metrics_steps(run_folder):
    """Steps that the run has written metrics of."""
    try:
        with open(os.path.join(run_folder, "metrics.jsonl")) as f:
            return sum('"train/loss"' in line for line in f)
    except OSError:
        return 0


def wait_for_step(run_folder, step, deadline):
    while metrics_steps(run_folder) < step and time.time() < deadline:
        time.sleep(0.05)
    return metrics_steps(run_folder) >= step


def checkpoints(run_folder):
    try:
        names = os.listdir(os.path.join(run_folder, "checkpoints"))
    except OSError:
        return []
    return sorted(int(n[5:]) for n in names if re.fullmatch(r"step-\d+", n))


def resumes(heddle, yaml, log_dir, name):
    """Goes on from the newest checkpoint with one process, two steps: '' or what went wrong."""
    steps = checkpoints(os.path.join(log_dir, name))
    if not steps:
        return "no checkpoint"
    argv = [heddle, "train", yaml, f"log.dir={log_dir}", f"log.name={name}", "train.resume=auto",
            f"train.num_iterations={steps[-1] + 2}", "checkpoint.every=0"]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LD_PRELOAD", "HEDDLE_FAULT"))}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        return f"code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
    said = f"step-{steps[-1]:06d} at step {steps[-1]}" in done.stdout + done.stderr
    return "" if said else "did not resume"


def summary_of(run_folder):
    try:
        with open(os.path.join(run_folder, "failure.json")) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def records_of(run_folder):
    """rank -> failure record"""
    found = {}
    try:
        names = os.listdir(run_folder)
    except OSError:
        return found
    for name in names:
        match = re.fullmatch(r"failure-rank-(\d+)\.json", name)
        if match:
            with open(os.path.join(run_folder, name)) as f:
                found[int(match.group(1))] = json.load(f)
    return found


def print_table(head, rows):
    widths = [max(len(str(row[i])) for row in [head] + rows) for i in range(len(head))]
    for row in [head, ["-" * w for w in widths]] + rows:
        print(" | ".join(str(cell).ljust(w) for cell, w in zip(row, widths)).rstrip(), flush=True)

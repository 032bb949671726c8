"""Runs the fault table: faults.py [--build DIR] [--backend mpi|gloo] [--quick] [row...]."""
import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import hosts
import jobs
from fault_rows import ANY, RANKS, ROWS, STEP, TIMEOUT

YAML = os.path.join(jobs.HERE, "faults.yaml")
RANK = os.path.join(jobs.HERE, "rank.sh")
PATIENCE = 10  # seconds on top of dist.timeout_s


class Lab:
    def __init__(self, build, folder):
        self.build = build
        self.heddle = os.path.join(build, "bin", "heddle")
        self.folder = folder
        self.two_hosts = None
        self.pace = "step:*:*:slow=30"

    def hosts(self):
        if self.two_hosts is None:
            self.two_hosts = hosts.TwoHosts(os.path.join(self.folder, "hosts"))
        self.two_hosts.set_link(True)
        time.sleep(0.5)
        return self.two_hosts

    def other_version(self):
        """This heddle with another version number in it."""
        version = subprocess.run([self.heddle, "--version"], capture_output=True, text=True,
                                 check=True).stdout.split()[-1].encode()
        other = version[:-1] + (b"8" if version[-1:] != b"8" else b"7")
        path = os.path.join(self.folder, "bin", "heddle")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(self.heddle, "rb") as f:
            data = f.read()
        with open(path, "wb") as f:
            f.write(data.replace(version + b"\0", other + b"\0"))
        os.chmod(path, 0o755)
        lib = os.path.join(self.folder, "lib")
        if not os.path.exists(lib):
            os.symlink(os.path.join(self.build, "lib"), lib)
        return path

    def other_plugins(self):
        """The built-in plugin as somebody else has built it: other bytes, same behaviour."""
        folder = os.path.join(self.folder, "plugins")
        os.makedirs(folder, exist_ok=True)
        source = os.path.join(self.build, "lib", "heddle", "plugins")
        for name in os.listdir(source):
            if name.endswith(".so"):
                shutil.copy(os.path.join(source, name), folder)
                with open(os.path.join(folder, name), "ab") as f:
                    f.write(b"another build")
        return folder


def environment(lab, row, run_folder):
    env = {"HEDDLE_FAULT": ",".join(filter(None, [lab.pace, row.fault])),
           "XDG_CACHE_HOME": os.path.join(lab.folder, "cache")}
    if row.odd:
        env.update(row.odd, LAB_ODD_RANK="1")
        if "LAB_ODD_HEDDLE" in env:
            env["LAB_ODD_HEDDLE"] = lab.other_version()
        if "LAB_ODD_PLUGINS" in env:
            env["LAB_ODD_PLUGINS"] = lab.other_plugins()
    if row.shim:
        env.update(row.shim, HEDDLE_SHIM_PREFIX=os.path.join(run_folder, "checkpoints"),
                   LD_PRELOAD=os.path.join(lab.build, "tests", "libfail_shim.so"))
    return env


def one_checkpoint(lab):
    """Bytes of a checkpoint of this model."""
    if not hasattr(lab, "checkpoint_bytes"):
        subprocess.run([lab.heddle, "train", YAML, f"log.dir={lab.folder}", "log.name=size",
                        "train.num_iterations=6"], capture_output=True, check=True)
        saved = os.path.join(lab.folder, "size", "checkpoints", "step-000005")
        lab.checkpoint_bytes = sum(os.path.getsize(os.path.join(saved, n))
                                   for n in os.listdir(saved))
    return lab.checkpoint_bytes


def heddle_args(row, backend, folder):
    return ["train", YAML, f"log.dir={folder}", "log.name=run", f"dist.backend={backend}",
            f"train.num_iterations={row.steps}"]


def start(lab, row, backend, folder, env):
    """The job on one host: mpirun, or heddle launch for gloo."""
    notes = folder + ".notes"
    os.makedirs(notes)
    args = heddle_args(row, backend, folder)
    # A wrapper is a parent that survives the launcher: not where that is what is tested.
    rank = [lab.heddle] if row.act == "kill_launcher" else [RANK, notes, lab.heddle]
    if backend == "mpi":
        argv = jobs.MPIRUN + ["-n", str(RANKS)] + rank + args
    else:
        argv = [lab.heddle, "launch", "-n", str(RANKS), "--"] + rank + args
    return jobs.Job(argv, notes, env)


class Pair:
    """A job on two hosts whose ranks somebody has started by hand, one on each."""

    def __init__(self, lab, row, folder, env):
        self.notes = folder + ".notes"
        os.makedirs(self.notes)
        two = lab.hosts()
        self.parts = []
        for rank, host in enumerate(hosts.HOSTS):
            plain = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                     "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29555"}
            argv = two.on(host, [RANK, self.notes, lab.heddle] +
                          heddle_args(row, "gloo", os.path.join(folder, "h2a")), plain)
            self.parts.append(jobs.Job(argv, self.notes, env))
        self.started = time.time()

    def output(self):
        return "\n".join(part.output() for part in self.parts)

    def wait_ranks(self, deadline):
        times = [part.wait_ranks(deadline) for part in self.parts]
        return None if None in times else max(times)

    def wait_launcher(self, seconds):
        codes = [part.wait_launcher(seconds) for part in self.parts]
        return codes[0] if len(set(codes)) == 1 else codes

    def rank_ends(self):
        return self.parts[0].rank_ends()

    def end(self):
        return sum(part.end() for part in self.parts)


def start_on_two_hosts(lab, row, backend, folder, env):
    if backend == "gloo":
        return Pair(lab, row, folder, env)
    two = lab.hosts()
    notes = folder + ".notes"
    os.makedirs(notes)
    names = ["HEDDLE_FAULT", "XDG_CACHE_HOME", jobs.MARK]
    forward = [part for name in names for part in ("-x", name)]
    argv = two.mpirun(2, forward + [RANK, notes, lab.heddle] +
                      heddle_args(row, backend, os.path.join(folder, "h2a")))
    return jobs.Job(argv, notes, env)


def strike(lab, row, job, run_folder):
    """Waits for the fault, or is it; the time when it happened."""
    deadline = time.time() + 60
    if row.act:
        if not jobs.wait_for_step(run_folder, STEP, deadline):
            return None
        if row.act == "kill_launcher":
            # The launcher of the job alone: its children must notice.
            os.kill(job.process.pid, signal.SIGKILL)
        else:
            lab.two_hosts.set_link(False)
            if row.act == "link_blink":
                time.sleep(2)
                lab.two_hosts.set_link(True)
        return time.time()
    if not row.fault:
        return job.started
    while "HEDDLE_FAULT strikes" not in job.seen and time.time() < deadline:
        if job.process.poll() is not None:
            break
        time.sleep(0.02)
    return job.seen.get("HEDDLE_FAULT strikes")


def judge_summary(row, folder, problems):
    """What the summary names, in short."""
    if row.outcome != "6":
        return "-"
    summary = jobs.summary_of(folder)
    if summary is None:
        problems.append("no failure.json")
        return "nothing"
    first = summary["first_failure"]
    if row.first is not ANY and first["rank"] != row.first:
        problems.append(f"named rank {first['rank']}: {first['why']}")
    if row.fault and abs(first["step"] - int(row.fault.split(":")[2])) > 1:
        problems.append(f"named step {first['step']}")
    if not summary["last_checkpoint"]:
        problems.append("the summary names no checkpoint")
    if first["rank"] < 0:
        return first["why"]
    return f"rank {first['rank']} step {first['step']} on {first['host']}"


def judge_codes(row, job, records, problems):
    ends = {rank: code for rank, (code, _) in job.rank_ends().items()}
    if row.act == "kill_launcher":
        ends = {rank: record["exit_code"] for rank, record in records.items()}
    for rank, want in row.ranks.items():
        if ends.get(rank) not in want:
            problems.append(f"rank {rank} ended with {ends.get(rank)}, expected {want}")
    return " ".join(str(ends.get(rank, "?")) for rank in row.ranks)


def run_row(lab, row, backend):
    folder = os.path.join(lab.folder, f"{row.name}-{backend}")
    os.makedirs(folder)
    main = os.path.join(folder, "h2a") if row.hosts else folder
    if row.disk:
        kib = int(row.disk * one_checkpoint(lab) / 1024)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", folder], check=True)
    run_folder = os.path.join(main, "run")
    env = environment(lab, row, run_folder)
    problems = []
    job = (start_on_two_hosts if row.hosts else start)(lab, row, backend, folder, env)
    try:
        struck = strike(lab, row, job, run_folder)
        if struck is None:
            problems.append("the fault did not strike")
            struck = job.started
        goes_on = row.outcome == "goes on"
        limit = 120 if goes_on or row.outcome == "refused" else TIMEOUT + PATIENCE + row.grace
        ended = job.wait_ranks(struck + limit + 5)
        if ended is None:
            problems.append("ranks still run")
        seconds = (ended or time.time()) - struck
        if seconds > limit:
            problems.append(f"took {seconds:.1f} s")
        # With the network gone mpirun waits for its daemon on the other host; nothing of ours does.
        away = row.act == "link_down"
        launcher = job.wait_launcher(3 if away and backend == "mpi" else 10)
        want = row.launcher[backend]
        if want is not ANY and launcher not in want:
            problems.append(f"launcher's code {launcher}, expected {want}")
        codes = judge_codes(row, job, jobs.records_of(run_folder), problems)
    finally:
        left = job.end()
    if left and not (row.act == "link_down" and backend == "mpi"):
        problems.append(f"{left} processes left behind")
    if row.says and row.says not in job.output():
        problems.append(f"did not say '{row.says}'")
    if row.outcome == "refused" and os.path.exists(run_folder):
        problems.append("a run folder was made")
    named = judge_summary(row, run_folder, problems)
    loadable = "-"
    if row.checkpoint:
        saved = jobs.checkpoints(run_folder)
        wrong = jobs.resumes(lab.heddle, YAML, main, "run")
        loadable = wrong or f"step {saved[-1]}"
        if wrong:
            problems.append(f"resume: {wrong}")
    if row.disk:
        subprocess.run(["umount", "-l", folder], check=False)
    if problems:
        print(f"--- {row.name} {backend}: {'; '.join(problems)}\n{job.output()}\n---", flush=True)
    launched = {"mpi": "mpirun", "gloo": "by hand" if row.hosts else "heddle launch"}[backend]
    return [row.does, backend, row.outcome, codes, f"{launched} {launcher}", f"{seconds:.1f}", named,
            loadable, "; ".join(problems) or "ok"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=os.path.join(jobs.ROOT, "build", "release"))
    parser.add_argument("--backend", choices=["mpi", "gloo"])
    parser.add_argument("--quick", action="store_true", help="the rows that ctest runs")
    parser.add_argument("rows", nargs="*")
    options = parser.parse_args()
    unknown = set(options.rows) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    why_not = hosts.available()
    table, skipped = [], []
    head = ["fault", "backend", "expected", "rank codes", "launcher", "seconds", "summary names",
            "resumed from", "result"]
    with tempfile.TemporaryDirectory(prefix="heddle-faults-") as folder:
        lab = Lab(os.path.abspath(options.build), folder)
        for row in ROWS:
            if (options.rows and row.name not in options.rows) or (options.quick and not row.quick):
                continue
            for backend in [options.backend] if options.backend else ["mpi", "gloo"]:
                if (row.hosts or row.disk) and why_not:
                    skipped.append(f"{row.does} ({backend}): {why_not}")
                    continue
                table.append(run_row(lab, row, backend))
                if not options.quick:
                    print(f"{row.name} {backend}: {table[-1][-1]}", flush=True)
    jobs.print_table(head, table)
    for line in skipped:
        print("skipped: " + line)
    failed = [line for line in table if line[-1] != "ok"]
    print(f"{len(table) - len(failed)} of {len(table)} rows as stated, {len(skipped)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

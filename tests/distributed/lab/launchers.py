"""Real launchers: launchers.py [--build DIR] [row...]. One run of two ranks, started in every way
that there is; all must come to the same losses, to the bit, or be refused in words."""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import hosts
import jobs
import slurm
import wire

YAML = os.path.join(jobs.HERE, "faults.yaml")
STEPS = 12


class Skip(Exception):
    """This row cannot be run here; says why."""


class Lab:
    def __init__(self, build, folder):
        self.build = build
        self.heddle = os.path.join(build, "bin", "heddle")
        self.folder = folder
        self.reference = None  # losses by step of the first row that ran

    def args(self, name, *more):
        return ["train", YAML, f"log.dir={self.folder}", f"log.name={name}",
                f"train.num_iterations={STEPS}", "dist.timeout_s=20", *more]

    def run_folder(self, name):
        return os.path.join(self.folder, name)


def need(program, package):
    if shutil.which(program) is None:
        raise Skip(f"no {program} here (Debian: {package})")


def need_hosts():
    why_not = hosts.available()
    if why_not:
        raise Skip(why_not)


def execute(argv, env=None, timeout=90, cwd=None):
    """Exit code and output; 124 and what there was after the timeout."""
    job = jobs.Job(argv, tempfile.mkdtemp(), env) if cwd is None else None
    if job is None:
        done = subprocess.run(argv, env={**os.environ, **(env or {})}, cwd=cwd, timeout=timeout,
                              capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr
    code = job.wait_launcher(timeout)
    left = job.end()
    shutil.rmtree(job.notes, ignore_errors=True)
    text = job.output()
    if code is None:
        return 124, text
    return code, text + (f"\n{left} processes left behind" if left and code == 0 else "")


def losses(folder):
    found = {}
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        for line in f:
            value = json.loads(line)
            if "train/loss" in value:
                found[value["step"]] = (value["train/loss"], value.get("run/ranks"))
    return found


def expect_run(lab, name, code, output, steps=STEPS):
    """'' when the run came to its end with two ranks and the losses of all others."""
    folder = lab.run_folder(name)
    if code != 0:
        return f"code {code}"
    try:
        got = losses(folder)
    except OSError as e:
        return str(e)
    if sorted(got) != list(range(1, steps + 1)):
        return f"steps {sorted(got)[:3]}...{sorted(got)[-1:]}"
    if any(ranks not in (None, 2) for _, ranks in got.values()):
        return "not a run of two ranks"
    if steps == STEPS:  # of another length, the schedule is another too
        values = {step: loss for step, (loss, _) in got.items()}
        if lab.reference is None:
            lab.reference = values
        if values != lab.reference:
            return "other losses than under the first launcher"
    if "processes left behind" in output:
        return output.rsplit("\n", 1)[-1]
    return ""


def expect_refusal(lab, name, code, output, words):
    if code == 0:
        return "was not refused"
    if os.path.exists(lab.run_folder(name)):
        return "wrote a run folder"
    missing = [word for word in words if word not in output]
    return f"did not say {missing}" if missing else ""


# Each row: what it is, what must come of it -> problem text ('' is good) and output.

def open_mpi(lab):
    need("mpirun", "openmpi-bin")
    script = os.path.join(jobs.ROOT, "launch", "mpirun.sh")
    code, out = execute([script, "2", *lab.args("openmpi")], {"HEDDLE": lab.heddle})
    return expect_run(lab, "openmpi", code, out), out


def heddle_launch(lab):
    code, out = execute([lab.heddle, "launch", "-n", "2", "--", *lab.args("launch")])
    return expect_run(lab, "launch", code, out), out


def hydra_mpi(lab):
    need("mpiexec.hydra", "mpich")
    code, out = execute(["mpiexec.hydra", "-n", "2", lab.heddle, *lab.args("hydra-mpi")])
    return expect_refusal(lab, "hydra-mpi", code, out, ["disagree", "PMI_SIZE"]), out


def hydra_gloo(lab):
    need("mpiexec.hydra", "mpich")
    code, out = execute(["mpiexec.hydra", "-n", "2", lab.heddle,
                         *lab.args("hydra-gloo", "dist.backend=gloo",
                                   "dist.master_addr=127.0.0.1", "dist.master_port=29641")])
    return expect_run(lab, "hydra-gloo", code, out), out


def torchrun(lab):
    need("torchrun", "python3-torch")
    script = os.path.join(jobs.ROOT, "launch", "torchrun.sh")
    code, out = execute([script, "2", *lab.args("torchrun")],
                        {"HEDDLE": lab.heddle, "MASTER_PORT": "29651"})
    return expect_run(lab, "torchrun", code, out), out


def torchrun_standalone(lab):
    need("torchrun", "python3-torch")
    with tempfile.TemporaryDirectory() as logs:
        code, out = execute(["torchrun", "--no_python", "-r", "1", "-t", "1", "--log_dir", logs,
                             "--standalone", "--nnodes=1", "--nproc_per_node=2", lab.heddle,
                             *lab.args("standalone")])
    return expect_run(lab, "standalone", code, out), out


def torchrun_killed(lab):
    """SIGKILL of the agent alone: its ranks must not train on."""
    need("torchrun", "python3-torch")
    logs = tempfile.mkdtemp(dir=lab.folder)
    job = jobs.Job(["torchrun", "--no_python", "-r", "1", "-t", "1", "--log_dir", logs, "--nnodes=1",
                    "--nproc_per_node=2", "--master_port=29659", lab.heddle,
                    *lab.args("killed", "train.num_iterations=100000", "checkpoint.every=5")],
                   tempfile.mkdtemp(dir=lab.folder), {"HEDDLE_FAULT": "step:*:*:slow=30"})
    try:
        if not jobs.wait_for_step(lab.run_folder("killed"), 8, time.time() + 60):
            return "did not start", job.output()
        os.kill(job.process.pid, signal.SIGKILL)
        deadline = time.time() + 10
        while job.processes("heddle") and time.time() < deadline:
            time.sleep(0.1)
        left = len(job.processes("heddle"))
    finally:
        job.end()
    if left:
        return f"{left} ranks trained on", job.output()
    summary = jobs.summary_of(lab.run_folder("killed"))
    if summary is None or "the launcher (torchrun" not in summary["summary"]:
        return "no summary that names the launcher", job.output()
    return "", job.output()


def torchrun_mpi(lab):
    need("torchrun", "python3-torch")
    script = os.path.join(jobs.ROOT, "launch", "torchrun.sh")
    code, out = execute([script, "2", *lab.args("torchrun-mpi", "dist.backend=mpi")],
                        {"HEDDLE": lab.heddle, "MASTER_PORT": "29655"})
    return expect_refusal(lab, "torchrun-mpi", code, out, ["torchrun", "mpi"]), out


def mpi_on_two_hosts(lab, name, **lan):
    need_hosts()
    two = hosts.TwoHosts(os.path.join(lab.folder, name + "-hosts"), **lan)
    code, out = execute(two.mpirun(2, [lab.heddle, *lab.args(name)]))
    return expect_run(lab, name, code, out), out


def torchrun_on_two_hosts(lab, name, address="h2a", **lan):
    need("torchrun", "python3-torch")
    need_hosts()
    two = hosts.TwoHosts(os.path.join(lab.folder, name + "-hosts"), **lan)
    script = os.path.join(jobs.ROOT, "launch", "torchrun.sh")
    started = []
    for rank, host in enumerate(hosts.HOSTS):
        env = {"NNODES": "2", "NODE_RANK": str(rank), "MASTER_ADDR": address, "HEDDLE": lab.heddle,
               "MASTER_PORT": "29500"}
        started.append(jobs.Job(two.on(host, [script, "1", *lab.args(name)], env),
                                tempfile.mkdtemp()))
    codes = [job.wait_launcher(300) for job in started]  # agents wait for each other first
    left = sum(job.end() for job in started)
    out = "\n".join(job.output() for job in started)
    problem = expect_run(lab, name, codes[0] if codes[0] == codes[1] else codes, out)
    return problem or (f"{left} processes left behind" if left else ""), out


def names_that_do_not_resolve(lab):
    """Plain environment on two hosts, rank 0 under a name that nobody knows."""
    need_hosts()
    two = hosts.TwoHosts(os.path.join(lab.folder, "names-hosts"), names=False)
    started = []
    for rank, host in enumerate(hosts.HOSTS):
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
               "MASTER_ADDR": "h2a", "MASTER_PORT": "29500"}
        started.append(jobs.Job(two.on(host, [lab.heddle, *lab.args("names")], env),
                                tempfile.mkdtemp()))
    codes = [job.wait_launcher(60) for job in started]
    for job in started:
        job.end()
    out = "\n".join(job.output() for job in started)
    if codes != [6, 6]:
        return f"codes {codes}, expected 6 on both hosts", out
    return expect_refusal(lab, "names", 6, out, ["h2a", "resolve", "MASTER_ADDR"]), out


def bytes_on_the_wire(lab):
    need_hosts()
    return wire.compare(lab)


def srun(lab, name, mpi, *more):
    with slurm.Cluster(os.path.join(lab.folder, "slurm-" + name)) as cluster:
        code, out = cluster.run(["srun", "-n", "2", f"--mpi={mpi}", "--overcommit", lab.heddle,
                                 *lab.args(name, *more)], 90)
    return expect_run(lab, name, code, out), out


def sbatch(lab):
    """The time limit comes before the run's end: saved, back in the queue, finished."""
    steps = 900
    with slurm.Cluster(os.path.join(lab.folder, "slurm-batch")) as cluster:
        log = os.path.join(lab.folder, "batch.log")
        env = {"HEDDLE": lab.heddle, "RUN_DIR": lab.folder, "RUN_NAME": "sbatch", "MPI": "pmix",
               "HEDDLE_FAULT": "step:*:*:slow=100"}
        code, out = cluster.run(
            ["sbatch", "--ntasks=2", "--overcommit", "--time=2", "--signal=TERM@60",
             f"--output={log}", os.path.join(jobs.ROOT, "launch", "slurm.sbatch"), YAML,
             f"train.num_iterations={steps}", "dist.timeout_s=20", "train.threads=1"], 30, env)
        if code != 0:
            return f"sbatch: code {code}", out
        deadline = time.time() + 900
        finished = os.path.join(lab.run_folder("sbatch"), "finished.json")
        while time.time() < deadline and not os.path.exists(finished):
            time.sleep(1)
        time.sleep(3)
        with open(log) as f:
            out = f.read()
    if not os.path.exists(finished):
        return "not finished", out
    for words in ["stopped by signal", "back into the queue", "start 2", "resumed",
                  "the run is finished"]:
        if words not in out:
            return f"the job's log does not say '{words}'", out
    return expect_run(lab, "sbatch", 0, out, steps), out


ROWS = {
    "openmpi": ("Open MPI: launch/mpirun.sh", "runs", open_mpi),
    "launch": ("heddle launch", "runs", heddle_launch),
    "torchrun": ("torchrun, agent's store: launch/torchrun.sh", "runs", torchrun),
    "standalone": ("torchrun --standalone", "runs", torchrun_standalone),
    "torchrun-killed": ("torchrun, its agent killed", "ends", torchrun_killed),
    "torchrun-mpi": ("torchrun with dist.backend mpi", "refused", torchrun_mpi),
    "hydra-mpi": ("MPICH's Hydra, heddle with Open MPI", "refused", hydra_mpi),
    "hydra-gloo": ("MPICH's Hydra, dist.backend gloo", "runs", hydra_gloo),
    "mpirun-hosts": ("two hosts, mpirun --hostfile", "runs",
                     lambda lab: mpi_on_two_hosts(lab, "mpirun-hosts")),
    "torchrun-hosts": ("two hosts, torchrun with two agents", "runs",
                       lambda lab: torchrun_on_two_hosts(lab, "torchrun-hosts")),
    "mpirun-docker0": ("two hosts with the same docker0, mpirun", "runs",
                       lambda lab: mpi_on_two_hosts(lab, "mpirun-docker0", docker0=True)),
    "torchrun-docker0": ("two hosts with the same docker0, torchrun", "runs",
                         lambda lab: torchrun_on_two_hosts(lab, "torchrun-docker0", docker0=True)),
    "mpirun-addresses": ("two hosts without names, mpirun by address", "runs",
                         lambda lab: mpi_on_two_hosts(lab, "mpirun-addresses", names=False)),
    "torchrun-addresses": ("two hosts without names, torchrun by address", "runs",
                           lambda lab: torchrun_on_two_hosts(lab, "torchrun-addresses",
                                                             "10.77.0.1", names=False)),
    "names": ("two hosts, MASTER_ADDR that does not resolve", "refused", names_that_do_not_resolve),
    "wire": ("two hosts, the interface's bytes beside our own", "within 3 %", bytes_on_the_wire),
    "srun-pmix": ("Slurm: srun --mpi=pmix", "runs", lambda lab: srun(lab, "srun-pmix", "pmix")),
    "srun-gloo": ("Slurm: srun --mpi=none, gloo", "runs",
                  lambda lab: srun(lab, "srun-gloo", "none", "dist.backend=gloo")),
    "sbatch": ("Slurm: sbatch launch/slurm.sbatch over its time limit", "resumes", sbatch),
}


def main():
    # Rows that mount or make namespaces run in a process of their own.
    if len(sys.argv) > 1 and sys.argv[1] == "--one":
        _, _, build, folder, name, reference = sys.argv
        lab = Lab(build, folder)
        lab.reference = {int(k): v for k, v in json.loads(reference).items()} or None
        try:
            problem, output = ROWS[name][2](lab)
            result = {"problem": problem, "output": output}
        except (Skip, slurm.NotHere) as e:
            result = {"skip": str(e)}
        result["reference"] = lab.reference
        with open(os.path.join(folder, name + ".result"), "w") as f:
            json.dump(result, f)
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=os.path.join(jobs.ROOT, "build", "release"))
    parser.add_argument("rows", nargs="*")
    options = parser.parse_args()
    unknown = set(options.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    table, reference = [], {}
    apart = ["unshare", "-m"] if hosts.available() == "" else []
    with tempfile.TemporaryDirectory(prefix="heddle-launchers-") as folder:
        for name, (title, outcome, _) in ROWS.items():
            if options.rows and name not in options.rows:
                continue
            started = time.time()
            done = subprocess.run(apart + [sys.executable, os.path.abspath(__file__), "--one",
                                           os.path.abspath(options.build), folder, name,
                                           json.dumps(reference)])
            seconds = f"{time.time() - started:.1f}"
            if done.returncode != 0:
                table.append([title, outcome, seconds, "the row's program failed"])
                continue
            with open(os.path.join(folder, name + ".result")) as f:
                result = json.load(f)
            reference = result["reference"] or reference
            verdict = f"skipped: {result['skip']}" if "skip" in result else \
                result["problem"] or "ok"
            if result.get("problem"):
                print(f"--- {name}: {result['problem']}\n{result['output']}\n---", flush=True)
            print(f"{name}: {verdict}", flush=True)
            table.append([title, outcome, seconds, verdict])
    jobs.print_table(["started by", "expected", "seconds", "result"], table)
    bad = [row for row in table if row[-1] != "ok" and not row[-1].startswith("skipped")]
    skipped = [row for row in table if row[-1].startswith("skipped")]
    print(f"{len(table) - len(bad) - len(skipped)} of {len(table)} as expected, "
          f"{len(skipped)} skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

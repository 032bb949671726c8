"""What a step puts on the wire: the interface's counter between two hosts beside Heddle's own.

Runs of two lengths are subtracted, so that connecting, saving and the end cancel. What is left beside
Heddle's count is TCP's headers and acknowledgements, of which no two runs have the same number, and
the store's heartbeats.
"""
import json
import os
import tempfile

import hosts
import jobs

SHORT, LONG = 10, 40
MODEL = ["model.n_embd=128", "model.n_layer=4"]  # buckets that dwarf headers and heartbeats
LEVELS = ["none", "optimizer", "gradients"]
APART = 0.03  # of the counted bytes, at most


def sent(host):
    """Bytes that this host's end of the pair has sent."""
    shown = hosts.ip("-n", host, "-s", "-j", "link", "show", "veth0")
    return json.loads(shown)[0]["stats64"]["tx"]["bytes"]


def counted(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        return [line["train/comm_bytes"] for line in map(json.loads, f)
                if "train/comm_bytes" in line]


def run(lab, two, backend, level, steps):
    """Bytes that rank 0's host has sent, and rank 0's own count of each step."""
    name = f"wire-{backend}-{level}-{steps}"
    args = [lab.heddle, *lab.args(name, *MODEL, f"dist.shard={level}", f"dist.backend={backend}",
                                  f"train.num_iterations={steps}")]
    before = sent("h2a")
    if backend == "mpi":
        started = [jobs.Job(two.mpirun(2, args), tempfile.mkdtemp(dir=lab.folder))]
    else:
        started = [jobs.Job(two.on(host, args, {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "h2a", "MASTER_PORT": "29500"}), tempfile.mkdtemp(dir=lab.folder))
            for rank, host in enumerate(hosts.HOSTS)]
    codes = [job.wait_launcher(90) for job in started]
    for job in started:
        job.end()
    if any(codes):
        raise RuntimeError(f"{name}: codes {codes}\n" + "\n".join(j.output() for j in started))
    return sent("h2a") - before, counted(lab.run_folder(name))


def compare(lab):
    two = hosts.TwoHosts(os.path.join(lab.folder, "wire-hosts"))
    table, problems = [], []
    for backend in ["mpi", "gloo"]:
        for level in LEVELS:
            try:
                short, _ = run(lab, two, backend, level, SHORT)
                long, own = run(lab, two, backend, level, LONG)
            except RuntimeError as e:
                return f"{backend} {level} did not run", str(e)
            interface, mine = (long - short) / (LONG - SHORT), own[-1]
            ratio = interface / mine
            table.append([backend, level, f"{mine:.0f}", f"{interface:.0f}", f"{ratio:.4f}"])
            if len(set(own)) != 1 or abs(ratio - 1) > APART:
                problems.append(f"{backend} {level}: {ratio:.4f} of the counted bytes")
    jobs.print_table(["backend", "shard", "counted, bytes a step", "interface", "ratio"], table)
    return "; ".join(problems), ""

"""The rows of the fault table: what is done to a job, and what must come of it. Stated here, before
anything runs; faults.py runs them and compares."""
from dataclasses import dataclass, field

RANKS = 3
TIMEOUT = 5  # dist.timeout_s of lab/faults.yaml
STEP = 13    # where faults strike; checkpoints are saved every 5 steps
ANY = None   # a code that is not ours to promise

# Codes that bash gives a process that a signal ended.
KILLED, SEGV = 137, 139


@dataclass
class Row:
    name: str
    does: str                 # for people
    outcome: str              # "6", "refused", "goes on", "7"
    fault: str = ""           # HEDDLE_FAULT
    ranks: dict = field(default_factory=dict)     # rank -> exit code, or several
    launcher: dict = field(default_factory=dict)  # backend -> exit codes
    first: int = ANY          # rank that the summary names; -1: the launcher
    says: str = ""            # part of what the job prints
    quick: bool = False       # one of the rows of ctest
    hosts: bool = False       # on two hosts
    odd: dict = field(default_factory=dict)  # how rank 1 differs
    steps: int = 100000       # train.num_iterations
    act: str = ""             # what faults.py does by itself: kill_launcher | link_down | link_blink
    shim: dict = field(default_factory=dict)  # environment of the failing disk
    disk: float = 0           # size of the run's disk, in checkpoints; 0: as it is
    checkpoint: bool = True   # the last one must be loadable
    grace: float = 0          # seconds of the launcher that come on top, and why in `does`


def all_ranks(code, **other):
    codes = {rank: (code,) for rank in range(RANKS)}
    for rank, value in other.items():
        codes[int(rank[1:])] = value if isinstance(value, tuple) else (value,)
    return codes


# mpirun returns the code of the first rank that it sees end badly; heddle launch 6 for a signal.
DIES = {"mpi": (6, KILLED), "gloo": (6,)}

ROWS = [
    Row("sigkill", "SIGKILL in backward", "6", f"backward:1:{STEP}:kill",
        all_ranks(6, r1=KILLED), DIES, 1, quick=True),
    Row("sigsegv", "SIGSEGV in backward", "6", f"backward:1:{STEP}:segv",
        all_ranks(6, r1=SEGV), {"mpi": (6, SEGV), "gloo": (6,)}, 1, quick=True),
    Row("sigstop", "SIGSTOP: frozen; the survivors end it", "6", f"backward:1:{STEP}:stop",
        all_ranks(6, r1=KILLED), DIES, 1, quick=True),
    Row("exit0", "_exit(0) in the reduction", "6", f"reduce:1:{STEP}:exit0",
        all_ranks(6, r1=0), {"mpi": (1, 6), "gloo": (6,)}, 1, quick=True),
    Row("exception", "an exception", "6", f"update:2:{STEP}:throw",
        all_ranks(6), {"mpi": (6,), "gloo": (6,)}, 2),
    Row("oom", "out of memory: the allocator refuses", "6", f"backward:1:{STEP}:oom",
        all_ranks(6), {"mpi": (6,), "gloo": (6,)}, 1, says="memory"),
    Row("hang", "a rank that computes for ever", "6", f"step:1:{STEP}:hang",
        all_ranks(6), {"mpi": (6,), "gloo": (6,)}, 1),
    Row("rank0", "SIGKILL of rank 0", "6", f"reduce:0:{STEP}:kill",
        all_ranks(6, r0=KILLED), DIES, 0, quick=True),
    Row("rank0-stop", "SIGSTOP of rank 0", "6", f"step:0:{STEP}:stop",
        all_ranks(6, r0=KILLED), DIES, 0),
    Row("saving", "SIGKILL of rank 0 while it saves", "6", "checkpoint:0:15:kill",
        all_ranks(6, r0=KILLED), DIES, 0),
    Row("launcher", "SIGKILL of the launcher", "6", "", all_ranks(6),
        {"mpi": (KILLED,), "gloo": (KILLED,)}, -1, act="kill_launcher"),
    Row("partition", "two hosts, veth down for good", "6", "", {0: (6,), 1: (6,)},
        {"mpi": ANY, "gloo": (6,)}, ANY, hosts=True, act="link_down"),
    Row("config", "another configuration on one rank", "refused", "", all_ranks(6),
        {"mpi": (6,), "gloo": (6,)}, says="ranks disagree on version and configuration",
        odd={"LAB_ODD_ARGS": "optim.matrix_lr=0.03"}, checkpoint=False),
    Row("version", "another version on one rank", "refused", "", all_ranks(6),
        {"mpi": (6,), "gloo": (6,)}, says="ranks disagree on version and configuration",
        odd={"LAB_ODD_HEDDLE": "other version"}, checkpoint=False),
    Row("plugin", "another plugin build on one rank", "refused", "", all_ranks(6),
        {"mpi": (6,), "gloo": (6,)}, says="ranks disagree on attention plugins",
        odd={"LAB_ODD_PLUGINS": "other build"}, checkpoint=False),
    Row("slow-disk", "a disk that takes 2 s for every fsync", "goes on", "", all_ranks(0),
        {"mpi": (0,), "gloo": (0,)}, steps=12,
        shim={"HEDDLE_SHIM_DELAY_MS": "2000"}),
    Row("blink", "two hosts, veth down for 2 s", "goes on", "", {0: (0,), 1: (0,)},
        {"mpi": (0,), "gloo": (0,)}, hosts=True, act="link_blink", steps=120),
    Row("nan", "NaN gradients on one rank", "7", f"backward:1:{STEP}:nan", all_ranks(7),
        {"mpi": (7,), "gloo": (7,)}, quick=True, says="[numerics]"),
    Row("full-disk", "a disk that is full in the second save", "goes on", "", all_ranks(0),
        {"mpi": (0,), "gloo": (0,)}, steps=12, says="training goes on",
        disk=1.6),
]

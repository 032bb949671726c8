"""A Slurm cluster of this one machine for as long as a test needs it: munged, slurmctld, slurmd.
Daemons are stopped by the numbers in their own pid files."""
import os
import shutil
import signal
import socket
import subprocess
import time


class NotHere(Exception):
    """Slurm cannot be run here; says why."""


def _stop(pid_file):
    try:
        with open(pid_file) as f:
            pid = int(f.read())
        os.kill(pid, signal.SIGTERM)
        for _ in range(100):
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
    except (OSError, ValueError):
        pass


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.conf = os.path.join(folder, "slurm.conf")
        self.munge = os.path.join(folder, "munge")

    def __enter__(self):
        if os.geteuid() != 0:
            raise NotHere("needs root to start slurmctld and slurmd")
        for program, package in [("munged", "munge"), ("slurmctld", "slurm-wlm"),
                                 ("slurmd", "slurm-wlm"), ("sbatch", "slurm-wlm")]:
            if shutil.which(program) is None:
                raise NotHere(f"no {program} here (Debian: {package})")
        os.makedirs(os.path.join(self.folder, "state"))
        os.makedirs(os.path.join(self.folder, "spool"))
        try:
            self._start_munge()
            self._write_conf()
            for daemon in ["slurmctld", "slurmd"]:
                self._check([daemon, "-f", self.conf])
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in ["slurmd", "slurmctld", "munged"]:
            _stop(os.path.join(self.munge if name == "munged" else self.folder, name + ".pid"))

    def environment(self):
        return {**os.environ, "SLURM_CONF": self.conf}

    def run(self, argv, timeout, env=None):
        done = subprocess.run(argv, env={**self.environment(), **(env or {})}, timeout=timeout,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        return done.returncode, done.stdout

    def _check(self, argv):
        done = subprocess.run(argv, env=self.environment(), capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise NotHere(f"{argv[0]} does not start: {(done.stderr or done.stdout).strip()}")

    def _start_munge(self):
        # munged wants folders of its own user on the whole way down, and not of everybody.
        self.munge = "/run/heddle-munge-" + str(os.getpid())
        os.makedirs(self.munge, mode=0o755)
        shutil.chown(self.munge, "munge", "munge")
        key = os.path.join(self.munge, "key")
        with open(key, "wb") as f:
            f.write(os.urandom(128))
        os.chmod(key, 0o400)
        shutil.chown(key, "munge", "munge")
        self._check(["runuser", "-u", "munge", "--", "munged", "--key-file", key, "--socket",
                     self.munge + "/socket", "--pid-file", self.munge + "/munged.pid",
                     "--log-file", self.munge + "/log", "--seed-file", self.munge + "/seed"])

    def _write_conf(self):
        host = socket.gethostname()
        cpus = os.cpu_count()
        with open(self.conf, "w") as f:
            f.write(f"""ClusterName=lab
SlurmctldHost={host}
SlurmctldPort=26817
SlurmdPort=26818
AuthType=auth/munge
AuthInfo=socket={self.munge}/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmUser=root
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmdSpoolDir={self.folder}/spool
StateSaveLocation={self.folder}/state
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=1
MpiDefault=none
KillWait=30
NodeName={host} CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES OverSubscribe=FORCE:4 MaxTime=INFINITE State=UP
""")

    def _wait_until_idle(self):
        deadline = time.time() + 30
        while time.time() < deadline:
            code, text = self.run(["sinfo", "-h", "-o", "%T"], 10)
            if code == 0 and text.strip() == "idle":
                return
            time.sleep(0.3)
        raise NotHere("the node does not become idle: " + text.strip())

"""Network namespaces as hosts: h2a (10.77.0.1) and h2b (10.77.0.2), joined by a veth pair.

Needs root and a mount namespace of its own (unshare -m), so that names, hosts files and whatever
else is mounted here are seen by nobody else and go away with the last process.
"""
import os
import stat
import subprocess

HOSTS = {"h2a": "10.77.0.1", "h2b": "10.77.0.2"}


def available():
    if os.geteuid() != 0:
        return "needs root for namespaces and mounts"
    if subprocess.run(["which", "ip"], capture_output=True).returncode != 0:
        return "needs ip (Debian: iproute2)"
    probe = subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True, text=True)
    return "" if probe.returncode == 0 else "may not unshare namespaces: " + probe.stderr.strip()


def ip(*args):
    return subprocess.run(["ip", *args], check=True, capture_output=True, text=True).stdout


class TwoHosts:
    """names: also in the hosts file. docker0: a bridge with the same address on both hosts."""

    def __init__(self, folder, names=True, docker0=False):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        for host in HOSTS:
            ip("netns", "add", host)
            ip("-n", host, "link", "set", "lo", "up")
        ip("-n", "h2a", "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns",
           "h2b")
        for host, address in HOSTS.items():
            ip("-n", host, "addr", "add", address + "/24", "dev", "veth0")
            ip("-n", host, "link", "set", "veth0", "up")
            if docker0:
                ip("-n", host, "link", "add", "docker0", "type", "bridge")
                # A member that is up keeps the bridge up.
                ip("-n", host, "link", "add", "port0", "type", "veth", "peer", "name", "port1")
                ip("-n", host, "link", "set", "port1", "up")
                ip("-n", host, "link", "set", "port0", "master", "docker0")
                ip("-n", host, "addr", "add", "172.17.0.1/16", "dev", "docker0")
                ip("-n", host, "link", "set", "port0", "up")
                ip("-n", host, "link", "set", "docker0", "up")
        self.hosts_file = os.path.join(folder, "hosts")
        with open(self.hosts_file, "w") as f:
            f.write("127.0.0.1 localhost\n")
            if names:
                f.writelines(f"{address} {host}\n" for host, address in HOSTS.items())
        subprocess.run(["mount", "--bind", self.hosts_file, "/etc/hosts"], check=True)
        # Hosts that look names up at a server that nobody runs would wait for it.
        resolver = os.path.join(folder, "resolv.conf")
        open(resolver, "w").close()
        subprocess.run(["mount", "--bind", resolver, "/etc/resolv.conf"], check=False)
        self.agent = os.path.join(folder, "agent.sh")
        with open(self.agent, "w") as f:
            f.write("#!/bin/sh\n"
                    "# Stands for ssh: HOST COMMAND...\n"
                    'host=$1; shift\n'
                    'case $host in 10.77.0.1) host=h2a;; 10.77.0.2) host=h2b;; esac\n'
                    'exec ip netns exec "$host" unshare -u sh -c "hostname $host; $*"\n')
        os.chmod(self.agent, os.stat(self.agent).st_mode | stat.S_IXUSR)
        self.hostfile = os.path.join(folder, "hostfile")
        with open(self.hostfile, "w") as f:
            f.writelines(f"{host if names else address} slots=4\n"
                         for host, address in HOSTS.items())

    def on(self, host, argv, env=None):
        """argv as it runs on that host."""
        settings = [f"{k}={v}" for k, v in (env or {}).items()]
        return ["ip", "netns", "exec", host, "unshare", "-u", "sh", "-c",
                f'hostname {host}; exec env "$@"', "sh", *settings, *argv]

    def mpirun(self, ranks, extra=()):
        # The interfaces by network: docker0 has the same address on every host.
        return self.on("h2a", ["mpirun", "-n", str(ranks), "--map-by", "node", "--oversubscribe",
                               "--bind-to", "none", "--hostfile", self.hostfile,
                               "--mca", "plm_rsh_agent", self.agent,
                               "--mca", "btl_tcp_if_include", "10.77.0.0/24",
                               "--mca", "oob_tcp_if_include", "10.77.0.0/24", *extra])

    def set_link(self, up):
        ip("-n", "h2a", "link", "set", "veth0", "up" if up else "down")

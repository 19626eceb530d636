"""A real Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd, all of it in one folder.

    python tests/slurm/cluster.py start FOLDER    prints the line that points Slurm's commands at it
    python tests/slurm/cluster.py stop FOLDER

The daemons are Debian's; they run as root, on ports of their own, and write nothing outside the folder. Two GPUs are
declared on each node: jobs can ask for them and get CUDA_VISIBLE_DEVICES, but nothing can be computed on them.
The nodes' names do not resolve, as in a container of a site without name service: both are 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

NODES = ("node1", "node2")
PARTITIONS = ("main", "short", "one")
DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "srun", "salloc", "squeue", "sinfo", "scontrol", "scancel")
INSTALL = "bash scripts/install_system_packages.sh"

# Times are short, so that tests are: a node that is silent for SlurmdTimeout is down, a job that is queued again may
# start when cred_expire is over (Slurm waits that long so that the old launch cannot be mixed up with the new one).
# config_overrides: what is declared here counts, whatever the machine has.
CONF = """\
ClusterName=paceline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MailProg=/bin/true
JobRequeue=1
FirstJobId={first_job}
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmctldTimeout=60
SlurmdTimeout=10
KillWait=5
MinJobAge=36000
InactiveLimit=0
SchedulerParameters=batch_sched_delay=0,sched_interval=1
NodeName=node1 NodeAddr=127.0.0.1 NodeHostname={host} Port={ports[1]} CPUs=4 RealMemory=4000 Gres=gpu:2
NodeName=node2 NodeAddr=127.0.0.1 NodeHostname={host} Port={ports[2]} CPUs=4 RealMemory=4000 Gres=gpu:2
PartitionName=main Nodes=node1,node2 Default=YES MaxTime=60 State=UP
PartitionName=short Nodes=node1,node2 MaxTime=2 State=UP
PartitionName=one Nodes=node1 MaxNodes=1 MaxTime=60 State=UP
"""


class NoCluster(Exception):
    """The cluster cannot be started here, or did not come up; the text says what to do."""


@dataclass(frozen=True)
class Cluster:
    """A cluster in a folder."""

    folder: Path

    @property
    def conf(self) -> Path:
        """The file that Slurm's commands find the cluster by."""
        return self.folder / "slurm.conf"

    @property
    def environ(self) -> dict[str, str]:
        """The environment that points Slurm's commands at this cluster, and at nothing of another one."""
        rest = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "SBATCH_"))
        }
        return {**rest, "SLURM_CONF": str(self.conf)}

    def ask(self, *words: object, timeout: float = 20) -> str:
        """Return what one of Slurm's commands prints."""
        done = subprocess.run(
            [str(word) for word in words],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if done.returncode:
            raise NoCluster(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def pids(self) -> dict[str, int]:
        """Return the pids of the daemons that live, by name: munged, slurmctld, node1, node2."""
        try:
            noted = json.loads((self.folder / "pids.json").read_text())
        except FileNotFoundError:
            return {}
        return {name: pid for name, pid in noted.items() if self._owns(pid)}

    def processes(self) -> dict[int, str]:
        """Return all daemons and steps of the cluster and what they have started; not shells that only point at it."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self._is_of(entry):
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    )
            except OSError:
                pass  # it ended, or is a zombie
        return found

    def _is_of(self, entry: Path) -> bool:
        environ = (entry / "environ").read_bytes().split(b"\0")
        if f"SLURM_CONF={self.conf}".encode() not in environ:
            return False
        in_step = any(each.startswith(b"SLURMD_NODENAME=") for each in environ)
        return in_step or (entry / "comm").read_text().strip() in (*DAEMONS, "slurmstepd")

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node, also of one whose slurmd was killed."""
        self._start(name, "/usr/sbin/slurmd", "-D", "-N", name, "-f", str(self.conf))

    def kill_node(self, name: str) -> None:
        """Kill the slurmd of a node without a word, as a node does that loses power; its steps live on."""
        os.kill(self.pids()[name], signal.SIGKILL)

    def heal(self) -> None:
        """Start what was killed, open what was drained, and wait until all nodes are idle."""
        for name in NODES:
            if name not in self.pids():
                self.start_node(name)
        for line in self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").splitlines():
            name, state = line.split()
            if "drain" in state:
                self.ask("scontrol", "update", f"NodeName={name}", "State=RESUME")
        self.wait_for_nodes()

    def wait_for_nodes(self, state: str = "idle", *, timeout: float = 30) -> None:
        """Wait until all nodes are in a state."""
        deadline = time.monotonic() + timeout
        states = ""
        while time.monotonic() < deadline:
            try:
                states = self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T")
            except (NoCluster, subprocess.TimeoutExpired) as error:
                states = str(error)  # slurmctld may not listen yet
            if states.split() == [state] * len(NODES):
                return
            time.sleep(0.1)
        raise NoCluster(
            f"the nodes are not {state} after {timeout:.0f} s, but: {states.strip()}; see {self.folder}/*.log"
        )

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                words,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        pids = {**self.pids(), name: process.pid}
        (self.folder / "pids.json").write_text(json.dumps(pids))
        # Whoever started it need not wait for it: a daemon that ended is reaped here, or by init.
        _children.append(process)

    def _owns(self, pid: int) -> bool:
        # A pid may have gone to another process since it was noted.
        try:
            return str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False


_children: list[subprocess.Popen[bytes]] = []


def start(
    folder: Path,
    *,
    # ranks meet at a port that follows from it, so two clusters must not count alike
    first_job: int = 1,
) -> Cluster:
    """Start a cluster in a folder, or return the one that runs there."""
    cluster = Cluster(folder.resolve())
    _check(cluster.folder)
    if len(cluster.pids()) == len(NODES) + 2:
        return cluster
    stop(folder)
    _clear(cluster.folder)
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (cluster.folder / name).mkdir(parents=True)
    _write_files(cluster, first_job)
    try:
        _start_munged(cluster)
        cluster._start("slurmctld", "/usr/sbin/slurmctld", "-D", "-f", str(cluster.conf))
        for node in NODES:
            cluster.start_node(node)
        cluster.wait_for_nodes()
    except BaseException:
        stop(folder)
        raise
    return cluster


def stop(folder: Path) -> None:
    """Cancel all jobs of a cluster and end its daemons; does nothing where none runs."""
    cluster = Cluster(folder.resolve())
    if "slurmctld" in cluster.pids():
        _cancel_all(cluster)
    for signum, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        for pid in reversed(cluster.pids().values()):
            os.kill(pid, signum)
        deadline = time.monotonic() + patience_s
        while cluster.pids() and time.monotonic() < deadline:
            for child in _children:
                child.poll()
            time.sleep(0.05)
    for child in _children:
        child.poll()
    deadline = time.monotonic() + 5.0
    while (
        steps := cluster.processes()
    ) and time.monotonic() < deadline:  # whose slurmd was killed or started twice
        for pid in steps:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    (cluster.folder / "pids.json").unlink(missing_ok=True)


def _check(folder: Path) -> None:
    missing = [
        name
        for name in (*DAEMONS, *COMMANDS)
        if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    ]
    if missing:
        raise NoCluster(
            f"{', '.join(missing)} not found: Slurm and munge are installed by: {INSTALL}"
        )
    if os.geteuid() != 0:
        raise NoCluster(
            "the daemons of the test cluster start the jobs of other users: they need root"
        )
    # what the configuration takes as a value, and how long a socket's name may be: /spool-node1/node1_12345.4294967291
    # comes behind it, and 108 are the most
    if any(letter.isspace() or letter in "#,=" for letter in str(folder)) or len(str(folder)) > 70:
        raise NoCluster(
            f"{folder}: Slurm takes no folder with spaces, commas, = or #, nor one of more than 70 letters"
        )


def _clear(folder: Path) -> None:
    """Remove what an earlier cluster left; a folder of anything else stays as it is."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "munge.key").exists():
        raise NoCluster(f"{folder} is not empty, and not that of a cluster")
    shutil.rmtree(folder, ignore_errors=True)


def _write_files(cluster: Cluster, first_job: int) -> None:
    key = cluster.folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    # Slurm 22.05 refuses GPUs that are a number without a file, and sets CUDA_VISIBLE_DEVICES for devices only; their
    # order is that of the number at the end of the name. Links need no privilege and no device of the machine's own.
    for number, device in enumerate(("/dev/null", "/dev/zero")):
        (cluster.folder / f"gpu{number}").symlink_to(device)
    gpus = f"Name=gpu File={cluster.folder}/gpu[0-1]"
    (cluster.folder / "gres.conf").write_text(
        "".join(f"NodeName={node} {gpus}\n" for node in NODES)
    )
    (cluster.folder / "cgroup.conf").write_text("")
    host = socket.gethostname().partition(".")[0]
    text = CONF.format(folder=cluster.folder, host=host, ports=_free_ports(3), first_job=first_job)
    cluster.conf.write_text(text)


def _start_munged(cluster: Cluster) -> None:
    here = cluster.folder
    names = {"socket": "munge.socket", "key-file": "munge.key", "seed-file": "munge.seed"}
    names |= {"pid-file": "munged.pid", "log-file": "munged.log"}
    words = [f"--{option}={here / name}" for option, name in names.items()]
    cluster._start("munged", "/usr/sbin/munged", "--foreground", "--force", *words)
    deadline = time.monotonic() + 10
    while not (here / "munge.socket").exists():
        if time.monotonic() > deadline:
            raise NoCluster(f"munged does not listen after 10 s; see {here}/munged.*")
        time.sleep(0.02)


def _cancel_all(cluster: Cluster) -> None:
    try:
        cluster.ask("scancel", "--quiet", "--user", "root")
        deadline = time.monotonic() + 20
        while cluster.ask("squeue", "-h", "-o", "%i") and time.monotonic() < deadline:
            time.sleep(0.2)
    except (NoCluster, subprocess.TimeoutExpired):
        pass  # it is to end, whether it answers or not


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def main(words: list[str]) -> int:
    """Do what the command line says."""
    if len(words) != 2 or words[0] not in ("start", "stop"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if words[0] == "start":
            print(f"export SLURM_CONF={start(Path(words[1])).conf}")
        else:
            stop(Path(words[1]))
    except NoCluster as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

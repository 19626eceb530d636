"""Real starts by mpirun: a launcher on each host, or a rank in each task. Two hosts are one machine.

MPICH takes ``localhost`` and ``127.0.0.1`` for two hosts. Open MPI reaches the second one by a
stand-in for ssh, which starts its daemon under another host name.
"""

from __future__ import annotations

import os
import shutil

import pytest

from starting import BIN, free_port

pytestmark = pytest.mark.slow

OPEN_MPI, MPICH = shutil.which("mpirun.openmpi"), shutil.which("mpirun.mpich")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
needs_open_mpi = pytest.mark.skipif(OPEN_MPI is None, reason="openmpi-bin is not installed")
needs_mpich = pytest.mark.skipif(MPICH is None, reason="mpich is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="another host name needs root")

SSH = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec unshare --uts sh -c "hostname $host; exec sh -c '$*'"
"""
TRAINS = """\
import paceline, torch
session = paceline.Session(seed=0, precision="64-true")
x = torch.randn(60, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
torch.manual_seed(0)
model = torch.nn.Linear(5, 1)
model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = session.loader(data, batch_size=8, shuffle=True)
for epoch in session.epochs(2):
    for inputs, targets in loader:
        if session.backward(((model(inputs) - targets) ** 2).mean()):
            optimizer.step()
            optimizer.zero_grad()
    session.once(lambda: print("once on a host"), scope="node")
weights = [value for p in model.parameters() for value in p.detach().flatten().tolist()]
session.print("weights", session.world_size, *map(repr, weights))
"""
SAYS = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"


@pytest.fixture
def mpirun(command):
    """Start mpirun of a kind with some words, and wait for its end."""

    def run(program, *words, env=None):
        return command.run(*words, program=program, env={**AS_ROOT, **(env or {})})

    return run


@pytest.fixture
def two_hosts(tmp_path):
    """Options of Open MPI for two hosts: this machine, and this machine by another name."""
    agent = tmp_path / "ssh"
    agent.write_text(SSH)
    agent.chmod(0o755)
    here = os.uname().nodename
    return ["--mca", "plm_rsh_agent", str(agent), "--host", f"{here}:1,other-host:1"]


def paceline(*words):
    """A launcher as mpirun starts it."""
    return [BIN / "paceline", "run", *words]


def python(*words):
    """A script as mpirun starts it."""
    return [BIN / "python", *words]


def weights(ended):
    """The number of ranks that a training says it had, and the weights that it ended with."""
    assert ended.status == 0, ended.err
    (line,) = [line for line in ended.out.splitlines() if line.startswith("weights")]
    _, size, *values = line.split()
    return int(size), [float(value) for value in values]


@pytest.fixture
def alone(command):
    """The weights of the same training in one process, within the promised tolerance."""
    command.script(TRAINS)
    size, values = weights(command.run("train.py", program="python"))
    assert size == 1
    return pytest.approx(values, abs=1e-10)


@needs_open_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_in_each_task_of_open_mpi_trains_as_one_process_does(mpirun, alone, ranks):
    ended = mpirun(OPEN_MPI, "--oversubscribe", "-n", ranks, *python("train.py"))
    assert weights(ended) == (ranks, alone)
    assert f"launcher mpi (mpirun of Open MPI started {ranks} tasks on this node)" in ended.err
    assert ended.out.count("once on a host") == 2  # in each epoch


@needs_mpich
def test_a_rank_in_each_task_of_mpich_trains_as_one_process_does(mpirun, alone):
    ended = mpirun(MPICH, "-n", 3, *python("train.py"))
    assert weights(ended) == (3, alone)
    assert "launcher mpi (mpiexec of MPICH started 3 tasks on this node)" in ended.err


@needs_open_mpi
@needs_root
def test_ranks_on_two_hosts_meet_at_the_host_of_mpirun(mpirun, alone, two_hosts):
    ended = mpirun(OPEN_MPI, *two_hosts, "-n", 2, *python("train.py"))
    assert weights(ended) == (2, alone)
    assert "head the host of mpirun" in ended.err
    assert ended.out.count("once on a host") == 4  # on each host, in each epoch


@needs_open_mpi
@needs_root
def test_a_launcher_on_each_host_of_open_mpi(mpirun, alone, two_hosts):
    one_each = [*two_hosts, "-npernode", 1]
    ended = mpirun(OPEN_MPI, *one_each, *paceline("--nproc-per-node", 2, "train.py"))
    assert weights(ended) == (4, alone)
    assert "2 nodes x 2 ranks · mpirun of Open MPI, 2 tasks, head the host of mpirun" in ended.err
    assert ended.err.count("roll call: 2 nodes alike") == 1  # by the head
    assert "cpus-too-few" in ended.err  # bound to a core
    free = mpirun(OPEN_MPI, *one_each, "--bind-to", "none", *paceline("train.py"))
    assert weights(free) == (2, alone)
    assert "cpus-too-few" not in free.err


@needs_mpich
def test_a_launcher_on_each_host_of_mpich_needs_a_head(mpirun, alone):
    hosts = ["-hosts", "localhost,127.0.0.1", "-ppn", 1, "-n", 2]
    refused = mpirun(MPICH, *hosts, *paceline("train.py"))
    assert refused.status != 0
    assert refused.err.count("rank-env-missing") == 1
    assert "fix: mpiexec -genv MASTER_ADDR HOST ..." in refused.err
    head = ["-genv", "MASTER_ADDR", "127.0.0.1", "-genv", "MASTER_PORT", free_port()]
    ended = mpirun(MPICH, *hosts, *head, *paceline("train.py"))
    assert weights(ended) == (2, alone)


@needs_open_mpi
def test_several_launchers_on_a_host_are_refused_once(mpirun, command):
    command.script(SAYS)
    ended = mpirun(OPEN_MPI, "-n", 2, *paceline("--nproc-per-node", 2, "train.py"))
    assert ended.status == 2
    assert ended.err.count("double-launch") == 1
    line = "mpirun -npernode 1 --bind-to none paceline run --nproc-per-node 2 train.py"
    assert f"fix: {line}" in ended.err
    apart = mpirun(OPEN_MPI, "-n", 2, *paceline("--standalone", "train.py"))
    assert (apart.status, apart.out.count("rank 0 of 1")) == (0, 2)


@needs_open_mpi
def test_what_the_shell_exports_ends_mpirun_and_trains_nothing(mpirun, command):
    command.script(TRAINS)
    shell = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    shell |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    ended = mpirun(OPEN_MPI, "-n", 2, *python("train.py"), env=shell)
    assert ended.status != 0
    assert "world-contradicted" in ended.err
    assert "weights" not in ended.out


@needs_open_mpi
@needs_root
def test_a_rank_that_fails_ends_all_and_is_named_once(mpirun, command, two_hosts):
    command.script(
        SAYS + "import time\nif os.environ['RANK'] == '1': raise ValueError('bad')\ntime.sleep(60)"
    )
    one_each = [*two_hosts, "-npernode", 1]
    ended = mpirun(OPEN_MPI, *one_each, *paceline("--nproc-per-node", 1, "train.py"))
    assert ended.status == 1
    assert ended.err.count("── paceline") == 1
    assert "ValueError: bad" in ended.block

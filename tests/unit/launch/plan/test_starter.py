"""What options follow from mpirun, pods and batch jobs: recorded environments in, defaults or finding out."""

import pytest

from paceline.errors import Finding, UsageError
from paceline.launch.plan import mpi_start, parsing, plan
from paceline.launch.plan.starter import StarterSurroundings, choose_defaults
from paceline.launch.rendezvous import node_wait
from recorded import environment

NODE_FILE = "node1\nnode1\nnode2\nnode2\n"
MPI_HEAD = {"master_addr": "10.0.0.1"}
ALONE = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}


def head_is_elsewhere(address, source):
    raise UsageError(Finding("master-addr-wrong", f"{address}, {source}"))


def defaults(environ, *, host="node-b", head_here=True, **requested):
    return choose_defaults(
        environ,
        requested=requested,
        program=["train.py", "--lr", "0.1"],
        surroundings=StarterSurroundings(
            address_of=lambda name: f"address of {name}",
            require_head_here=(lambda address, source: None) if head_here else head_is_elsewhere,
            read_file=lambda path: NODE_FILE,
            host_name=host,
        ),
    )


def refused(environ, **arguments):
    with pytest.raises(UsageError) as caught:
        defaults(environ, **arguments)
    return caught.value


def options(environ, inherited=None, **requested):
    found = defaults(environ, **{**(inherited or {}), **requested})
    return parsing.parse(
        "train.py", (), typed=requested, inherited=inherited or {}, starter_defaults=found
    )


def pet(environ):
    return {name[4:].lower(): value for name, value in environ.items() if name.startswith("PET_")}


def test_one_task_of_mpirun_on_each_node():
    found = defaults(environment("open-mpi-4-two-hosts"))
    assert found.values == {
        "nnodes": "2",
        "node_rank": "1",
        "master_addr": "192.0.2.2",
        "master_port": found.values["master_port"],
    }
    assert 15000 <= int(found.values["master_port"]) < 32000
    assert found.source == "mpirun of Open MPI, 2 tasks, head the host of mpirun"
    assert (found.starter, found.shared_output, found.starts_together) == ("mpi", True, True)


def test_with_c10d_the_tasks_meet_at_one_endpoint():
    found = defaults(environment("open-mpi-4-two-hosts"), rdzv_backend="c10d")
    assert set(found.values) == {"nnodes", "rdzv_endpoint"}
    assert found.values["rdzv_endpoint"].startswith("192.0.2.2:")


def test_the_head_of_the_user_counts():
    environ = environment("open-mpi-4-two-hosts")
    typed = defaults(environ, master_addr="10.0.0.1")
    assert typed.values == {"nnodes": "2", "node_rank": "1"}
    passed = defaults({**environ, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"})
    assert passed.values["master_addr"] == "10.0.0.1"
    assert (passed.values["master_port"], passed.port_reason) == ("4000", "MASTER_PORT")


def test_the_first_task_checks_that_the_head_is_there():
    first = environment("open-mpi-4-two-hosts", OMPI_COMM_WORLD_RANK="0")
    assert defaults(first).values["node_rank"] == "0"
    assert refused(first, head_here=False).finding.name == "master-addr-wrong"
    assert defaults(environment("open-mpi-4-two-hosts"), head_here=False).values
    assert defaults({**first, "MASTER_ADDR": "service"}, head_here=False).values


def test_mpich_on_several_hosts_needs_a_head():
    one_each = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", "PMI_SIZE": "2", "PMI_RANK": "1"}
    environ = environment("mpich-4-two-hosts", **one_each)
    error = refused(environ)
    assert error.finding.name == "rank-env-missing"
    assert "mpiexec -genv MASTER_ADDR HOST" in error.finding.fix
    found = defaults({**environ, "MASTER_ADDR": "10.0.0.1"})
    assert found.values["master_port"] == "29500"
    assert found.port_reason == "torch's default"


def test_several_launchers_of_mpirun_on_a_node_are_refused():
    error = refused(environment("open-mpi-4-one-host"), nproc_per_node="4")
    finding = error.finding
    assert finding.name == "double-launch"
    assert "4 ranks in each: 8 ranks a node" in finding.what
    line = "mpirun -npernode 1 --bind-to none paceline run --nproc-per-node 4 train.py --lr 0.1"
    assert finding.fix == line


@pytest.mark.parametrize("requested", [{"standalone": True}, {"nnodes": "1"}, {"nnodes": "1:1"}])
def test_who_wants_each_task_alone_says_so(requested):
    found = defaults(environment("open-mpi-4-one-host"), **requested)
    assert (found.values, found.starter) == ({}, "")
    assert "each of 2 tasks alone" in found.source


def test_who_counts_tasks_as_nodes_is_left_to_it():
    found = defaults(environment("open-mpi-4-one-host"), nnodes="2", node_rank="1")
    assert found.values == {}


@pytest.mark.parametrize(
    ("requested", "name"),
    [
        ({"nnodes": "3"}, "torchrun-nnodes-mismatch"),
        ({"nnodes": "4:8"}, "torchrun-nnodes-mismatch"),
        ({"nnodes": "2", "node_rank": "0"}, "node-rank-on-batch-host"),
    ],
)
def test_typed_nodes_that_contradict_mpirun_are_refused(requested, name):
    assert refused(environment("open-mpi-4-two-hosts"), **requested).finding.name == name


@pytest.mark.parametrize("requested", [{"nnodes": "2"}, {"nnodes": "1:4"}, {"node_rank": "1"}])
def test_typed_nodes_that_fit_are_not(requested):
    assert defaults(environment("open-mpi-4-two-hosts"), **requested).values["nnodes"] == "2"


@pytest.mark.parametrize("name", ["slurm-mpirun-remote", "slurm-mpich-remote"])
def test_in_a_slurm_job_mpirun_counts_and_not_the_step_of_its_daemons(name):
    error = refused(environment(name))
    assert error.finding.name == "double-launch"  # four tasks on this node
    one_each = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    }
    found = defaults(environment("slurm-mpirun-remote", **one_each))
    assert (found.values["nnodes"], found.starter) == ("3", "mpi")
    mpich = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    named = defaults(environment("slurm-mpich-remote", **mpich))
    assert named.values["master_addr"] == "address of node1"


def test_one_task_of_mpirun_leaves_slurm_and_pods_as_they_are():
    step = defaults({**environment("slurm-mpich-remote", PMI_RANK=None), **ALONE})
    assert step.source.startswith("Slurm step 77.0")
    pod = defaults({**environment("pytorchjob-1.5"), **ALONE})
    assert (pod.values["nnodes"], pod.starter) == ("2", "pod")


@pytest.mark.parametrize("name", ["pytorchjob-1.5", "pytorchjob-1.9"])
def test_a_pytorchjob_needs_no_options(name):
    environ = environment(name)
    chosen = options(environ, pet(environ))
    assert (chosen.nnodes, chosen.node_rank) == ((2, 2), 1)
    assert (chosen.master_addr, chosen.master_port) == ("digits-master-0", 23456)
    assert chosen.starter_defaults.hosts == ("digits-master-0", "digits-worker-0")
    assert chosen.nproc_per_node == environ.get("PET_NPROC_PER_NODE", "")


def test_a_trainjob_needs_no_options():
    environ = environment("trainjob")
    chosen = options(environ, pet(environ))
    assert (chosen.nnodes, chosen.node_rank, chosen.master_port) == ((2, 2), 1, 29400)
    assert chosen.master_addr == "digits-node-0-0.digits"
    assert chosen.starter_defaults.source == "pod 1 of 2 (PET_NNODES and PET_NODE_RANK)"


def test_an_elastic_pytorchjob_is_torchs():
    environ = environment("pytorchjob-elastic")
    chosen = options(environ, pet(environ))
    assert (chosen.nnodes, chosen.rdzv_backend) == ((1, 3), "c10d")
    assert chosen.starter_defaults.starter == "pod"


def test_a_jobset_needs_the_number_of_pods_only():
    chosen = options(environment("jobset"), nnodes="4")
    assert (chosen.nnodes, chosen.node_rank) == ((4, 4), 3)
    assert (chosen.master_addr, chosen.master_port) == ("pytorch-workers-0-0.pytorch", 3389)
    assert chosen.starter_defaults.hosts[3] == "pytorch-workers-0-3"
    alone = options(environment("jobset"))
    assert (alone.nnodes, alone.starter_defaults.starter) == ((1, 1), "")
    assert alone.starter_defaults.source == "pod 3, alone: nothing says how many there are"


def test_what_the_example_of_jobset_types_still_counts():
    typed = {
        "nnodes": "4",
        "node_rank": "3",
        "master_addr": "pytorch-workers-0-0.pytorch",
        "master_port": "3389",
    }
    chosen = options(environment("jobset-with-rank"), **typed)
    assert (chosen.nnodes, chosen.node_rank, chosen.master_port) == ((4, 4), 3, 3389)


def test_typed_nodes_that_contradict_the_pods_are_refused():
    environ = environment("pytorchjob-1.5")
    assert refused(environ, nnodes="3").finding.name == "torchrun-nnodes-mismatch"
    assert defaults(environ, nnodes="1") == defaults({})


@pytest.mark.parametrize(
    ("name", "inherited", "limit_s"),
    [("pytorchjob-1.9", True, 1800), ("pytorchjob-elastic", True, 1800)],
)
def test_pods_are_awaited_longer_than_nodes(name, inherited, limit_s):
    environ = environment(name)
    assert node_wait.join_limit_s(options(environ, pet(environ))) == limit_s
    assert node_wait.join_limit_s(options(environ, pet(environ), roll_call_timeout="60")) == 60


def test_tasks_of_mpirun_start_together():
    assert node_wait.join_limit_s(options(environment("open-mpi-4-two-hosts"))) == 300


def test_tasks_of_blaunch_know_the_hosts_of_their_job():
    found = defaults(environment("blaunch-in-lsf"), host="hostb.example.org")
    assert found.values["nnodes"] == "2"
    assert (found.values["node_rank"], found.values["master_addr"]) == ("1", "hosta")
    assert (found.hosts, found.starter) == (("hosta", "hostb"), "lsf")
    elsewhere = defaults(environment("blaunch-in-lsf"), host="login1")
    assert (elsewhere.values, elsewhere.starter) == ({}, "")
    error = refused(environment("blaunch-in-lsf", LSF_PM_TASKID="3"), host="hosta")
    assert error.finding.name == "double-launch"
    assert error.finding.fix.startswith('blaunch -z "hosta hostb"')


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pbs-job-script", "mpirun -npernode 1 --bind-to none paceline run train.py --lr 0.1"),
        ("lsf-job-script", 'blaunch -z "hosta hostb" paceline run train.py --lr 0.1'),
    ],
)
def test_a_job_of_several_hosts_of_which_one_is_used_is_a_warning(name, words):
    found = defaults(environment(name))
    (warning,) = found.warnings
    assert (warning.name, warning.severity) == ("missing-srun", "warning")
    assert warning.fix.startswith(words)
    assert found.values == {}
    assert options(environment(name)).warnings == (warning,)
    for requested in ({"nnodes": "1"}, {"standalone": True}, {"nnodes": "2", **MPI_HEAD}):
        assert defaults(environment(name), **requested).warnings == ()


def test_what_pbsdsh_starts_knows_its_node():
    found = defaults(environment("pbsdsh-task"), nnodes="2", **MPI_HEAD)
    assert found.values == {"node_rank": "1"}
    assert defaults(environment("pbsdsh-task")).values == {}


def test_mpirun_that_binds_a_launcher_to_a_core_is_warned_of():
    environ = environment("open-mpi-4-two-hosts")
    finding = mpi_start.bound_cpus(environ, usable=1, installed=64)
    assert finding is not None
    assert (finding.name, finding.severity) == ("cpus-too-few", "warning")
    assert "1 of 64 CPUs" in finding.what
    assert mpi_start.bound_cpus(environ, usable=64, installed=64) is None
    unbound = environment("open-mpi-4-two-hosts", OMPI_MCA_orte_bound_at_launch=None)
    assert mpi_start.bound_cpus(unbound, usable=1, installed=64) is None


def test_the_plan_says_where_its_port_comes_from():
    _, _, port = plan.choose_endpoint(options(environment("open-mpi-4-two-hosts")))
    assert port.reason == "the number of mpirun's start"
    environ = environment("pytorchjob-1.5")
    _, host, port = plan.choose_endpoint(options(environ))
    assert (host, port.value, port.reason) == ("digits-master-0", 23456, "MASTER_PORT")

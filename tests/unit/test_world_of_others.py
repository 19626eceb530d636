"""Who started us, other than torchrun and srun: recorded environments in, World or finding out."""

import pytest

from paceline.errors import UsageError
from paceline.world import from_environ
from paceline.world.job import read_batch_job
from paceline.world.mpi import read_mpi_task
from paceline.world.pods import read_pod
from recorded import FOLDER, environment
from refusals import refusal

SHELL = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
HEAD = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}


def refused(environ, **arguments):
    return refusal(UsageError, from_environ, environ, **arguments)


@pytest.mark.parametrize(
    ("name", "changes", "place", "head", "starter"),
    [
        ("open-mpi-4-one-host", {}, (1, 2, 1, 2), "127.0.0.1", "mpirun of Open MPI"),
        ("open-mpi-4-two-hosts", {}, (1, 2, 0, 1), "192.0.2.2", "mpirun of Open MPI"),
        ("open-mpi-5-two-hosts", {}, (3, 4, 1, 2), "gpu-06", "mpirun of Open MPI"),
        ("mpich-4-two-hosts", HEAD, (3, 4, 1, 2), "10.0.0.1", "mpiexec of MPICH"),
        ("jsrun-in-lsf", {}, (1, 2, 0, 1), "a01n01", "jsrun"),
        ("pals-in-pbs", HEAD, (5, 8, 1, 4), "10.0.0.1", "mpiexec of PALS"),
        ("slurm-mpirun-remote", {}, (5, 8, 1, 4), "192.0.2.2", "mpirun of Open MPI"),
        ("slurm-mpich-remote", {}, (5, 8, 1, 4), "node1", "mpiexec of MPICH"),
    ],
)
def test_a_task_of_mpirun_is_a_rank(name, changes, place, head, starter):
    world = from_environ(environment(name, **changes))
    assert (world.rank, world.world_size, world.local_rank, world.local_world_size) == place
    assert (world.launcher, world.master_addr) == ("mpi", head)
    assert world.reason.startswith(starter)
    assert (world.head_source == "") == (head in ("127.0.0.1", "10.0.0.1"))


def test_nodes_are_counted_by_the_tasks_of_this_one():
    world = from_environ(environment("open-mpi-5-two-hosts"))
    assert (world.node_rank, world.num_nodes) == (1, 2)
    in_turn = environment("open-mpi-5-two-hosts", OMPI_COMM_WORLD_RANK="2")
    assert from_environ(in_turn).node_rank == 0  # ranks 0 and 2 are on the first host


def test_tasks_of_one_start_agree_on_a_port_and_starts_differ():
    def port(**changes):
        return from_environ(environment("open-mpi-4-one-host", **changes)).master_port

    assert port() == port(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_LOCAL_RANK="0")
    assert len({port(PMIX_NAMESPACE=str(number)) for number in range(100)}) > 95
    assert all(15000 <= port(PMIX_NAMESPACE=str(number)) < 32000 for number in range(100))
    assert port(MASTER_PORT="4000") == 4000


def test_mpich_names_no_start_so_its_proxy_does():
    environ = environment("mpich-4-one-host")
    one = from_environ(environ, starter_pid=lambda: 4711)
    other = from_environ(environ, starter_pid=lambda: 4712)
    assert one.master_port != other.master_port
    finding = refused(environ)
    assert (finding.name, "MASTER_PORT" in finding.fix) == ("rank-env-missing", True)


@pytest.mark.parametrize("name", ["mpich-4-two-hosts", "pals-in-pbs"])
def test_on_several_hosts_without_a_head_the_line_to_add_is_named(name):
    finding = refused(environment(name))
    assert finding.name == "rank-env-missing"
    assert "MASTER_ADDR" in finding.fix
    assert finding.fix.startswith("mpiexec -")


def test_one_task_of_mpirun_says_nothing():
    alone = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    }
    world = from_environ(alone)
    assert (world.world_size, world.launcher) == (1, "none")
    assert world.reason == "mpirun of Open MPI started one task: a world of one"
    pod = from_environ({**environment("pytorchjob-1.5"), **alone})
    assert (pod.rank, pod.world_size, pod.launcher) == (1, 2, "kubernetes")
    step = from_environ({**environment("srun-pmi2"), **alone})
    assert (step.rank, step.world_size, step.launcher) == (3, 4, "slurm")


def test_srun_sets_the_variables_of_pmi_and_says_more_itself():
    world = from_environ(environment("srun-pmi2"))
    assert (world.launcher, world.rank, world.local_rank, world.node_rank) == ("slurm", 3, 1, 1)


def test_pmi_without_a_place_on_the_node_is_refused():
    finding = refused({"PMI_RANK": "1", "PMI_SIZE": "4"})
    assert finding.name == "rank-env-missing"
    assert from_environ({"PMI_RANK": "0", "PMI_SIZE": "1"}).world_size == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"OMPI_COMM_WORLD_SIZE": None},
        {"OMPI_COMM_WORLD_LOCAL_SIZE": None},
        {"OMPI_COMM_WORLD_RANK": "2"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE": "3"},
        {"OMPI_COMM_WORLD_LOCAL_RANK": "2"},
    ],
)
def test_variables_of_mpirun_that_do_not_fit_are_refused(changes):
    assert refused(environment("open-mpi-4-one-host", **changes)).name == "rank-env-missing"


def test_a_variable_that_is_no_number_is_refused_by_name():
    finding = refused(environment("open-mpi-4-one-host", OMPI_COMM_WORLD_SIZE="two"))
    assert finding.name == "option-invalid"
    assert finding.what == "OMPI_COMM_WORLD_SIZE=two is not a whole number"


@pytest.mark.parametrize("name", ["open-mpi-4-one-host", "mpich-4-one-host", "srun-pmi2"])
@pytest.mark.parametrize("size", ["1", "2", "4", "8"])
def test_what_a_shell_exports_is_not_taken_for_every_task(name, size):
    finding = refused(environment(name, **{**SHELL, "WORLD_SIZE": size}))
    assert finding.name == "world-contradicted"
    assert f"WORLD_SIZE={size}" in finding.what


@pytest.mark.parametrize(
    ("rank", "size"),
    [("1", "2"), ("3", "4"), ("2", "4"), ("7", "8"), ("2", "5")],
    ids=["a rank each", "task by task", "also task by task", "four each", "uneven"],
)
def test_ranks_that_tasks_of_mpirun_start_are_theirs(rank, size):
    own = {**SHELL, "RANK": rank, "WORLD_SIZE": size}
    world = from_environ(environment("open-mpi-4-one-host", **own))
    assert (world.launcher, world.rank, world.world_size) == ("torchrun", int(rank), int(size))


@pytest.mark.parametrize("mark", ["TORCHELASTIC_RUN_ID", "PACELINE_RUN_TOKEN"])
def test_ranks_of_a_launcher_in_a_task_of_mpirun_are_the_launchers(mark):
    own = {**SHELL, "RANK": "0", "WORLD_SIZE": "8", mark: "1"}
    assert from_environ(environment("open-mpi-4-one-host", **own)).world_size == 8


def test_what_the_user_chooses_is_not_contradicted():
    environ = environment("open-mpi-4-one-host", **SHELL)
    chosen = {
        launcher: from_environ({**environ, "PACELINE_LAUNCHER": launcher})
        for launcher in ("torchrun", "mpi", "none")
    }
    assert {launcher: world.world_size for launcher, world in chosen.items()} == {
        "torchrun": 1,
        "mpi": 2,
        "none": 1,
    }


@pytest.mark.parametrize("launcher", ["mpi", "kubernetes"])
def test_a_choice_that_is_not_there_is_refused(launcher):
    assert refused({"PACELINE_LAUNCHER": launcher}).name == "rank-env-missing"


def test_pods_of_a_pytorchjob_are_ranks_if_each_starts_one():
    world = from_environ(environment("pytorchjob-1.5"))
    assert (world.rank, world.world_size, world.local_rank) == (1, 2, 0)
    assert (world.master_addr, world.master_port) == ("digits-master-0", 23456)
    assert world.reason == "pod 1 of 2 by WORLD_SIZE and RANK, one rank in each"


@pytest.mark.parametrize("name", ["pytorchjob-1.9", "trainjob"])
def test_pods_that_were_to_start_several_ranks_need_a_launcher(name):
    finding = refused(environment(name))
    assert finding.name == "rank-env-missing"
    assert finding.fix.startswith("paceline run script.py")
    assert "PET_NPROC_PER_NODE=" in finding.what


def test_a_trainjob_of_one_process_a_node_is_one_rank_a_pod():
    world = from_environ(environment("trainjob", PET_NPROC_PER_NODE="1"))
    assert (world.rank, world.world_size, world.launcher) == (1, 2, "kubernetes")
    assert world.master_addr == "digits-node-0-0.digits"


def test_who_types_in_a_pod_is_alone():
    world = from_environ(environment("pytorchjob-1.5"), in_terminal=True)
    assert (world.world_size, world.reason) == (1, "a terminal in pod 1 of 2: a world of one")


def test_one_pod_is_a_world_of_one():
    world = from_environ(environment("pytorchjob-1.5", RANK="0", WORLD_SIZE="1"))
    assert (world.world_size, world.launcher) == (1, "none")


def test_a_jobset_does_not_say_how_many_pods_there_are():
    assert from_environ(environment("jobset")).world_size == 1
    finding = refused(environment("jobset-with-rank"))
    assert (finding.name, "WORLD_SIZE" in finding.what) == ("rank-env-missing", True)


def test_an_index_beyond_the_pods_is_refused():
    assert refused(environment("pytorchjob-1.5", RANK="2")).name == "rank-env-missing"


def test_mpirun_in_each_of_several_pods_is_refused():
    environ = {**environment("pytorchjob-1.5"), **environment("open-mpi-4-one-host")}
    assert from_environ(environ).launcher == "mpi"  # the tasks are the pods
    environ |= {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    finding = refused(environ)
    assert (finding.name, "pod 1 of 2" in finding.what) == ("world-contradicted", True)
    assert from_environ({**environ, "RANK": "0", "WORLD_SIZE": "1"}).world_size == 4


def test_the_same_variables_outside_kubernetes_are_no_pods():
    environ = environment("pytorchjob-1.5", KUBERNETES_SERVICE_HOST=None)
    assert refused(environ).name == "rank-env-missing"
    assert read_pod(environ) is None


@pytest.mark.parametrize(
    ("name", "num_nodes", "hosts"),
    [
        ("pytorchjob-1.9", 3, ["digits-master-0", "digits-worker-0", "digits-worker-1"]),
        ("trainjob", 2, ["digits-node-0-0", "digits-node-0-1"]),
        ("jobset", 2, ["pytorch-workers-0-0", "pytorch-workers-0-1"]),
    ],
)
def test_pods_that_are_awaited_have_names(name, num_nodes, hosts):
    pod = read_pod(environment(name))
    assert pod is not None
    assert pod.host_names(num_nodes) == hosts


def test_ray_sets_torchruns_variables():
    world = from_environ(environment("ray-train"))
    assert (world.rank, world.local_rank, world.world_size) == (3, 1, 4)


@pytest.mark.parametrize("name", ["blaunch-in-lsf", "lsf-job-script", "pbs-job-script", "skypilot"])
def test_a_job_alone_is_a_world_of_one(name):
    assert from_environ(environment(name)).world_size == 1


def test_the_hosts_of_a_job():
    lsf = read_batch_job(environment("blaunch-in-lsf"))
    assert (lsf.name, lsf.hosts) == ("LSF job 8899", ("hosta", "hostb"))
    slots = {"/var/spool/pbs/aux/123.pbs-server": "node1\nnode1\nnode2\n"}
    pbs = read_batch_job(environment("pbs-job-script"), read_file=slots.__getitem__)
    assert (pbs.name, pbs.hosts) == ("PBS job 123.pbs-server", ("node1", "node2"))
    assert read_batch_job(environment("pbsdsh-task")).hosts == ()
    assert read_batch_job({}) is None


def test_every_recording_says_where_it_comes_from_and_is_read():
    names = [path.stem for path in FOLDER.glob("*.env")]
    assert len(names) > 15
    assert all(environment(name) for name in names)
    started_by_mpi = {name for name in names if read_mpi_task(environment(name))}
    assert started_by_mpi == {name for name in names if "mpi" in name and "pmi2" not in name} | {
        "jsrun-in-lsf",
        "pals-in-pbs",
    }

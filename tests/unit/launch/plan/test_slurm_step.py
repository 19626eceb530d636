"""What a run takes from Slurm: environments as sbatch, srun, salloc and editors leave them (recorded with 22.05)."""

import pytest

from paceline.errors import UsageError
from paceline.launch.plan import slurm_step
from paceline.launch.plan.parsing import parse

BATCH = {  # the job script of: sbatch --nodes=2 --ntasks-per-node=1 --gres=gpu:2 --cpus-per-task=8
    "SLURM_JOB_ID": "12",
    "SLURM_JOBID": "12",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_CPUS_ON_NODE": "8",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_GPUS": "0,1",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURMD_NODENAME": "node1",
}


def step(nodelist="node[1-2]", tasks="1(x2)", node=0, task=None, number="0", gpus="0,1", **more):
    """A task of ``srun`` in that job."""
    values = {
        "SLURM_STEP_ID": number,
        "SLURM_STEP_NODELIST": nodelist,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(node if task is None else task),
        **({"SLURM_STEP_GPUS": gpus} if gpus else {}),
    }
    return {**BATCH, **values, **more}


SALLOC = {name: BATCH[name] for name in BATCH if name.startswith("SLURM_JOB")} | {
    "SLURM_NNODES": "2"
}
ONE_NODE = {**BATCH, "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "node1", "SLURM_NTASKS": "4"}


def choose(environ, program=("train.py",), **requested):
    return slurm_step.choose_defaults(
        environ,
        requested=requested,
        program=list(program),
        address_of=lambda name: f"{name}.cluster",
        in_terminal="SLURM_PTY_PORT" in environ and "piped" not in environ,
    )


def refused(environ, program=("train.py",), **given):
    with pytest.raises(UsageError) as caught:
        choose(environ, program, **given)
    return caught.value


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, ""),
        (ONE_NODE, "Slurm job 12 seen, nothing taken from it"),
        ({**SALLOC, "SLURM_JOB_NUM_NODES": "1"}, "Slurm job 12 seen, nothing taken from it"),
        (step("node1", "1"), "Slurm step 12.0, one of the job's 2 nodes"),
        (step("node1", "1", SLURM_JOB_NUM_NODES="1"), "Slurm step 12.0"),
        # a terminal: srun --pty bash, on one node of a job of one
        (
            step("node1", "1", SLURM_PTY_PORT="4000", SLURM_JOB_NUM_NODES="1"),
            "nothing taken from it",
        ),
        # the interactive step of salloc, with LaunchParameters=use_interactive_step
        (step("node1", "1", number="4294967290", SLURM_JOB_NUM_NODES="1"), "nothing taken from it"),
        (step("node1", "1", number="batch", SLURM_JOB_NUM_NODES="1"), "nothing taken from it"),
    ],
)
def test_on_one_node_nothing_is_taken(environ, said):
    defaults = choose(environ)
    assert defaults.values == {}
    assert said in defaults.source
    assert not defaults.shared_output


@pytest.mark.parametrize("node", [0, 1])
def test_one_task_per_node(node):
    defaults = choose(step(node=node))
    assert defaults.values["nnodes"] == "2"
    assert defaults.values["node_rank"] == str(node)
    assert defaults.values["master_addr"] == "node1.cluster"
    assert 15000 <= int(defaults.values["master_port"]) < 32000
    assert defaults.source == "Slurm step 12.0: node[1-2], head node1"
    assert defaults.num_gpus == 2
    assert defaults.shared_output


def test_all_nodes_take_the_same_head_and_port():
    seen = {
        tuple(choose(step("rack[1,3]node[2-5]", "1(x8)", node)).values.items())[2:]
        for node in range(8)
    }
    assert len(seen) == 1
    assert dict(*seen)["master_addr"] == "rack1node2.cluster"


def test_srun_in_a_terminal_of_a_step_starts_tasks():
    defaults = choose({**step(SLURM_PTY_PORT="4000"), "piped": ""})
    assert defaults.values["nnodes"] == "2"


def test_options_are_whole_with_what_is_taken():
    defaults = choose(step(node=1))
    asked = parse(
        "train.py", (), typed={"nproc_per_node": "2"}, inherited={}, starter_defaults=defaults
    )
    assert (asked.max_nodes, asked.node_rank, asked.master_addr) == (2, 1, "node1.cluster")
    assert asked.typed == (("nproc_per_node", "2"),)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"standalone": True}, {}),
        ({"rdzv_endpoint": "head:4000"}, {"nnodes": "2", "node_rank": "1"}),
        ({"master_addr": "10.0.0.1", "master_port": "4000"}, {"nnodes": "2", "node_rank": "1"}),
        (
            {"master_port": "4000"},
            {
                "nnodes": "2",
                "node_rank": "1",
                "master_addr": "node1.cluster",
                "master_port": "4000",
            },
        ),
        ({"rdzv_backend": "c10d", "rdzv_endpoint": "head:4000"}, {"nnodes": "2"}),
        (
            {"rdzv_backend": "c10d", "master_port": "4000"},
            {"nnodes": "2", "rdzv_endpoint": "node1.cluster:4000"},
        ),
        ({"no_slurm": True}, {}),
        ({"nnodes": "1:4", "rdzv_backend": "c10d", "rdzv_endpoint": "h:1"}, {"nnodes": "2"}),
    ],
)
def test_what_the_user_says_wins(given, values):
    assert choose(step(node=1), **given).values == values


def test_an_address_of_ipv6_in_an_endpoint():
    defaults = slurm_step.choose_defaults(
        step(),
        requested={"rdzv_backend": "c10d", "master_port": "4"},
        program=["t.py"],
        address_of=lambda _: "fd00::1",
    )
    assert defaults.values["rdzv_endpoint"] == "[fd00::1]:4"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"master_addr": "node1", "nnodes": "2"}, {"master_addr": "node1.cluster", "nnodes": "2"}),
        ({"rdzv_endpoint": "node1:29500"}, {"rdzv_endpoint": "node1.cluster:29500"}),
        ({"rdzv_endpoint": "node1"}, {"rdzv_endpoint": "node1.cluster"}),
        ({"rdzv_endpoint": "[fe80::1]:29500"}, {"rdzv_endpoint": "[fe80::1]:29500"}),
        ({"rdzv_endpoint": "fe80::1"}, {"rdzv_endpoint": "fe80::1"}),
        ({"master_addr": "node1", "no_slurm": True}, {"master_addr": "node1", "no_slurm": True}),
    ],
)
def test_the_head_of_a_job_script_is_reached_as_slurm_reaches_it(given, expected):
    assert (
        slurm_step.reachable(step(), given, address_of=lambda name: f"{name}.cluster") == expected
    )
    assert slurm_step.reachable({}, given, address_of=lambda name: f"{name}.cluster") == given


@pytest.mark.parametrize("nproc", ["2", "1", "", "gpu"])
def test_several_launchers_on_a_node(nproc):
    error = refused(step(tasks="2(x2)", task=0), nproc_per_node=nproc)
    assert error.finding.name == "double-launch"
    assert "Slurm started 2 tasks on a node" in error.finding.what
    assert "#SBATCH --ntasks-per-node=1" in error.finding.fix
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 paceline run" in error.finding.fix
    if nproc.isdigit():
        assert f"would start {nproc} rank" in error.finding.what
    assert not error.reported_elsewhere


def test_a_task_for_each_gpu_as_a_node_of_its_own():
    defaults = choose(
        step(tasks="2(x2)", node=1, task=3), nnodes="4", node_rank="3", rdzv_endpoint="head:4000"
    )
    assert not defaults.values.get("master_addr")


@pytest.mark.parametrize(
    "environ", [BATCH, SALLOC, step(SLURM_PTY_PORT="4000"), step("node1", "1", number="batch")]
)
@pytest.mark.parametrize(
    "given", [{}, {"nnodes": "2", "node_rank": "0"}, {"nnodes": "2", "rdzv_endpoint": "h:1"}]
)
def test_a_job_of_two_nodes_without_srun(environ, given):
    finding = refused(
        environ, ("train file.py", "--lr", "0.1"), **given, nproc_per_node="2"
    ).finding
    assert finding.name == "missing-srun"
    overlap = "--overlap " if "SLURM_PTY_PORT" in environ else ""
    assert finding.fix == (
        f"srun --nodes=2 --ntasks=2 --ntasks-per-node=1 {overlap}--cpus-per-task=8 "
        "paceline run --nproc-per-node 2 'train file.py' --lr 0.1"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nnodes": "1"}, "one is used"),
        ({"standalone": True}, "one is used"),
        ({"no_slurm": True}, "--no-slurm"),
        ({"nnodes": "2", "node_rank": "1"}, "--node-rank"),
    ],
)
def test_a_job_of_two_nodes_where_one_is_meant(given, said):
    assert said in choose(BATCH, **given).source


def test_numbers_that_are_not_slurms():
    error = refused(step(), nnodes="4")
    assert error.finding.name == "torchrun-nnodes-mismatch"
    assert "--nnodes 4" in error.finding.what
    assert "2 nodes" in error.finding.what
    finding = refused(step(node=1), node_rank="0", nnodes="2").finding
    assert finding.name == "node-rank-on-batch-host"
    assert "node2" in finding.where


@pytest.mark.parametrize("nnodes", ["2", "1:4", "2:2", "two"])
def test_numbers_that_are(nnodes):
    assert choose(
        step(), nnodes=nnodes, node_rank="0"
    ).shared_output  # what is no number, parse refuses


@pytest.mark.parametrize(
    "broken",
    [
        step(node=2),
        step("node[1-2", "1(x2)"),
        step(tasks="1"),
        step(tasks="x"),
        {name: value for name, value in step().items() if name != "SLURM_NODEID"},
    ],
)
def test_variables_that_do_not_fit_each_other(broken):
    finding = refused(broken).finding
    assert finding.name == "rank-env-missing"
    assert "--no-slurm" in finding.fix
    assert choose(broken, no_slurm=True).values == {}


@pytest.mark.parametrize(
    ("environ", "cpus"),
    [
        ({}, None),
        (BATCH, None),
        (step(), 8),
        (step(SLURM_CPUS_PER_TASK=""), None),
        (step(SLURM_CPUS_PER_TASK="x"), None),
    ],
)
def test_cpus_of_a_task(environ, cpus):
    assert slurm_step.granted_cpus(environ) == cpus


def test_check_only_without_a_script():
    assert refused(BATCH, (), check_only=True).finding.fix.endswith("paceline run --check-only")


@pytest.mark.parametrize(("usable", "warned"), [(1, True), (8, False), (64, False)])
def test_cpus_that_srun_has_dropped(usable, warned):
    found = slurm_step.dropped_cpus(step(), usable)
    assert (found is not None) == warned
    if found is not None:
        assert found.name == "cpus-too-few"
        assert "srun --cpus-per-task=8" in found.fix


def test_in_a_job_script_nothing_was_dropped():
    assert slurm_step.dropped_cpus(BATCH, 1) is None

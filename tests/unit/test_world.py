"""Who started us: variables in, World out."""

import pytest

from paceline.errors import UsageError
from paceline.world import World, expand_counts, expand_nodelist, from_environ
from refusals import refusal

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
JOB_ONLY = {
    "SLURM_JOB_ID": "123",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_NODELIST": "node[1-2]",
}


def without(variables, name):
    return {key: value for key, value in variables.items() if key != name}


def test_nothing_is_a_world_of_one():
    assert from_environ({}) == World()
    assert (World().rank, World().world_size, World().launcher) == (0, 1, "none")


def test_torchrun():
    world = from_environ(TORCHRUN)
    assert (world.rank, world.world_size, world.local_rank, world.local_world_size) == (5, 8, 1, 4)
    assert (world.node_rank, world.num_nodes) == (1, 2)
    assert (world.master_addr, world.master_port) == ("10.0.0.1", 29500)
    assert world.launcher == "torchrun"
    assert "WORLD_SIZE=8" in world.reason


def test_our_own_launcher_leaves_a_token():
    world = from_environ({**TORCHRUN, "PACELINE_RUN_TOKEN": "f00"})
    assert world.launcher == "paceline"
    assert "paceline run" in world.reason


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_half_of_torchruns_variables(name):
    finding = refusal(UsageError, from_environ, without(TORCHRUN, name))
    assert finding.name == "rank-env-missing"
    assert name in finding.what


def test_slurm_step():
    world = from_environ(SLURM)
    assert (world.rank, world.world_size, world.local_rank, world.local_world_size) == (4, 5, 1, 2)
    assert (world.node_rank, world.num_nodes) == (1, 2)
    assert world.master_addr == "node07"
    assert world.launcher == "slurm"
    assert world.reason == "Slurm step 123.0 with 5 tasks on 2 nodes"


def test_all_tasks_of_a_step_agree_on_a_port_and_steps_differ():
    def port(**changes):
        return from_environ({**SLURM, **changes}).master_port

    assert port() == port(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
    assert len({port(), port(SLURM_STEP_ID="1"), port(SLURM_JOB_ID="124")}) == 3
    assert all(15000 <= port(SLURM_JOB_ID=str(job)) < 32768 for job in range(1, 10**7, 99991))


def test_a_chosen_master_is_kept():
    world = from_environ({**SLURM, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "4000"})
    assert (world.master_addr, world.master_port) == ("10.0.0.9", 4000)


@pytest.mark.parametrize(
    "variables",
    [JOB_ONLY, {**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, without(SLURM, "SLURM_STEP_ID")],
    ids=["salloc shell", "step of one task", "no step"],
)
def test_a_job_alone_is_a_world_of_one(variables):
    assert from_environ(variables) == World()


def test_a_terminal_in_a_step_is_a_world_of_one_and_what_srun_starts_from_it_is_not():
    variables = {**SLURM, "SLURM_PTY_PORT": "40000"}
    assert from_environ(variables, in_terminal=True) == World()
    assert from_environ(variables).world_size == 5


def test_torchrun_inside_a_slurm_step_wins():
    assert from_environ({**SLURM, **TORCHRUN}).launcher == "torchrun"


def test_without_counts_per_node_tasks_are_taken_to_be_even():
    variables = without({**SLURM, "SLURM_STEP_NUM_TASKS": "6"}, "SLURM_STEP_TASKS_PER_NODE")
    assert from_environ(variables).local_world_size == 3


def test_a_port_in_a_slurm_step_that_is_not_a_number_is_named():
    finding = refusal(UsageError, from_environ, {**SLURM, "MASTER_PORT": "tcp://10.0.0.1"})
    assert finding.what == "MASTER_PORT=tcp://10.0.0.1 is not a whole number"


def test_override_none():
    assert from_environ({**TORCHRUN, **SLURM, "PACELINE_LAUNCHER": "none"}).world_size == 1


def test_override_slurm():
    assert from_environ({**TORCHRUN, **SLURM, "PACELINE_LAUNCHER": "slurm"}).launcher == "slurm"


def test_override_torchrun():
    world = from_environ({**TORCHRUN, **SLURM, "PACELINE_LAUNCHER": "torchrun"})
    assert (world.launcher, world.rank) == ("torchrun", 5)
    assert "PACELINE_LAUNCHER=torchrun" in world.reason


@pytest.mark.parametrize("chosen", ["torchrun", "paceline", "slurm"])
def test_override_without_the_variables(chosen):
    finding = refusal(UsageError, from_environ, {"PACELINE_LAUNCHER": chosen})
    assert finding.name == "rank-env-missing"


def test_override_unknown():
    finding = refusal(UsageError, from_environ, {"PACELINE_LAUNCHER": "slrum"})
    assert finding.name == "option-invalid"
    assert finding.fix == "export PACELINE_LAUNCHER=slurm"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1,3,5-6]", ["n1", "n3", "n5", "n6"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("login,gpu[1-2],cpu[3]", ["login", "gpu1", "gpu2", "cpu3"]),
        (
            "rack[1,3]node[2-5]",
            [f"rack{rack}node{node}" for rack in (1, 3) for node in (2, 3, 4, 5)],
        ),
        ("n[01-02]-[1-4]", [f"n{a}-{b}" for a in ("01", "02") for b in (1, 2, 3, 4)]),
        ("a[1-2],b[1-2]c[1-2]", ["a1", "a2", "b1c1", "b1c2", "b2c1", "b2c2"]),
    ],
)
def test_nodelist(text, names):
    assert expand_nodelist(text) == names


@pytest.mark.parametrize("text", ["n[1-2", "n[a-b]", "n[]", "n[1-]x"])
def test_bad_nodelist(text):
    with pytest.raises(ValueError, match="node list"):
        expand_nodelist(text)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", []),
        ("4", [4]),
        ("2(x3)", [2, 2, 2]),
        ("2(x3),1", [2, 2, 2, 1]),
        ("1,2(x2),3", [1, 2, 2, 3]),
    ],
)
def test_counts(text, counts):
    assert expand_counts(text) == counts


@pytest.mark.parametrize("text", ["x", "2(x)", "2x3", "2(3)"])
def test_bad_counts(text):
    with pytest.raises(ValueError, match="counts per node"):
        expand_counts(text)

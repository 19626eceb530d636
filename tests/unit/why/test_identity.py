"""Which rank a process is, from what its launcher has set."""

from __future__ import annotations

import pytest

from paceline.why import identity
from paceline.why.identity import RankIdentity
from paceline.why.processes import choose, script_of

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
}
RANKS = {
    "torchrun": (TORCHRUN, ("RANK", 3, 4, 1, 2)),
    "torchrun in a Slurm step": ({**STEP, **TORCHRUN}, ("RANK", 3, 4, 1, 2)),
    "deepspeed, by hand": (
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        ("RANK", 0, 2, 0, 0),
    ),
    "srun python": (STEP, ("SLURM_PROCID", 1, 2, 1, 0)),
    "mpirun": (
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
        ("OMPI_COMM_WORLD_RANK", 0, 2, -1, 0),
    ),
}
NOT_RANKS = {
    "nothing": {},
    "a batch script, which has a rank that means nothing": {
        key: STEP[key] for key in STEP if key != "SLURM_STEP_ID"
    },
    "a rank without a world": {"RANK": "0"},
    "a rank outside of the world": {"RANK": "2", "WORLD_SIZE": "2"},
    "no number": {"RANK": "first", "WORLD_SIZE": "2"},
    "a long number": {"RANK": "0", "WORLD_SIZE": "9" * 5000},
}


@pytest.mark.parametrize(("environ", "expected"), RANKS.values(), ids=RANKS)
def test_a_launchers_variables_say_the_rank(environ, expected):
    told = identity.read(environ)
    assert (
        told.family,
        told.rank,
        told.world_size,
        told.local_rank,
        told.local_world_size,
    ) == expected


@pytest.mark.parametrize("environ", NOT_RANKS.values(), ids=NOT_RANKS)
def test_what_is_no_rank_is_none(environ):
    assert identity.read(environ) is None


def test_ranks_of_one_run_on_two_hosts_belong_together_and_those_of_another_do_not():
    other_rank = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}
    assert identity.read(TORCHRUN).run == identity.read(other_rank).run
    assert identity.read(TORCHRUN).run != identity.read({**TORCHRUN, "MASTER_PORT": "29501"}).run
    assert identity.read(STEP).run != identity.read({**STEP, "SLURM_STEP_ID": "1"}).run


def told(family, rank):
    return RankIdentity(family, rank, 2)


def test_children_of_a_rank_and_launchers_in_a_step_are_no_ranks():
    """1 is a torchrun in a Slurm step, 2 and 3 its ranks, 4 a DataLoader worker; 9 a shell between them."""
    named = {1: told("SLURM_PROCID", 0), 2: told("RANK", 0), 3: told("RANK", 1), 4: told("RANK", 0)}
    assert choose(named, {1: 0, 2: 9, 9: 1, 3: 1, 4: 2}) == [2, 3]


def test_tasks_of_a_step_are_ranks_where_nobody_below_says_otherwise():
    named = {1: told("SLURM_PROCID", 0), 2: told("SLURM_PROCID", 1), 3: told("SLURM_PROCID", 1)}
    assert choose(named, {1: 0, 2: 0, 3: 2}) == [1, 2]


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["python3", "-u", "train.py", "--lr", "0.1"], "train.py --lr 0.1"),
        (["python", "-X", "dev", "-m", "pkg.train"], "-m pkg.train"),
        (["python"], ""),
    ],
)
def test_the_script_is_what_python_runs(words, script):
    assert script_of(words) == script

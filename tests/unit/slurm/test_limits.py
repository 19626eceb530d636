"""What a cluster cannot give, and what would do."""

from __future__ import annotations

import pytest

from fake_slurm import NODES, PARTITIONS
from paceline.errors import UsageError
from paceline.slurm import cluster, limits, request
from paceline.slurm.profile import Profile

CLUSTER = cluster.read(PARTITIONS, NODES, "physics|\nbiology|\n")


def judge(told=CLUSTER, **typed):
    return limits.judge(request.parse("train.py", (), typed=typed, profile=Profile()), told)


@pytest.mark.parametrize(
    "typed",
    [
        {},
        {"gpus_per_node": "8", "partition": "gpu"},
        {"gpus_per_node": "a100:4", "nodes": "4"},
        {"nodes": "6", "gpus_per_node": "4"},
        {"nodes": "2-99", "partition": "short"},
        {"time": "2-0"},
        {"time": "unlimited", "partition": "cpu"},
        {"mem": "500G"},
        {"mem": "0"},
        {"cpus_per_node": "128"},
        {"partition": "short,big", "time": "3-0"},  # one of them will do
        {"account": "physics", "partition": "cpu"},
        {"account": "PHYSICS"},
        {"time": "9-0", "sbatch": ["--qos=long"]},
    ],
    ids=str,
)
def test_what_is_possible_is_not_spoken_of(typed):
    assert judge(**typed) == []


IMPOSSIBLE = [
    (
        {"gpus_per_node": "9"},
        "no node of partition gpu has 9 GPUs; the most is 8",
        "--gpus-per-node 8",
    ),
    (
        {"gpus_per_node": "8", "partition": "short"},
        "no node of partition short has 8 GPUs; the most is 4",
        "--nodes 2 --gpus-per-node 4, or --partition gpu",
    ),
    (
        {"gpus_per_node": "8", "nodes": "2", "partition": "short"},
        "no node of partition short has 8 GPUs; the most is 4",
        "--nodes 2 --gpus-per-node 4, or --partition gpu",  # it lets a job have two nodes
    ),
    (
        {"gpus_per_node": "a100:8"},
        "no node of partition gpu has 8 a100 GPUs; the most is 4",
        "--gpus-per-node a100:4",
    ),
    ({"gpus_per_node": "a10:1"}, "partition gpu has no GPU a10", "--gpus-per-node a100:1"),
    ({"gpus_per_node": "1", "partition": "cpu"}, "has 1 GPU; there are none", "--partition gpu"),
    ({"nodes": "7"}, "partition gpu has 6 nodes, not 7", "--nodes 6, or --partition cpu"),
    (
        {"nodes": "3", "gpus_per_node": "8"},
        "has 2 nodes with what is asked of each",
        "--nodes 2, or --partition big",
    ),
    (
        {"nodes": "3", "partition": "short"},
        "a job in partition short has at most 2 nodes",
        "--nodes 2",
    ),
    (
        {"time": "3-0"},
        "the time limit of partition gpu is 2-00:00:00",
        "--time 2-00:00:00, or --partition cpu",
    ),
    ({"time": "unlimited"}, "the time limit of partition gpu is 2-00:00:00", "--time 2-00:00:00"),
    ({"mem": "2T"}, "has 2T of memory; the most is 500G", "--mem 500G"),
    ({"cpus_per_node": "129"}, "has 129 CPUs; the most is 128", "--cpus-per-node 128"),
    (
        {"gpus_per_node": "8", "cpus_per_gpu": "32"},
        "has 8 x 32 = 256 CPUs; the most is 128",
        "--cpus-per-gpu 16",
    ),
    ({"partition": "gup"}, "there is no partition gup", "--partition gpu"),
    ({"partition": "zzz", "nodes": "9"}, "there is no partition zzz", "--partition cpu"),
    ({"account": "fysics"}, "there is no account fysics", "--account physics"),
    (
        {"account": "biology", "partition": "big"},
        "partition big takes no jobs of account biology",
        "another --account",
    ),
]


@pytest.mark.parametrize(("typed", "what", "fix"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_what_is_impossible_is_told_with_what_would_do(typed, what, fix):
    (finding,) = judge(**typed)
    assert (finding.name, finding.severity) == ("slurm-request-impossible", "error")
    assert what in finding.what
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize(("typed", "what", "fix"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_nothing_is_impossible_where_slurm_does_not_answer(typed, what, fix):
    assert judge(cluster.read(None, None, None), **typed) == []


def test_an_account_that_a_partition_does_not_name_may_be_below_one_that_it_does():
    told = cluster.read(PARTITIONS, NODES, "physics|\nquarks|\n")
    (finding,) = judge(told, account="quarks", partition="cpu")
    assert (finding.severity, finding.fix) == ("warning", "--account biology")


def test_without_a_default_partition_nothing_is_judged():
    assert (
        judge(
            cluster.read(PARTITIONS.replace("Default=YES", "Default=NO"), NODES), gpus_per_node="99"
        )
        == []
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("64G", 65536), ("64g", 65536), ("2T", 2097152), ("500", 500), ("500M", 500), ("2048K", 2)],
)
def test_memory_is_counted_as_sbatch_counts_it(text, size):
    assert limits.megabytes(text) == size


def with_cpus(told=CLUSTER, **typed):
    return limits.with_cpus(request.parse("train.py", (), typed=typed, profile=Profile()), told)


SHARES = [
    ({"gpus_per_node": "2"}, "", 32),  # of 64 CPUs for 4 GPUs, and of 128 for 8
    ({"gpus_per_node": "h100:8"}, "", 128),
    ({"gpus_per_node": "1"}, "gpu|4|40|1|gpu:3|2", 12),  # whole cores, of two threads each
    ({"gpus_per_node": "4"}, "gpu|4|2|1|gpu:8", 1),
    (
        {"gpus_per_node": "1"},
        "gpu|4|64|1|gpu:4\ngpu|1|32|1|gpu:4",
        8,
    ),  # it may get the smaller node
    ({"gpus_per_node": "4"}, "gpu|4|64|1|gpu:4\ngpu|1|8|1|gpu:2", 64),  # but one with as many GPUs
    ({"gpus_per_node": "1", "sbatch": ["--exclusive"]}, "", 64),
    ({"gpus_per_node": "1", "partition": "gpu,big"}, "", 16),
]


@pytest.mark.parametrize(("typed", "nodes", "cpus"), SHARES, ids=str)
def test_gpus_bring_their_share_of_the_cpus(typed, nodes, cpus):
    assert with_cpus(cluster.read(PARTITIONS, nodes or NODES), **typed).cpus == cpus


@pytest.mark.parametrize(
    ("settings", "cpus", "why"),
    [
        ("MaxCPUsPerNode=32", 8, "in its 32 CPUs"),
        ("JobDefaults=DefCpuPerGPU=6", 6, "6 for each GPU, as partition gpu has it"),
        ("OverSubscribe=EXCLUSIVE", 64, "which the job has to itself"),
        (
            "MaxCPUsPerNode=UNLIMITED OverSubscribe=NO JobDefaults=(null)",
            16,
            "1 of a node's 4 GPUs in its 64 CPUs",
        ),
    ],
)
def test_a_partition_has_its_own_rules_for_cpus(settings, cpus, why):
    told = cluster.read(
        f"PartitionName=gpu Default=YES {settings} State=UP", "gpu|4|64|1|gpu:a100:4"
    )
    request = with_cpus(told, gpus_per_node="1")
    assert request.cpus == cpus
    assert why in request.cpus_why


@pytest.mark.parametrize(
    ("told", "typed"),
    [
        (cluster.read(None, None), {}),
        (CLUSTER, {"gpus_per_node": "9"}),
        (CLUSTER, {"partition": "cpu"}),
    ],
    ids=["silent", "too many", "without GPUs"],
)
def test_the_cpus_of_a_gpu_that_is_not_there_are_not_guessed(told, typed):
    with pytest.raises(UsageError) as caught:
        with_cpus(told, **{"gpus_per_node": "1", **typed})
    assert (caught.value.finding.name, caught.value.exit_status) == ("cpus-per-task-missing", 2)


@pytest.mark.parametrize(
    ("typed", "lacks"),
    [
        ({}, False),
        ({"gpus_per_node": "0"}, False),
        ({"gpus_per_node": "1"}, True),
        ({"gpus_per_node": "1", "cpus_per_gpu": "2"}, False),
        ({"gpus_per_node": "1", "cpus_per_node": "2"}, False),
        ({"gpus_per_node": "1", "sbatch": ["--mincpus=8"]}, False),
    ],
    ids=str,
)
def test_only_gpus_without_cpus_lack_them(typed, lacks):
    assert limits.lacks_cpus(request.parse("train.py", (), typed=typed, profile=Profile())) is lacks


def test_ranks_without_gpus_have_a_cpu_each():
    asked = request.parse("train.py", (), typed={"nproc_per_node": "4"}, profile=Profile())
    assert (asked.cpus, asked.cpus_why) == (4, "one for each rank")

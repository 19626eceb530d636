"""What scontrol and sinfo print, as facts."""

from __future__ import annotations

import pytest

from fake_slurm import NODES, PARTITIONS
from paceline.slurm import cluster
from paceline.slurm.cluster import NodeKind

# As Slurm 22.05 prints it; MaxTime=1:00 etc. are of other versions.
REAL = (
    "PartitionName=main AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=01:00:00 "
    "MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=node[1-2] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO "
    "ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=8 TotalNodes=2 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED "
    "TRES=cpu=8,mem=8000M,node=2,billing=8\n"
)


def test_a_partition_is_read_as_slurm_prints_it():
    (main,) = cluster.read(REAL, "main|2|4|4000|gpu:2\n").partitions
    assert (main.name, main.default, main.up, main.max_time_s, main.max_nodes) == (
        "main",
        True,
        True,
        3600,
        None,
    )
    assert main.allow_accounts == main.deny_accounts == ()
    assert main.kinds == (NodeKind(2, 4, 4000, {"": 2}),)
    assert main.num_nodes == 2


def test_several_kinds_of_nodes_are_told_apart():
    told = cluster.read(PARTITIONS, NODES)
    gpu, short, cpu, big = told.partitions
    assert [(kind.count, dict(kind.gpus)) for kind in gpu.kinds] == [
        (4, {"a100": 4}),
        (2, {"h100": 8}),
    ]
    assert (gpu.max_time_s, short.max_nodes, cpu.max_time_s) == (172800, 2, None)
    assert cpu.allow_accounts == ("biology", "physics") and big.deny_accounts == ("biology",)
    assert told.default is gpu and told.find("big") is big and told.find("nope") is None


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("", {}),
        ("gpu:2", {"": 2}),
        ("gpu", {"": 1}),
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:a100:4(S:0,1),nvme:1", {"a100": 4}),
        ("gpu:a100:2(S:0),gpu:v100:2(S:1)", {"a100": 2, "v100": 2}),
        ("gpu:1g.5gb:7,shard:28", {"1g.5gb": 7}),
        ("nvme:gpu:1", {}),
    ],
)
def test_gpus_are_counted_by_kind(gres, gpus):
    assert cluster.read_gpus(gres) == gpus


def test_what_does_not_answer_is_not_known():
    told = cluster.read(None, None, None)
    assert (told.partitions, told.accounts, told.default) == ((), None, None)
    assert cluster.read(REAL, None).partitions[0].kinds == ()
    assert cluster.read(None, NODES).partitions == ()


@pytest.mark.parametrize("text", ["", "garbage\n", "a|b|c|d|e\n", "gpu|x|64|1|gpu:2\n", "\0\n"])
def test_garbage_is_passed_over(text):
    assert cluster.read(REAL, text).partitions[0].kinds == ()


def test_accounts_are_listed_once_and_none_is_not_an_empty_list():
    assert cluster.read(None, None, "physics|\nphysics|gpu\nbiology|\n").accounts == (
        "physics",
        "biology",
    )
    assert cluster.read(None, None, "").accounts is None  # a cluster that keeps none

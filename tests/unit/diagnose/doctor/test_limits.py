"""What is said of limits, disks, interfaces, and loaders that run now."""

from dataclasses import replace

import pytest

from paceline.diagnose.doctor.checks.judge import judge
from paceline.diagnose.doctor.facts import Disk, LoaderGroup
from paceline.machine.interfaces import Interface
from paceline.machine.ulimits import UNLIMITED
from unit.diagnose.doctor.machines import found, hosted, limited, machine

GIB = 1 << 30
NO_P2P = {"NCCL_P2P_DISABLE": "1"}  # two sockets and nothing else to say


def box(**limits):
    return limited(machine("two-sockets-2", NO_P2P), **limits)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20}, ["warning nccl-shm-too-small"]),
        ({"shm_bytes": 8 * GIB, "shm_free_bytes": 1 << 20}, ["warning nccl-shm-too-small"]),
        ({"shm_bytes": 8 * GIB, "shm_free_bytes": 7 * GIB}, []),
        ({"shm_bytes": None, "shm_free_bytes": None}, []),
        ({"open_files": 1024, "open_files_hard": 1 << 20}, ["hint too-many-open-files"]),
        ({"open_files": 256, "open_files_hard": 256}, ["warning too-many-open-files"]),
        ({"open_files": 65_536}, []),
        ({"open_files": UNLIMITED}, []),
        ({"stack_bytes": UNLIMITED}, []),
        ({"memlock_bytes": 65_536}, []),
    ],
    ids=str,
)
def test_limits(limits, expected):
    assert found(judge(box(**limits))) == expected


@pytest.mark.parametrize(
    ("nccl", "expected"), [("2.27.5", ["warning stack-unlimited"]), ("2.28.9", []), ("", [])]
)
def test_a_stack_without_limit(nccl, expected):
    facts = box(stack_bytes=UNLIMITED)
    assert found(judge(replace(facts, software=replace(facts.software, nccl=nccl)))) == expected


def test_shared_memory_without_gpus_is_the_loaders():
    facts = hosted(
        limited(machine("no-gpu"), shm_bytes=64 << 20, shm_free_bytes=64 << 20), container="docker"
    )
    (finding,) = judge(facts)
    assert finding.name == "dataloader-shm-too-small"
    assert "64 MiB" in finding.what
    assert "--shm-size" in finding.fix


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ("", "remount"),
        ("docker", "docker run --shm-size"),
        ("podman", "podman run --shm-size"),
        ("kubernetes", "emptyDir"),
        ("apptainer", "--containall"),
    ],
)
def test_shared_memory_is_widened_where_it_was_limited(container, says):
    (finding,) = judge(hosted(box(shm_bytes=64 << 20), container=container))
    assert says in finding.fix


@pytest.mark.parametrize(
    ("container", "says"),
    [("podman", "podman run --cpus=16"), ("kubernetes", "cpu: 16"), ("apptainer", "taskset")],
)
def test_cpus_are_given_where_they_were_limited(container, says):
    facts = box(cpus=2, affinity="0,16", total_cpus=64, cpus_reason="cgroup quota of 2 CPUs")
    (finding,) = judge(hosted(facts, container=container))
    assert (finding.name, says in finding.fix) == ("cpu-starved", True)


def test_a_limit_that_can_be_raised_is_raised_by_the_user():
    assert judge(box(open_files=1024, open_files_hard=4096))[0].fix.startswith("ulimit -n 4096")
    assert "limits.conf" in judge(box(open_files=1024, open_files_hard=1024))[0].fix


@pytest.mark.parametrize(
    ("disk", "expected"),
    [
        (Disk("/runs", 100 * GIB, GIB // 2), ["warning disk-full"]),
        (Disk("/runs", 100 * GIB, 10 << 20), ["error disk-full"]),
        (Disk("/runs", 1000 * GIB, 10 * GIB), ["warning disk-full"]),
        (Disk("/runs", 100_000 * GIB, 1_000 * GIB), []),
        (Disk("/runs", 20 * GIB, 2 * GIB), []),
        (Disk("/tmp", 64 << 20, 60 << 20), []),  # small, not full
        (Disk("/tmp", 64 << 20, 6 << 20), ["error disk-full"]),
        (Disk("/runs", 100 * GIB, 50 * GIB, 0), ["error disk-full"]),
        (Disk("/runs", 100 * GIB, 50 * GIB, None), []),
    ],
    ids=str,
)
def test_disks(disk, expected):
    assert found(judge(machine("no-gpu", disks=(disk,)))) == expected


@pytest.mark.parametrize(
    ("workers", "cpus", "expected"), [(8, 2, ["warning workers-exceed-cpus"]), (2, 2, [])]
)
def test_loaders_that_run_now(workers, cpus, expected):
    assert (
        found(
            judge(machine("no-gpu", loaders=(LoaderGroup(77, "python train.py", workers, cpus),)))
        )
        == expected
    )


LO = Interface("lo", ("127.0.0.1",), loopback=True)
FAST = Interface("ens1f0", ("10.9.0.4",), mbit=100_000, driver="ice")
SLOW = Interface("eno1", ("10.1.0.4",), mbit=10_000, driver="ixgbe")
DOCKER = Interface("docker0", ("172.17.0.1",), virtual=True)
BRIDGE = Interface("br-4f1c2a77", ("172.18.0.1",), virtual=True)
LIBVIRT = Interface("virbr0", ("192.168.122.1",), virtual=True)
TUNNEL = Interface("tailscale0", ("100.64.0.7",), virtual=True)
IPOIB = Interface("ib0", ("10.30.0.4",), mbit=200_000, driver="mlx5_core")


@pytest.mark.parametrize(
    ("interfaces", "settings", "expected"),
    [
        ((LO, SLOW), {}, []),
        ((LO, SLOW, DOCKER, LIBVIRT), {}, []),
        ((LO, SLOW, BRIDGE), {}, ["hint interface-ambiguous"]),
        ((LO, SLOW, TUNNEL, DOCKER), {}, ["hint interface-ambiguous"]),
        ((LO, SLOW, BRIDGE), {"NCCL_SOCKET_IFNAME": "eno1"}, []),
        ((LO, BRIDGE, IPOIB), {"NCCL_SOCKET_NTHREADS": "4"}, []),
        ((LO, TUNNEL), {}, []),
        ((LO, SLOW, DOCKER), {"NCCL_SOCKET_IFNAME": "docker"}, ["hint interface-ambiguous"]),
        ((LO, SLOW, BRIDGE), {"NCCL_SOCKET_IFNAME": "^docker"}, []),
        ((LO, FAST), {}, ["hint socket-threads-low"]),
        ((LO, FAST), {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}, []),
        ((LO, replace(FAST, driver="gve")), {}, []),
        ((LO, FAST, SLOW), {"NCCL_SOCKET_IFNAME": "eno"}, []),
        ((LO, SLOW), {"NCCL_SOCKET_IFNAME": "eth"}, ["error interface-missing-on-node"]),
        ((LO, SLOW), {"GLOO_SOCKET_IFNAME": "eno"}, ["error interface-missing-on-node"]),
        ((), {"NCCL_SOCKET_IFNAME": "eth"}, []),
    ],
    ids=str,
)
def test_interfaces(interfaces, settings, expected):
    facts = machine("two-sockets-2", {**NO_P2P, **settings}, interfaces=interfaces)
    assert [each for each in found(judge(facts)) if "variable" not in each] == expected


def test_a_setting_of_nccl_matters_less_without_gpus():
    facts = machine("no-gpu", {"NCCL_SOCKET_IFNAME": "bond7"})
    assert found(judge(facts))[:1] == ["warning interface-missing-on-node"]

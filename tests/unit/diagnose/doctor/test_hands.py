"""The other hands: the kernel's files as trees, its log as text, and one look at this very machine."""

import json
import os
import struct
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from paceline.diagnose.doctor import examine
from paceline.diagnose.doctor.checks.judge import judge
from paceline.diagnose.doctor.collectors import gather, gpus, host, network, peers
from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.facts_gpu import Gpu, GpuProcess
from paceline.diagnose.doctor.report import DoctorReport
from paceline.errors import Finding
from recorded import environment


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# This machine
def test_this_machine_is_examined_quickly_and_without_harm():
    begin = time.monotonic()
    report = examine()
    assert time.monotonic() - begin < (30 if report.facts.gpus else 10)
    assert report.facts.limits.cpus >= 1
    assert report.facts.software.torch
    assert Facts.from_json(json.loads(json.dumps(report.to_json()))["facts"]) == report.facts
    assert judge(report.facts) == report.findings
    assert report.render()
    assert report.exit_status == int(any(each.severity == "error" for each in report.findings))


def test_the_exit_status_is_that_of_errors_alone():
    hint = Finding("persistence-off", "no", severity="hint")
    assert DoctorReport([hint], Facts()).exit_status == 0
    assert DoctorReport([hint, replace(hint, severity="error")], Facts()).exit_status == 1


def test_facts_of_nothing_can_be_judged_and_printed():
    report = DoctorReport(judge(Facts()), Facts())
    assert report.findings == []
    assert "No findings." in report.render()


def test_what_another_version_writes_is_left_out():
    values = {"host": {"name": "a", "moon": 1}, "tides": [], "gpus": [{"index": 0, "wings": 2}]}
    facts = Facts.from_json(values)
    assert (facts.host.name, facts.gpus) == ("a", (Gpu(0),))


@pytest.mark.parametrize(
    "values",
    [
        {"host": []},
        {"gpus": {}},
        {"gpus": [{}]},
        {"gpus": [{"index": "0"}]},
        {"gpus": [{"index": 0, "mig": 1}]},
        {"settings": ["a"]},
        {"disks": [{"path": "/"}]},
        [],
    ],
    ids=str,
)
def test_what_are_no_facts_is_refused(values):
    with pytest.raises(ValueError, match="Facts"):
        Facts.from_json(values)


def test_cpus_are_written_as_the_kernel_does(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 7, 9, 8})
    assert host.gather_limits().affinity == "0-3,7-9"


# PCI
def config(*capabilities):
    """A configuration space with extended capabilities: ``(number, control register)``."""
    space = bytearray(4096)
    for place, (number, control) in enumerate(capabilities):
        offset = 0x100 + 0x40 * place
        following = offset + 0x40 if place + 1 < len(capabilities) else 0
        struct.pack_into("<I", space, offset, following << 20 | 1 << 16 | number)
        struct.pack_into("<H", space, offset + 6, control)
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "control"),
    [
        (config((0x0001, 0), (0x000D, 0x1D)), 0x1D),
        (config((0x000D, 0)), 0),
        (config((0x0001, 0)), None),
        (config(), None),
        (config((0x000D, 0x1D))[:64], None),
        (b"", None),
        (b"\xff" * 4096, None),
        (bytes(0x100) + struct.pack("<I", 0x100 << 20 | 1) + bytes(3836), None),  # a circle
    ],
)
def test_the_acs_control_register(space, control):
    assert peers.acs_control(space) == control


def device_tree(root, space):
    """Two GPUs below a switch, as links into the tree of devices."""
    devices = root / "devices"
    bus = root / "bus"
    bus.mkdir(parents=True)
    for port, gpu in (("0000:3a:08.0", "0000:3b:00.0"), ("0000:3a:09.0", "0000:3c:00.0")):
        folder = devices / "pci0000:30" / "0000:30:01.0" / port / gpu
        folder.mkdir(parents=True)
        (bus / gpu).symlink_to(folder)
        (bus / port).symlink_to(folder.parent)
        write(folder.parent / "config", "")
        (folder.parent / "config").write_bytes(space)
        write(folder / "iommu_group" / "type", "DMA-FQ\n")
    (bus / "0000:30:01.0").symlink_to(devices / "pci0000:30" / "0000:30:01.0")
    (devices / "pci0000:30" / "0000:30:01.0" / "config").write_bytes(config())
    return bus


GPUS = (Gpu(0, bus_id="0000:3b:00.0"), Gpu(1, bus_id="0000:3c:00.0"))


def test_bridges_above_gpus(tmp_path):
    found = peers.gather_bridges(GPUS, device_tree(tmp_path, config((0x000D, 0x1D))))
    assert [(each.bus_id, each.gpus) for each in found] == [
        ("0000:3a:08.0", (0,)),
        ("0000:3a:09.0", (1,)),
    ]
    assert found[0].redirects == ("request", "completion", "upstream")


def test_bridges_that_only_root_may_read(tmp_path):
    bus = device_tree(tmp_path, b"\0" * 64)
    (bus / "0000:30:01.0" / "config").write_bytes(b"\0" * 64)
    assert peers.gather_bridges(GPUS, bus) is None
    assert peers.gather_bridges((), bus) == ()


def test_the_iommu(tmp_path):
    bus = device_tree(tmp_path, b"")
    assert peers.gather_iommu(GPUS, bus) == "translated"
    for gpu in GPUS:
        write(bus / gpu.bus_id / "iommu_group" / "type", "identity\n")
    assert peers.gather_iommu(GPUS, bus) == "passthrough"
    assert peers.gather_iommu((), bus) == ""


# The kernel's log
LOG = """\
[    1.000000] nvidia: loading out-of-tree module taints kernel.
[  100.250000] NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python, Ch 00000008
[  160.250000] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  170.250000] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  171.000000] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.
Nov 21 03:12:44 host kernel: NVRM: Xid (PCI:0000:AF:00): 48, pid=77, DBE at partition 3
"""


def test_errors_in_the_kernel_log():
    found = gpus.find_xids(LOG, now_s=200.0)
    assert [(xid.number, xid.bus_id, xid.age_s) for xid in found] == [
        (31, "0000:3b:00.0", 100),
        (79, "0000:3b:00.0", 30),
        (48, "0000:af:00.0", None),
    ]
    assert found[1].line.startswith("NVRM: Xid (PCI:0000:3b:00): 79")
    assert gpus.find_xids("", now_s=0) == ()


# The network
def rdma_tree(root, device, driver, **port):
    place = root / device / "ports" / "1"
    for name, text in port.items():
        write(place / name, f"{text}\n")
    write(root / device / "fw_ver", "28.39.3004\n")
    (root / "drivers" / driver).mkdir(parents=True, exist_ok=True)
    (root / device / "device").mkdir()
    (root / device / "device" / "driver").symlink_to(root / "drivers" / driver)
    return place


def test_ports_of_rdma_devices(tmp_path):
    infiniband = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
    rdma_tree(tmp_path, "mlx5_0", "mlx5_core", **infiniband)
    efa = {"state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "link_layer": "Unspecified"}
    rdma_tree(tmp_path, "rdmap16s27", "efa", **efa)
    place = rdma_tree(
        tmp_path,
        "mlx5_1",
        "mlx5_core",
        state="1: DOWN",
        rate="2.5 Gb/sec (1X SDR)",
        link_layer="Ethernet",
    )
    write(place / "gids" / "0", "fe80:0000:0000:0000:0a00:27ff:fe01:0203\n")
    write(place / "gids" / "1", "0000:0000:0000:0000:0000:0000:0000:0000\n")
    write(place / "gid_attrs" / "types" / "0", "IB/RoCE v1\n")
    first, second, third = network.gather_rdma(tmp_path)
    assert (first.words, first.state, first.firmware) == (
        "mlx5_0 (InfiniBand, 400 Gbit/s)",
        "ACTIVE",
        "28.39.3004",
    )
    assert (second.kind, second.state, second.gbit) == ("RoCE", "DOWN", 2.5)
    assert [(gid.index, gid.kind) for gid in second.gids] == [(0, "IB/RoCE v1")]
    assert (third.kind, third.words) == ("EFA", "rdmap16s27 (EFA, 100 Gbit/s)")
    assert network.gather_rdma(tmp_path / "none") == ()


def test_libraries_that_the_loader_finds(tmp_path, monkeypatch):
    cache = tmp_path / "ld.so.cache"
    known = (
        b"/usr/lib/x86_64-linux-gnu/libibverbs.so.1\0/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so\0"
    )
    cache.write_bytes(b"glibc-ld.so.cache1.1\0\x07" + known + b"/usr/lib/libnccl-nets.so\0")
    write(tmp_path / "lib" / "libnccl-net.so", "")
    write(tmp_path / "lib" / "libnccl.so.2", "")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'lib'}:")
    found = network.gather_libraries(tmp_path / "infiniband", cache)
    assert found.plugins == (
        "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so",
        str(tmp_path / "lib" / "libnccl-net.so"),
    )
    assert (found.devices, found.verbs) == (None, True)
    write(tmp_path / "infiniband" / "uverbs0", "")
    assert network.gather_libraries(tmp_path / "infiniband", tmp_path / "none").devices == (
        "uverbs0",
    )


# Limits and hosts
@pytest.mark.parametrize(
    ("effective", "uid_map", "may"),
    [
        ("000001ffffffffff", "0 0 4294967295", True),
        ("0000000000000000", "0 0 4294967295", False),
        ("00000000a80425fb", "0 0 4294967295", False),  # root in a container of docker
        ("000001ffffffffff", "0 1000 1\n1 100000 65536", False),  # root in a container without root
        ("", "", False),
    ],
)
def test_who_may_lock_any_memory(effective, uid_map, may):
    status = f"Name:\tpython\nCapEff:\t{effective}\n" if effective else ""
    assert host.may_lock_any(status, uid_map) == may


def test_the_memory_limit_is_the_smallest_on_the_way(tmp_path):
    write(tmp_path / "member", "0::/slurm/job_7/step_0\n")
    write(tmp_path / "slurm" / "memory.max", "max\n")
    write(tmp_path / "slurm" / "job_7" / "memory.max", "68719476736\n")
    assert host.memory_limit(tmp_path, tmp_path / "member") == 64 << 30
    write(tmp_path / "memory" / "memory.limit_in_bytes", "9223372036854771712\n")
    assert host.memory_limit(tmp_path, tmp_path / "member") == 64 << 30
    assert host.memory_limit(tmp_path / "none", tmp_path / "none") is None


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (".singularity.d/runscript", "apptainer"),
        ("run/secrets/kubernetes.io/serviceaccount/token", "kubernetes"),
        ("run/.containerenv", "podman"),
        (".dockerenv", "docker"),
        ("etc/hostname", ""),
    ],
)
def test_containers(path, kind, tmp_path):
    write(tmp_path / path, "")
    assert host.gather_host(tmp_path).container == kind


def test_a_pod_without_a_token(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert host.gather_host(tmp_path).container == "kubernetes"


def test_the_processor(tmp_path):
    write(
        tmp_path / "proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu vme hypervisor\n",
    )
    told = host.gather_host(tmp_path)
    assert (told.cpu_vendor, told.virtual, told.wsl) == ("AuthenticAMD", True, False)


@pytest.mark.parametrize(
    ("counts", "node", "tasks"),
    [("4(x2)", "1", 4), ("4,2", "1", 2), ("1", "0", 1), ("4(x2),1", "2", 1), ("?", "0", None)],
)
def test_tasks_of_a_slurm_step(counts, node, tasks, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", counts)
    monkeypatch.setenv("SLURM_NODEID", node)
    told = host.gather_host()
    assert (told.slurm_step, told.slurm_tasks) == (True, tasks)


def test_tasks_of_mpirun(monkeypatch):
    assert host.gather_host().mpi_tasks == 0
    for name, value in environment("open-mpi-4-one-host").items():
        monkeypatch.setenv(name, value)
    assert host.gather_host().mpi_tasks == 2
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "two")
    assert host.gather_host().mpi_tasks == 0


def test_disks_that_cannot_be_written_or_do_not_tell_are_no_disks(monkeypatch):
    def told(**changes):
        room = {
            "f_blocks": 100,
            "f_frsize": 1 << 20,
            "f_bavail": 0,
            "f_files": 0,
            "f_favail": 0,
            "f_flag": 0,
        }
        monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**{**room, **changes}))
        return host._space("/x")

    assert told().free_bytes == 0
    assert told(f_flag=os.ST_RDONLY) is None
    assert told(f_blocks=0) is None


# Copies between GPUs
@pytest.mark.parametrize(
    ("gpu", "used"),
    [
        (Gpu(0), False),
        (Gpu(0, memory_used_bytes=600 << 20), False),
        (Gpu(0, memory_used_bytes=2 << 30), True),
        (Gpu(0, processes=(GpuProcess(7),)), True),
        (Gpu(0, processes=(GpuProcess(7, graphics=True),)), False),
    ],
)
def test_no_copy_is_tried_beside_a_run(gpu, used):
    assert gather.is_used(gpu) == used


def line(one, other, state, **more):
    return json.dumps({"from": one, "to": other, "state": state, **more})


def test_what_the_trial_says():
    lines = [
        line("b", "a", "begin"),
        line("b", "a", "ok", gigabytes_per_s=20.0),
        line("a", "b", "begin"),
        line("a", "b", "ok", gigabytes_per_s=18.0),
        line("a", "c", "begin"),
        line("a", "c", "ok"),
        line("c", "a", "begin"),
        line("c", "a", "wrong-data"),
        line("x", "a", "ok"),
        "Traceback (most recent call last):",
        "[]",
        line("b", "c", "begin"),
    ]
    told = peers.read_trials(lines, ["a", "b", "c"], silent_s=9.0)
    assert {pair: trial.outcome for pair, trial in told.items()} == {
        (0, 1): "ok",
        (0, 2): "wrong-data",
        (1, 2): "hang",
    }
    assert told[0, 1].gigabytes_per_s == 18.0


def test_a_copy_that_the_limit_cut_off_is_not_called_a_hang():
    assert peers.read_trials([line("a", "b", "begin")], ["a", "b"], silent_s=0.2) == {}
    assert peers.read_trials([line("a", "b", "begin")], ["a", "b"], silent_s=0.0) == {}


def test_a_trial_that_hangs_is_killed_and_named(monkeypatch):
    monkeypatch.setattr(peers, "_HANGS_S", 0.1)
    told = line("a", "b", "begin")
    program = f"import time; print({told!r}, flush=True); time.sleep(60)"
    begin = time.monotonic()
    found = peers.try_pairs(["a", "b"], limit_s=1.5, command=[sys.executable, "-S", "-c", program])
    assert time.monotonic() - begin < 10
    assert found == {(0, 1): peers.PeerTrial("hang")}


def test_a_trial_ends_with_who_interrupts_it(monkeypatch, tmp_path):
    def interrupted(child, limit_s):
        pids.append(child.pid)
        child.stdout.close()
        raise KeyboardInterrupt

    pids = []
    monkeypatch.setattr(peers, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        peers.try_pairs(
            ["a", "b"], command=[sys.executable, "-S", "-c", "import time; time.sleep(60)"]
        )
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_trial_that_cannot_begin_says_nothing():
    assert peers.try_pairs(["a", "b"], command=["/none/python"]) == {}
    assert (
        peers.try_pairs(
            ["a", "b"], limit_s=5, command=[sys.executable, "-S", "-c", "raise SystemExit(1)"]
        )
        == {}
    )

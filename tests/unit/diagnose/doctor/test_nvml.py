"""GPUs by NVML: a fake library with two GPUs, one that answers nothing, and one that fails in every place."""

import ctypes
from types import SimpleNamespace

import pytest

from paceline.diagnose.doctor.collectors.gpus import count_nvlinks, count_on_bus, gather_gpus
from paceline.diagnose.doctor.facts_gpu import Gpu, NvLink
from paceline.machine.nvml import bus_id


class NVMLError(Exception):
    """What stands in for NVML's own errors."""


def pci_tree(root, *places):
    for number, place in enumerate(places):
        folder = root / place
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
        (folder / "numa_node").write_text(f"{number}\n")
        (folder / "local_cpulist").write_text(f"{number * 16}-{number * 16 + 15}\n")
    switch = root / "0000:05:00.0"
    switch.mkdir(parents=True, exist_ok=True)
    (switch / "vendor").write_text("0x10de\n")
    (switch / "class").write_text("0x068000\n")
    return root


class Library:
    """Two GPUs over NVLink switches, as pynvml tells of them."""

    NVML_NVLINK_MAX_LINKS = 4
    nvmlMemory_v2 = 0x2000028

    def __init__(self):
        self.calls = []

    def nvmlInit(self):
        self.calls.append("init")

    def nvmlShutdown(self):
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlSystemGetDriverVersion(self):
        return b"570.133.20"

    def nvmlSystemGetCudaDriverVersion(self):
        return 12080

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}" if isinstance(handle, int) else f"MIG-{handle}"

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=b"00000000:1B:00.0" if handle == 0 else b"00000000:C3:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        used = 1 << 20 if version else 700 << 20
        return SimpleNamespace(total=80 << 30, used=used, free=0)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (9, 0)

    def nvmlDeviceGetPersistenceMode(self, handle):
        return 1

    def nvmlDeviceGetEccMode(self, handle):
        return [1, 1]

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        assert kind == 1
        return 3 if counter == 1 else 0

    def nvmlDeviceGetRemappedRows(self, handle):
        return (1, 2, 1, 0)

    def nvmlDeviceGetMigMode(self, handle):
        return [handle, handle]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, place):
        if place > 1:
            raise NVMLError("Not Found")
        return f"slice-{place}"

    def nvmlDeviceGetComputeMode(self, handle):
        return 3

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 0x48 if handle else 0x1

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 40

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=7, memory=1)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=2**22 + 5, usedGpuMemory=None)]

    def nvmlDeviceGetNvLinkState(self, handle, link):
        return int(link < 3)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):
        return 2

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        return SimpleNamespace(busId="00000000:05:00.0")

    class c_nvmlGpuFabricInfo_v2_t(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint), ("status", ctypes.c_uint), ("state", ctypes.c_uint))

    def nvmlDeviceGetGpuFabricInfoV(self, handle, pointer):
        pointer._obj.state = 3
        pointer._obj.status = 999 if handle else 0
        return 0

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return 50

    def nvmlDeviceGetP2PStatus(self, one, other, capability):
        return 0


def test_gpus_that_were_given_to_others_are_left_out(tmp_path):
    class Shared(Library):
        def nvmlDeviceGetHandleByIndex(self, index):
            if index == 0:
                raise NVMLError("Insufficient Permissions")
            return index

    told = gather_gpus(Shared(), pci_tree(tmp_path, "0000:1b:00.0", "0000:c3:00.0"))
    assert [(gpu.index, gpu.uuid, gpu.problem) for gpu in told.gpus] == [(0, "GPU-1", "")]
    assert told.pairs == ()


def test_what_nvml_tells_becomes_facts(tmp_path):
    library = Library()
    told = gather_gpus(library, pci_tree(tmp_path, "0000:1b:00.0", "0000:c3:00.0"))
    assert library.calls == ["init", "shutdown"]
    assert (told.driver.version, told.driver.cuda, told.driver.gpus_on_bus) == (
        "570.133.20",
        "12.8",
        2,
    )
    first, second = told.gpus
    assert (first.index, first.name, first.uuid, first.bus_id) == (
        0,
        "NVIDIA H100 80GB HBM3",
        "GPU-0",
        "0000:1b:00.0",
    )
    assert (first.memory_bytes, first.memory_used_bytes) == (80 << 30, 1 << 20)
    assert (first.capability, first.persistence, first.ecc, first.temperature) == (
        "9.0",
        True,
        True,
        40,
    )
    assert (first.ecc_uncorrected, first.ecc_uncorrected_ever) == (0, 3)
    assert (first.repair_failed, first.repair_pending) == (False, True)
    assert (first.mig, first.mig_slices, first.compute_mode, first.slowdown) == (
        False,
        (),
        "exclusive-process",
        (),
    )
    assert (second.mig, [part.uuid for part in second.mig_slices]) == (
        True,
        ["MIG-slice-0", "MIG-slice-1"],
    )
    assert second.slowdown == ("thermal",)
    assert (second.numa_node, second.cpus, second.utilisation) == (1, "16-31", 7)
    assert [process.alive for process in first.processes] == [False]
    assert (first.fabric, second.fabric) == ("completed", "failed")
    assert first.nvlinks == (NvLink(True, "switch", "0000:05:00.0"),) * 3 + (NvLink(False),)
    (pair,) = told.pairs
    assert (pair.first, pair.second, pair.level, pair.nvlinks, pair.p2p, pair.link) == (
        0,
        1,
        "SYS",
        3,
        "ok",
        "NV3",
    )


FUNCTIONS = sorted(
    name for name in vars(Library) if name.startswith("nvml") and name not in ("nvmlMemory_v2",)
)


@pytest.mark.parametrize("broken", FUNCTIONS)
@pytest.mark.parametrize("how", ["raises", "is missing"])
def test_a_function_that_does_not_answer_takes_nothing_else_away(broken, how, tmp_path):
    def fails(*_):
        raise NVMLError("Not Supported")

    library = Library()
    names = {
        name: getattr(library, name) for name in dir(library) if name.lower().startswith("nvml")
    }
    names.pop(broken)
    told = gather_gpus(
        SimpleNamespace(**names, **({broken: fails} if how == "raises" else {})), tmp_path
    )
    if broken == "nvmlInit" or broken == "nvmlDeviceGetCount":
        assert (told.gpus, bool(told.driver.problem)) == ((), True)
    elif broken == "nvmlDeviceGetHandleByIndex":
        assert all(gpu.problem for gpu in told.gpus)
        assert told.pairs == ()
    else:
        assert len(told.gpus) == 2
        assert len(told.pairs) == 1
        assert not any(gpu.problem for gpu in told.gpus)


def test_a_library_that_answers_nothing_leaves_gpus_without_facts(tmp_path):
    library = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
    )
    told = gather_gpus(library, tmp_path)
    assert told.gpus == (Gpu(0), Gpu(1))
    assert told.pairs[0].link == "?"


def test_a_gpu_that_is_lost_is_told_as_such(tmp_path):
    def lost(handle):
        raise NVMLError("GPU is lost")

    library = Library()
    library.nvmlDeviceGetUUID = lost
    assert {gpu.problem for gpu in gather_gpus(library, tmp_path).gpus} == {"GPU is lost"}


def test_earlier_names_of_nvml_are_known(tmp_path):
    class Old(Library):
        nvmlMemory_v2 = None
        nvmlDeviceGetCurrentClocksEventReasons = None
        nvmlDeviceGetRemappedRows = None

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
            return 0x8

        def nvmlDeviceGetRetiredPagesPendingStatus(self, handle):
            return 1

        def nvmlDeviceGetName(self, handle):
            return b"Tesla V100-SXM2-32GB"

    gpu = gather_gpus(Old(), tmp_path).gpus[0]
    assert (gpu.slowdown, gpu.repair_pending, gpu.repair_failed) == (("hardware",), True, None)
    assert (gpu.memory_used_bytes, gpu.name) == (700 << 20, "Tesla V100-SXM2-32GB")


DIRECT = Gpu(
    0,
    bus_id="a",
    nvlinks=(NvLink(True, "gpu", "b"), NvLink(True, "gpu", "b"), NvLink(True, "gpu", "c")),
)
SWITCHED = Gpu(0, bus_id="a", nvlinks=(NvLink(True, "switch", "s"),) * 18)
UNTOLD = Gpu(0, bus_id="a", nvlinks=(NvLink(True),) * 12)


@pytest.mark.parametrize(
    ("gpu", "driver_says", "links"),
    [
        (DIRECT, None, 2),
        (DIRECT, True, 2),
        (SWITCHED, None, 18),
        (SWITCHED, True, 18),
        (SWITCHED, False, 0),
        (UNTOLD, True, 12),
        (UNTOLD, None, 0),
        (UNTOLD, False, 0),
        (Gpu(0), True, 0),
    ],
)
def test_nvlinks_of_a_pair(gpu, driver_says, links):
    other = Gpu(1, bus_id="b", nvlinks=gpu.nvlinks)
    assert count_nvlinks(gpu, other, driver_says=driver_says) == links


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0\0\0", "0000:01:00.0"),
        ("", ""),
    ],
)
def test_places_on_the_bus_are_written_as_the_kernel_does(text, place):
    assert bus_id(text) == place


def test_only_gpus_are_counted_on_the_bus(tmp_path):
    assert count_on_bus(pci_tree(tmp_path, "0000:1b:00.0")) == 1
    assert count_on_bus(tmp_path / "none") == 0

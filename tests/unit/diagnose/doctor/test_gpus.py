"""What is said of single GPUs, of CPUs near them, and of what earlier runs have left on them."""

from dataclasses import replace

import pytest

from paceline.diagnose.doctor.checks.judge import judge
from paceline.diagnose.doctor.facts import Leftover
from paceline.diagnose.doctor.facts_gpu import Driver, GpuProcess, MigSlice, NvLink, Xid
from unit.diagnose.doctor.machines import found, hosted, limited, machine, with_gpu

BOX = "h100-nvlink-8"
XID = "NVRM: Xid (PCI:0000:43:00): {}, pid=1234, name=python, text"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ecc_uncorrected": 2}, ["error gpu-hardware-error"]),
        ({"ecc_uncorrected_ever": 2}, []),
        ({"repair_failed": True}, ["error gpu-hardware-error"]),
        ({"repair_pending": True}, ["warning gpu-hardware-error"]),
        ({"problem": "GPU is lost"}, ["error gpu-hardware-error"]),
        (
            {"nvlinks": (NvLink(False),) * 2 + (NvLink(True, "switch"),) * 16},
            ["warning gpu-hardware-error"],
        ),
        ({"slowdown": ("thermal",), "temperature": 93}, ["warning gpu-slowdown"]),
        ({"fabric": "in-progress"}, ["error fabric-manager-down"]),
        ({"fabric": "failed"}, ["error fabric-manager-down"]),
        ({"fabric": ""}, []),
        ({"persistence": False}, ["hint persistence-off"]),
        ({"persistence": None}, []),
        ({"capability": "7.5"}, ["hint bf16-emulated"]),
        ({"capability": "10.0"}, []),
        ({"compute_mode": "prohibited"}, ["error gpu-busy"]),
        ({"compute_mode": "exclusive-process"}, []),
        ({"mig": True}, ["warning gpus-not-visible"]),
        ({"mig": True, "mig_slices": (MigSlice("MIG-1"),)}, []),
        ({"mig": True, "mig_slices": (MigSlice("MIG-1"),), "nvlinks": (NvLink(False),) * 18}, []),
        (
            {"mig": True, "mig_slices": (MigSlice("MIG-1"), MigSlice("MIG-2"))},
            ["warning mig-slices-of-one-gpu"],
        ),
        ({"utilisation": 100, "temperature": 60}, []),
    ],
    ids=str,
)
def test_one_gpu(changes, expected):
    assert found(judge(with_gpu(machine(BOX), 1, **changes))) == expected


def test_a_card_whose_bridge_was_never_fitted_is_sound():
    facts = machine("two-sockets-2", {"NCCL_P2P_DISABLE": "1"})
    facts = with_gpu(facts, 0, nvlinks=(NvLink(False),) * 4)
    assert not [each for each in found(judge(facts)) if "hardware" in each]


@pytest.mark.parametrize(
    ("number", "age_s", "expected"),
    [
        (79, 60, ["error gpu-hardware-error"]),
        (48, None, ["error gpu-hardware-error"]),
        (79, 3 * 86_400, ["warning gpu-hardware-error"]),
        (63, 60, ["warning gpu-hardware-error"]),
        (94, 60, ["warning gpu-hardware-error"]),
        (13, 60, []),
        (31, 60, []),
        (43, 60, []),
    ],
)
def test_the_kernel_log(number, age_s, expected):
    facts = machine(BOX, xids=(Xid(number, "0000:43:00.0", XID.format(number), age_s),))
    judged = judge(facts)
    assert found(judged) == expected
    if judged:
        assert judged[0].where == "GPU 1"
        assert XID.format(number) in judged[0].evidence[0]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("0x0 (None) to 0x1 (GPU Reset)", ["error gpu-hardware-error"]), ("0x1 to 0x0 (None)", [])],
)
def test_what_the_driver_asks_for_counts_until_it_was_done(asked, expected):
    line = f"NVRM: Xid (PCI:0000:43:00): 154, GPU recovery action changed from {asked}"
    assert found(judge(machine(BOX, xids=(Xid(154, "0000:43:00.0", line, 60),)))) == expected


def test_a_faulty_gpu_that_is_hidden_does_not_stop_the_others():
    facts = with_gpu(machine(BOX, visible_devices="0,2"), 1, ecc_uncorrected=2)
    assert found(judge(facts)) == ["warning gpu-hardware-error", "hint gpus-not-visible"]
    xid = Xid(79, "0000:43:00.0", XID.format(79), 60)
    assert (
        found(judge(machine(BOX, visible_devices="0,2", xids=(xid,))))[0]
        == "warning gpu-hardware-error"
    )


@pytest.mark.parametrize("where", [{"container": "kubernetes"}, {"slurm_job": True}])
def test_the_kernel_log_tells_of_gpus_of_others_too(where):
    facts = machine(BOX, xids=(Xid(79, "0000:77:00.0", XID.format(79), 60),))
    assert found(judge(facts)) == ["error gpu-hardware-error"]
    assert found(judge(hosted(facts, **where))) == []


def test_faults_of_several_gpus_are_one_finding():
    facts = with_gpu(with_gpu(machine(BOX), 0, ecc_uncorrected=1), 5, repair_pending=True)
    (finding,) = judge(facts)
    assert finding.where == "GPU 0, GPU 5"
    assert len(finding.evidence) == 2


OTHER = GpuProcess(4242, 30 << 30, "python train.py", "eva")
MPS = GpuProcess(99, 30 << 20, "nvidia-cuda-mps-server", "root")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"processes": (OTHER,)}, ["warning gpu-busy"]),
        ({"processes": (replace(OTHER, alive=False),)}, ["warning gpu-busy"]),
        ({"processes": (replace(OTHER, graphics=True),)}, []),
        ({"processes": (OTHER,), "compute_mode": "exclusive-process"}, ["error gpu-busy"]),
        ({"processes": (OTHER, MPS), "compute_mode": "exclusive-process"}, ["warning gpu-busy"]),
        ({"processes": (MPS,), "compute_mode": "exclusive-process"}, []),
        ({"memory_used_bytes": 20 << 30}, ["warning gpu-busy"]),
        ({"memory_used_bytes": 3 << 29, "memory_bytes": 8 << 30}, []),
        ({"memory_used_bytes": 600 << 20}, []),
        ({"memory_used_bytes": None}, []),
    ],
    ids=str,
)
def test_who_holds_a_gpu(changes, expected):
    assert found(judge(with_gpu(machine(BOX), 2, **changes))) == expected


def test_what_windows_holds_is_not_told():
    facts = with_gpu(machine(BOX), 2, memory_used_bytes=20 << 30)
    assert found(judge(hosted(facts, wsl=True))) == []


def test_a_gpu_that_is_hidden_may_be_busy():
    facts = with_gpu(machine(BOX, visible_devices="0,1"), 7, processes=(OTHER,))
    assert "warning gpu-busy" not in found(judge(facts))


def test_what_an_earlier_run_left_is_told_once_and_by_pid():
    facts = with_gpu(machine(BOX), 0, processes=(OTHER,), memory_used_bytes=31 << 30)
    left = Leftover(
        4242, "python train.py", rank="3", run="runs/20261120-digits-1f", age_s=7300, ports=(29500,)
    )
    (finding,) = judge(replace(facts, leftovers=(left,)))
    assert found([finding]) == ["warning orphan-processes"]
    assert "30 GiB of GPU memory and port 29500" in finding.what
    assert "rank 3" in finding.evidence[0]
    assert finding.fix.endswith("kill 4242")


# What CUDA shows
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, []),
        ("0,1,2,3,4,5,6,7", []),
        ("0,1", ["hint gpus-not-visible"]),
        ("", ["warning gpus-not-visible"]),
        ("-1", ["warning gpus-not-visible"]),
        ("0,8", ["warning gpus-not-visible"]),
        ("0,,1,2,3,4,5,6,7", ["hint gpus-not-visible"]),
        ("0,1,2,3,4,5,6,7,", []),
        ("0,1,0", ["warning gpus-not-visible"]),
        ("0,1,2,3,4,5,6,-1", ["hint gpus-not-visible"]),
        ("GPU-3f1a", ["hint gpus-not-visible"]),
        ("GPU-ffff", ["warning gpus-not-visible"]),
    ],
)
def test_what_cuda_shows(visible, expected):
    assert found(judge(machine(BOX, visible_devices=visible))) == expected


def test_slurm_hides_what_is_not_of_the_job():
    assert found(judge(hosted(machine(BOX, visible_devices="0,1"), slurm_job=True))) == []


@pytest.mark.parametrize(
    ("visible", "severity"), [("NoDevFiles", "hint"), ("", "hint"), ("0,9", "warning")]
)
def test_nobody_is_told_to_take_the_gpus_of_others(visible, severity):
    (finding,) = judge(hosted(machine(BOX, visible_devices=visible), slurm_job=True))
    assert found([finding]) == [f"{severity} gpus-not-visible"]
    assert "unset" not in finding.fix


def test_one_slice_of_a_divided_gpu_is_no_fault():
    facts = machine("mig-1")
    assert found(judge(replace(facts, visible_devices=facts.gpus[0].mig_slices[1].uuid))) == []


@pytest.mark.parametrize(
    ("container", "job", "expected", "fix"),
    [
        ("docker", False, "warning gpus-not-visible", "--gpus all"),
        ("apptainer", False, "warning gpus-not-visible", "--nv"),
        ("podman", False, "warning gpus-not-visible", "--device nvidia.com/gpu=all"),
        ("", False, "warning gpus-not-visible", "nvidia-smi"),
        ("", True, "hint gpus-not-visible", "#SBATCH --gpus"),
    ],
)
def test_gpus_that_are_on_the_bus_only(container, job, expected, fix):
    driver = Driver(problem="NVML Shared Library Not Found", gpus_on_bus=4)
    facts = hosted(machine("no-gpu", driver=driver), container=container, slurm_job=job)
    (finding,) = judge(facts)
    assert found([finding]) == [expected]
    assert fix in finding.fix


# The driver
@pytest.mark.parametrize(
    ("driver", "torch_cuda", "expected"),
    [
        (Driver("535.183.01", "12.2", gpus_on_bus=8), "13.0", ["error driver-mismatch"]),
        (
            Driver("535.183.01", "12.2", gpus_on_bus=8),
            "12.8",
            [],
        ),  # minor versions fit each other from CUDA 11 on
        (Driver("580.65.06", "13.0", gpus_on_bus=8), "12.8", []),
        (Driver("570.133.20", "", gpus_on_bus=8), "12.8", []),
        (Driver("570.133.20", "12.8", gpus_on_bus=8), "", ["warning nccl-not-built-in"]),
    ],
    ids=str,
)
def test_the_driver_and_torch(driver, torch_cuda, expected):
    facts = machine(BOX, driver=driver)
    assert (
        found(judge(replace(facts, software=replace(facts.software, torch_cuda=torch_cuda))))
        == expected
    )


@pytest.mark.parametrize(
    ("capability", "torch_cuda", "fix"),
    [
        ("7.0", "13.0", "12.6"),
        ("7.5", "13.0", None),
        ("7.0", "12.6", None),
        ("12.0", "12.6", "12.8 or newer"),
        ("10.0", "12.8", None),
        ("9.0", "11.8", None),
        ("", "13.0", None),
        ("7.0", "", None),
    ],
)
def test_the_gpu_and_torch(capability, torch_cuda, fix):
    facts = with_gpu(
        machine(BOX, driver=Driver("580.65.06", "13.0", gpus_on_bus=8)), 1, capability=capability
    )
    facts = replace(facts, software=replace(facts.software, torch_cuda=torch_cuda))
    findings = [each for each in judge(facts) if each.name == "library-version-mismatch"]
    assert [(each.where, f"CUDA {fix}:" in each.fix) for each in findings] == (
        [("GPU 1", True)] if fix else []
    )


def test_a_gpu_that_the_driver_does_not_serve_is_missed():
    facts = machine(BOX, driver=Driver("570.133.20", "12.8", gpus_on_bus=9))
    (finding,) = judge(facts)
    assert (finding.name, "8 of 9" in finding.what) == ("gpus-not-visible", True)
    assert judge(hosted(facts, slurm_job=True)) == judge(hosted(facts, container="docker")) == []


def test_a_driver_that_was_updated_under_a_running_kernel():
    facts = machine(
        "no-gpu", driver=Driver(problem="Driver/library version mismatch", gpus_on_bus=2)
    )
    assert found(judge(facts)) == ["error driver-mismatch"]


def test_a_driver_that_does_not_answer_is_a_fault():
    facts = machine("no-gpu", driver=Driver(problem="no answer within 15 s", gpus_on_bus=2))
    assert found(judge(facts)) == ["error gpu-hardware-error"]


def test_slices_have_no_links_to_judge():
    facts = machine("two-sockets-2")
    assert found(judge(with_gpu(facts, 0, mig=True, mig_slices=(MigSlice("MIG-1"),)))) == []


# CPUs
@pytest.mark.parametrize(
    ("limits", "tasks", "expected"),
    [
        ({"cpus": 1, "affinity": "0"}, None, ["warning cpu-starved", "hint numa-affinity"]),
        ({"cpus": 8, "affinity": "0-3,52-55"}, None, ["warning cpu-starved"]),
        ({"cpus": 16, "affinity": "0-7,52-59"}, None, []),
        ({"cpus": 4, "cpus_reason": "cgroup quota of 4 CPUs"}, None, ["warning cpu-starved"]),
        ({"cpus": 1, "affinity": "0"}, 8, ["warning cpu-starved", "hint numa-affinity"]),
        ({"cpus": 4, "affinity": "0-1,52-53"}, 8, []),
        ({"cpus": 4, "affinity": "0-1,52-53"}, 1, ["warning cpu-starved"]),
        ({"cpus": 8, "total_cpus": 8, "affinity": "0-7"}, None, ["hint numa-affinity"]),
    ],
    ids=str,
)
def test_cpus(limits, tasks, expected):
    facts = hosted(limited(machine(BOX), **limits), slurm_step=tasks is not None, slurm_tasks=tasks)
    assert found(judge(facts)) == expected


def test_cpus_of_a_task_that_mpirun_has_bound():
    bound = limited(machine(BOX), cpus=1, affinity="0")
    (finding,) = [each for each in judge(hosted(bound, mpi_tasks=8)) if each.name == "cpu-starved"]
    assert finding.fix.startswith("mpirun --bind-to none")
    roomy = limited(machine(BOX), cpus=4, affinity="0-1,52-53")
    assert found(judge(hosted(roomy, mpi_tasks=8))) == []


def test_the_gpus_of_the_other_socket_are_named():
    (finding,) = judge(limited(machine(BOX), affinity="0-51"))
    assert finding.name == "numa-affinity"
    assert finding.where == "GPU 4, GPU 5, GPU 6, GPU 7"

"""Settings that contradict one another, and settings that cost more than they give."""

import pytest

from paceline.diagnose.variables import judge_settings


def settings(text):
    return dict(item.split("=", 1) for item in text.split("  "))


def named(text, name, **arguments):
    return [each for each in judge_settings(settings(text), **arguments) if each.name == name]


CONTRADICTED = [
    # settings, severity, words of what, why or fix
    ("NCCL_P2P_DISABLE=1  NCCL_P2P_LEVEL=NVL", "warning", "wins over NCCL_P2P_LEVEL=NVL"),
    ("NCCL_P2P_DISABLE=1  NCCL_P2P_LEVEL=3", "warning", "NCCL_P2P_LEVEL=3"),
    ("NCCL_IB_DISABLE=1  NCCL_NET=IB", "error", "Failed to initialize any NET plugin"),
    ("NCCL_IB_DISABLE=1  NCCL_IB_HCA=mlx5", "warning", "NCCL_IB_HCA has no effect"),
    ("NCCL_IB_DISABLE=1  NCCL_IB_HCA=mlx5  NCCL_IB_GID_INDEX=3", "warning", "have no effect"),
    ("NCCL_NET=Socket  NCCL_IB_HCA=mlx5", "warning", "NCCL_NET=Socket leaves InfiniBand unused"),
    ("NCCL_NET=socket  NCCL_IB_TIMEOUT=22", "warning", "NCCL_IB_TIMEOUT"),
    ("NCCL_SOCKET_NTHREADS=16  NCCL_NSOCKS_PERTHREAD=8", "warning", "NCCL_NSOCKS_PERTHREAD=4"),
    ("NCCL_SOCKET_NTHREADS=8  NCCL_NSOCKS_PERTHREAD=16", "warning", "128"),
    ("FI_PROVIDER=efa  NCCL_SOCKET_NTHREADS=2", "hint", "for TCP"),
    (
        "FI_PROVIDER=efa  NCCL_NSOCKS_PERTHREAD=4  NCCL_SOCKET_NTHREADS=2",
        "hint",
        "unset NCCL_SOCKET_NTHREADS and",
    ),
    ("NCCL_NET=IB  NCCL_NSOCKS_PERTHREAD=4", "hint", "NCCL_NET=IB"),
    ("FI_PROVIDER=efa  NCCL_NET=Socket", "warning", "unset NCCL_NET"),
    ("NCCL_MIN_CTAS=32  NCCL_MAX_CTAS=8", "warning", "NCCL_MIN_CTAS=8"),
    ("NCCL_MIN_NCHANNELS=32  NCCL_MAX_NCHANNELS=8", "warning", "more than NCCL_MAX_NCHANNELS=8"),
    ("NCCL_SHM_DISABLE=1  NCCL_CUMEM_HOST_ENABLE=1", "hint", "unset NCCL_SHM_DISABLE"),
    ("NCCL_CUMEM_ENABLE=0  NCCL_MNNVL_ENABLE=1", "warning", "needs cuMem"),
    ("NCCL_IB_GID_INDEX=3  NCCL_IB_ROCE_VERSION_NUM=2", "warning", "unset NCCL_IB_GID_INDEX"),
    ("NCCL_IB_PKEY=1  NCCL_IB_PKEY_VALUE=0x8111", "warning", "wins over NCCL_IB_PKEY"),
    ("NCCL_DEBUG_SUBSYS=ALL", "hint", "is not set"),
    ("NCCL_DEBUG=WARN  NCCL_DEBUG_SUBSYS=NET", "hint", "is WARN"),
    ("NCCL_DEBUG_FILE=/tmp/nccl.%h.%p", "hint", "nothing is written"),
    ("NCCL_OOB_NET_IFNAME=eth0", "warning", "NCCL_OOB_NET_ENABLE=1"),
    ("NCCL_ALGO=NVLS  NCCL_NVLS_ENABLE=0", "warning", "NCCL_NVLS_ENABLE=0"),
    ("NCCL_ALGO=NVLS,NVLSTree  NCCL_NVLS_ENABLE=0", "warning", "NVLS and NVLSTree"),
    ("NCCL_ALGO=CollnetDirect", "warning", "NCCL_COLLNET_ENABLE is not 1"),
    ("NCCL_ALGO=CollnetChain  NCCL_COLLNET_ENABLE=0", "warning", "NCCL_COLLNET_ENABLE=0"),
    (
        "TORCH_NCCL_BLOCKING_WAIT=1  TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "warning",
        "no watchdog thread",
    ),
    (
        "TORCH_NCCL_BLOCKING_WAIT=1  TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        "warning",
        "TORCH_NCCL_DUMP_ON_TIMEOUT is for it",
    ),
    (
        "NCCL_BLOCKING_WAIT=1  NCCL_ASYNC_ERROR_HANDLING=1",
        "warning",
        "NCCL_BLOCKING_WAIT=1 starts no watchdog",
    ),
    (
        "TORCH_NCCL_ENABLE_MONITORING=0  TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800",
        "warning",
        "no monitor",
    ),
    (
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1  TORCH_FR_BUFFER_SIZE=0",
        "warning",
        "unset TORCH_FR_BUFFER_SIZE",
    ),
    (
        "TORCH_NCCL_DUMP_ON_TIMEOUT=true  TORCH_NCCL_TRACE_BUFFER_SIZE=0",
        "warning",
        "TRACE_BUFFER_SIZE=0",
    ),
    (
        "TORCH_FR_DUMP_TEMP_FILE=/tmp/fr_  TORCH_FR_BUFFER_SIZE=0",
        "warning",
        "TORCH_FR_DUMP_TEMP_FILE",
    ),
    ("TORCH_NCCL_NONBLOCKING_TIMEOUT=60", "hint", "TORCH_NCCL_USE_COMM_NONBLOCKING=1"),
    (
        "TORCH_FR_BUFFER_SIZE=2000  TORCH_NCCL_TRACE_BUFFER_SIZE=100",
        "warning",
        "TORCH_FR_BUFFER_SIZE wins",
    ),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING=3  NCCL_ASYNC_ERROR_HANDLING=1", "warning", "two values"),
    ("NCCL_MIN_NCHANNELS=8  NCCL_MIN_CTAS=16", "warning", "stricter"),
    (
        "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128  PYTORCH_ALLOC_CONF=expandable_segments:True",
        "warning",
        "PYTORCH_CUDA_ALLOC_CONF wins",
    ),
]


@pytest.mark.parametrize(("text", "severity", "words"), CONTRADICTED)
def test_a_contradiction_is_told(text, severity, words):
    (finding,) = named(text, "variable-contradicted")
    assert finding.severity == severity
    assert words in f"{finding.what} {finding.why} {finding.fix}"
    assert set(finding.evidence) <= {f"{name}={value}" for name, value in settings(text).items()}


NOT_CONTRADICTED = [
    "NCCL_P2P_DISABLE=0  NCCL_P2P_LEVEL=NVL",
    "NCCL_P2P_DISABLE=1  NCCL_P2P_LEVEL=LOC",
    "NCCL_P2P_DISABLE=$OFF  NCCL_P2P_LEVEL=NVL",
    "NCCL_P2P_DISABLE=1",
    "NCCL_IB_DISABLE=0  NCCL_IB_HCA=mlx5  NCCL_NET=IB",
    "NCCL_IB_DISABLE=1  NCCL_NET=Socket",
    "NCCL_IB_DISABLE=1  NCCL_SOCKET_IFNAME=eth0",
    "NCCL_IB_DISABLE=1  NCCL_IB_HCA=mlx5  NCCL_NET_PLUGIN=ibext",
    "NCCL_IB_DISABLE=1  FI_PROVIDER=efa",
    "NCCL_SOCKET_NTHREADS=8  NCCL_NSOCKS_PERTHREAD=8",
    "NCCL_SOCKET_NTHREADS=4",
    "NCCL_MIN_CTAS=8  NCCL_MAX_CTAS=8",
    "NCCL_IB_GID_INDEX=-1  NCCL_IB_ADDR_FAMILY=AF_INET6",
    "NCCL_IB_GID_INDEX=3",
    "NCCL_DEBUG=INFO  NCCL_DEBUG_SUBSYS=NET  NCCL_DEBUG_FILE=/tmp/nccl.%p",
    "NCCL_DEBUG=$LEVEL  NCCL_DEBUG_SUBSYS=NET",
    "NCCL_DEBUG=WARN  NCCL_DEBUG_FILE=/tmp/nccl.%p",
    "NCCL_OOB_NET_ENABLE=1  NCCL_OOB_NET_IFNAME=eth0",
    "NCCL_ALGO=Ring,NVLS  NCCL_NVLS_ENABLE=0",
    "NCCL_ALGO=^NVLS  NCCL_NVLS_ENABLE=0",
    "NCCL_ALGO=CollnetDirect,Ring  NCCL_COLLNET_ENABLE=1",
    "TORCH_NCCL_BLOCKING_WAIT=0  TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
    "TORCH_NCCL_BLOCKING_WAIT=1  TORCH_NCCL_ASYNC_ERROR_HANDLING=0",
    "TORCH_NCCL_ENABLE_MONITORING=1  TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800",
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1  TORCH_FR_BUFFER_SIZE=2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT=0  TORCH_FR_BUFFER_SIZE=0",
    "TORCH_FR_BUFFER_SIZE=2000  TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1  NCCL_ASYNC_ERROR_HANDLING=1",
]


@pytest.mark.parametrize("text", NOT_CONTRADICTED)
def test_what_goes_together_is_not_told(text):
    assert named(text, "variable-contradicted") == []


HARMFUL = [
    ("NCCL_ALGO=Tree", "warning", "no algorithm for broadcast"),
    ("NCCL_ALGO=^Ring", "warning", "no algorithm for broadcast"),
    ("NCCL_ALGO=Tree;broadcast:tree", "warning", "no algorithm for broadcast"),
    ("NCCL_PROTO=LL128", "hint", "forces LL128"),
    ("NCCL_PROTO=LL,LL128,Simple", "hint", "forces LL128"),
    ("NCCL_PROTO=^LL", "hint", "NCCL_PROTO=^LL,LL128"),
    ("NCCL_P2P_DISABLE=1  NCCL_SHM_DISABLE=1", "hint", "through the network"),
    ("TORCH_NCCL_BLOCKING_WAIT=1", "hint", "no watchdog thread"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "hint", "does not end the program"),
    ("TORCH_FR_BUFFER_SIZE=0", "hint", "flight recorder off"),
    ("CUDA_LAUNCH_BLOCKING=1", "hint", "each kernel"),
    ("TORCH_DISTRIBUTED_DEBUG=detail", "warning", "compare each collective"),
    ("NCCL_DEBUG=INFO  NCCL_DEBUG_SUBSYS=ALL", "warning", "a line for each collective"),
    ("NCCL_P2P_LEVEL=2", "hint", "NCCL_P2P_LEVEL=PXB"),
    ("NCCL_NET_GDR_LEVEL=5", "hint", "NCCL_NET_GDR_LEVEL=SYS"),
    ("FI_EFA_USE_DEVICE_RDMA=1", "hint", "aws-ofi-nccl"),
    (
        "FI_EFA_FORK_SAFE=1  FI_EFA_ENABLE_SHM_TRANSFER=1  FI_EFA_SET_CUDA_SYNC_MEMOPS=0",
        "hint",
        "efa-installer",
    ),
    ("FI_PROVIDER=efa  NCCL_PROTO=simple", "hint", "slows small messages"),
    ("RDMAV_FORK_SAFE=1", "hint", "child processes"),
    ("NCCL_LAUNCH_MODE=GROUP", "hint", "deprecated"),
    ("TORCH_FR_DUMP_TEMP_FILE=/home/me/trace_", "hint", "overwrites"),
]


@pytest.mark.parametrize(("text", "severity", "words"), HARMFUL)
def test_a_harmful_setting_is_told_once(text, severity, words):
    (finding,) = named(text, "variable-harmful")
    assert finding.severity == severity
    assert words in f"{finding.what} {finding.why} {finding.fix}"


NOT_HARMFUL = [
    "NCCL_ALGO=Ring",
    "NCCL_ALGO=Ring,Tree",
    "NCCL_ALGO=^Tree",
    "NCCL_ALGO=allreduce:tree",
    "NCCL_ALGO=Tree;broadcast:ring",
    "NCCL_ALGO=$ALGO",
    "NCCL_PROTO=Simple",
    "NCCL_PROTO=^LL128",
    "NCCL_PROTO=^LL,LL128",
    "NCCL_P2P_DISABLE=1",
    "NCCL_SHM_DISABLE=1",
    "TORCH_NCCL_BLOCKING_WAIT=0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
    "CUDA_LAUNCH_BLOCKING=0",
    "TORCH_DISTRIBUTED_DEBUG=INFO",
    "NCCL_DEBUG=INFO  NCCL_DEBUG_SUBSYS=INIT,NET",
    "FI_PROVIDER=efa",
    "FI_EFA_USE_HUGE_PAGE=0",
    "FI_EFA_FORK_SAFE=0",
    "NCCL_BUFFSIZE=2097152",
    "TORCH_FR_DUMP_TEMP_FILE=/tmp/trace_",
    "TORCH_FR_DUMP_TEMP_FILE=/home/me/$SLURM_JOB_ID/trace_",
    "TORCH_FR_DUMP_TEMP_FILE=/home/me/4711/trace_",
    "NCCL_SOCKET_IFNAME=lo",
    "TORCH_NCCL_AVOID_RECORD_STREAMS=1",
]


@pytest.mark.parametrize("text", NOT_HARMFUL)
def test_what_does_no_harm_is_not_told(text):
    assert named(text, "variable-harmful") == []


def test_an_algorithm_without_ring_fails_since_2_24():
    (finding,) = named("NCCL_ALGO=Tree", "variable-harmful", versions={"nccl": "2.27.3"})
    assert finding.severity == "error"
    assert named("NCCL_ALGO=Tree", "variable-harmful", versions={"nccl": "2.21.5"}) == []


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_the_loopback_reaches_no_other_node(name):
    assert named(f"{name}=lo", "variable-harmful", num_nodes=1) == []
    (finding,) = named(f"{name}=lo", "variable-harmful", num_nodes=2)
    assert finding.severity == "error"
    assert named(f"{name}=lo  SLURM_NNODES=4", "variable-harmful")


def test_what_is_the_default_now_is_needless():
    text = "TORCH_NCCL_AVOID_RECORD_STREAMS=1"
    assert named(text, "variable-harmful", versions={"torch": "2.6.0"}) == []
    assert named(text, "variable-harmful", versions={"torch": "2.13.0"})


def test_errors_come_first_and_nothing_is_invented():
    found = judge_settings(
        settings("NCCL_DEBUG_SUBSYS=NET  NCCL_TIMEOUT=1  TORCH_DISTRIBUTED_DEBUG=2")
    )
    assert [each.severity for each in found] == ["error", "warning", "hint"]
    assert judge_settings({}) == []


def test_places_of_both_are_told():
    where = {"NCCL_P2P_DISABLE": "/etc/nccl.conf:1", "NCCL_P2P_LEVEL": "job.sh:7"}
    (finding,) = judge_settings({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, where=where)
    assert finding.where == "/etc/nccl.conf:1, job.sh:7"

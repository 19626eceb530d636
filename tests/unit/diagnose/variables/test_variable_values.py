"""Values: what NCCL, torch and gloo make of them, which of them fail, and which are right."""

import random

import pytest

from paceline.diagnose.variables import judge_settings
from paceline.diagnose.variables.lists import ListChoice, parse_choices
from paceline.diagnose.variables.setting import leading_number, number
from paceline.diagnose.variables.table import known

RIGHT = """
NCCL_P2P_LEVEL=LOC
NCCL_P2P_LEVEL=NVL
NCCL_P2P_LEVEL=PIX
NCCL_P2P_LEVEL=PXB
NCCL_P2P_LEVEL=PHB
NCCL_P2P_LEVEL=SYS
NCCL_NET_GDR_LEVEL=PHB
NCCL_ALGO=Ring
NCCL_ALGO=ring,tree
NCCL_ALGO=RING,TREE,NVLS
NCCL_ALGO=^Tree
NCCL_ALGO=^NVLS,NVLSTree
NCCL_ALGO=ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring
NCCL_ALGO=allreduce:^tree
NCCL_ALGO=AllReduce:Tree
NCCL_ALGO=MSCCL,RING,TREE
NCCL_PROTO=Simple
NCCL_PROTO=simple
NCCL_PROTO=LL,Simple
NCCL_PROTO=^LL128
NCCL_DEBUG=INFO
NCCL_DEBUG=info
NCCL_DEBUG=WARN
NCCL_DEBUG=VERSION
NCCL_DEBUG=TRACE
NCCL_BUFFSIZE=8388608
NCCL_BUFFSIZE=0x800000
NCCL_IB_TIMEOUT=22
NCCL_IB_TIMEOUT=31
NCCL_IB_RETRY_CNT=7
NCCL_IB_GID_INDEX=3
NCCL_IB_GID_INDEX=-1
NCCL_IB_TC=106
NCCL_IB_SL=0
NCCL_IB_QPS_PER_CONNECTION=4
NCCL_IB_HCA==mlx5_0:1,mlx5_1:1
NCCL_IB_HCA=^mlx5_bond_0
NCCL_IB_HCA=mlx5_2:1,mlx5_5:1
NCCL_IB_HCA=^ens,eth,docker
NCCL_IB_HCA=ibp
NCCL_IB_HCA=rocep1s0f1,bnxt_re0,irdma0,rdmap0s6
NCCL_IB_PCI_RELAXED_ORDERING=2
NCCL_IB_DISABLE=0
NCCL_IB_DISABLE=1
NCCL_P2P_DISABLE=1
NCCL_P2P_DISABLE=0
NCCL_CROSS_NIC=2
NCCL_NVLS_ENABLE=2
NCCL_NVLS_ENABLE=0
NCCL_NTHREADS=256
NCCL_MAX_CTAS=32
NCCL_SOCKET_NTHREADS=4
NCCL_SOCKET_FAMILY=AF_INET
NCCL_SOCKET_IFNAME=eth0
NCCL_SOCKET_IFNAME==eth0
NCCL_SOCKET_IFNAME==ens1f0,ens1f1
NCCL_SOCKET_IFNAME=^lo,docker
NCCL_SOCKET_IFNAME=^=docker0
NCCL_SOCKET_IFNAME=en,eth,em,bond
NCCL_SOCKET_IFNAME=lo
NCCL_NET=IB
NCCL_NET=Socket
NCCL_NET=socket
NCCL_NET=AWS Libfabric
NCCL_NET=FasTrak
NCCL_NET_PLUGIN=none
NCCL_TUNER_PLUGIN=ofi
NCCL_CHECK_MODE=debug_local
NCCL_RAS_ADDR=localhost:12345
NCCL_CUMEM_ENABLE=0
NCCL_LAUNCH_MODE=PARALLEL
TORCH_NCCL_BLOCKING_WAIT=0
TORCH_NCCL_DUMP_ON_TIMEOUT=true
TORCH_NCCL_DESYNC_DEBUG=YES
TORCH_NCCL_ENABLE_MONITORING=f
TORCH_NCCL_ASYNC_ERROR_HANDLING=3
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800
TORCH_FR_BUFFER_SIZE=20000
TORCH_DISTRIBUTED_DEBUG=INFO
TORCH_DISTRIBUTED_DEBUG=detail
TORCH_DISTRIBUTED_DEBUG=OFF
TORCH_CPP_LOG_LEVEL=INFO
TORCH_CPP_LOG_LEVEL=0
TORCH_DIST_INIT_BARRIER=1
PYTORCH_ALLOC_CONF=expandable_segments:True
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128
PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:[256:1,512:2,1024:4,>:8]
PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync
PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"
PYTORCH_CUDA_ALLOC_CONF=some_option_of_a_fork:1
PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:.8
PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.6, max_split_size_mb:128
GLOO_SOCKET_IFNAME=eth0
GLOO_SOCKET_IFNAME=eth0,eth1
GLOO_DEVICE_TRANSPORT=TCP_TLS
OMP_NUM_THREADS=8
OMP_NUM_THREADS=4,2
CUDA_DEVICE_ORDER=PCI_BUS_ID
CUDA_DEVICE_MAX_CONNECTIONS=1
NCCL_IB_TIMEOUT=$TIMEOUT
NCCL_P2P_LEVEL=${LEVEL:-nvl}
NCCL_ALGO=`choose`
TORCH_NCCL_BLOCKING_WAIT=$WAIT
NCCL_DEBUG=
""".splitlines()[1:]


@pytest.mark.parametrize("line", RIGHT)
@pytest.mark.parametrize(
    "versions", [{}, {"nccl": "2.29.7", "torch": "2.13.0"}], ids=["any", "2.29.7"]
)
def test_a_right_value_is_not_told(line, versions):
    name, _, value = line.partition("=")
    if "MSCCL" in value and versions:
        return
    unknown = [
        each
        for each in judge_settings({name: value}, versions=versions)
        if each.name == "variable-unknown"
    ]
    assert unknown == []


WRONG = [
    # setting, severity, words of what, why or fix
    ("NCCL_P2P_LEVEL=pxb", "warning", "NCCL_P2P_LEVEL=PXB"),
    ("NCCL_P2P_LEVEL=nvl", "warning", "NCCL_P2P_LEVEL=NVL"),
    ("NCCL_P2P_LEVEL=NVLINK", "warning", "NCCL_P2P_LEVEL=NVL"),
    ("NCCL_P2P_LEVEL=PBX", "warning", "NCCL_P2P_LEVEL=PXB"),
    ("NCCL_P2P_LEVEL=PCIE", "warning", "in capitals"),
    ("NCCL_P2P_LEVEL=SYS ", "warning", "NCCL_P2P_LEVEL=SYS"),
    ("NCCL_NET_GDR_LEVEL=phb", "warning", "NCCL_NET_GDR_LEVEL=PHB"),
    ("NCCL_NET_GDR_LEVEL=SYSTEM", "warning", "NCCL_NET_GDR_LEVEL=SYS"),
    ("NCCL_ALGO=Rign", "warning", "Rign -> Ring"),
    ("NCCL_ALGO=Ring, Tree", "warning", "NCCL_ALGO=Ring,Tree"),
    ("NCCL_ALGO=auto", "warning", "choose from Ring"),
    ("NCCL_ALGO=Ring;Tree", "warning", "tree"),
    ("NCCL_ALGO=CollNet", "warning", "collnet"),
    ("NCCL_ALGO=allredcue:tree", "warning", "allreduce"),
    ("NCCL_ALGO=allgather:nvls,reducescatter:ring", "warning", "allgather:nvls;reducescatter:ring"),
    ("NCCL_PROTO=LL64", "warning", "LL"),
    ("NCCL_PROTO=simpel", "warning", "Simple"),
    ("NCCL_DEBUG=ERROR", "warning", "NCCL_DEBUG=WARN"),
    ("NCCL_DEBUG=DEBUG", "warning", "NCCL_DEBUG=INFO"),
    ("NCCL_DEBUG=WARNING", "warning", "NCCL_DEBUG=WARN"),
    ("NCCL_DEBUG=1", "warning", "NCCL_DEBUG=INFO"),
    ("NCCL_DEBUG=INF0", "warning", "NCCL_DEBUG=INFO"),
    ("NCCL_DEBUG=OFF", "hint", "unset NCCL_DEBUG"),
    ("NCCL_DEBUG_SUBSYS=INIT,NETWORK", "hint", "NETWORK -> NET"),
    ("NCCL_BUFFSIZE=4M", "warning", "NCCL_BUFFSIZE=4194304"),
    ("NCCL_BUFFSIZE=8MiB", "warning", "NCCL_BUFFSIZE=8388608"),
    ("NCCL_BUFFSIZE=64kb", "warning", "NCCL_BUFFSIZE=65536"),
    ("NCCL_BUFFSIZE=2**22", "warning", "reads 2"),
    ("NCCL_BUFFSIZE=1e6", "warning", "reads 1"),
    ("NCCL_IB_TIMEOUT=50", "warning", "from 0 to 31"),
    ("NCCL_IB_TIMEOUT=60s", "warning", "from 0 to 31"),
    ("NCCL_IB_TIMEOUT=22s", "hint", "reads 22"),
    ("NCCL_IB_TIMEOUT=0", "hint", "without an end"),
    ("NCCL_IB_RETRY_CNT=13", "warning", "from 0 to 7"),
    ("NCCL_IB_QPS_PER_CONNECTION=0", "warning", "from 1 to 128"),
    ("NCCL_CROSS_NIC=3", "warning", "from 0 to 2"),
    ("NCCL_NVLS_ENABLE=3", "warning", "from 0 to 2"),
    ("NCCL_NTHREADS=100", "warning", "multiple of 32"),
    ("NCCL_NTHREADS=1024", "warning", "from 64 to 512"),
    ("NCCL_SOCKET_NTHREADS=32", "warning", "from 1 to 16"),
    ("NCCL_MAX_CTAS=128", "warning", "from 1 to 64"),
    ("NCCL_P2P_DISABLE=true", "warning", "NCCL_P2P_DISABLE=1"),
    ("NCCL_P2P_DISABLE=yes", "warning", "reads 0"),
    ("NCCL_P2P_DISABLE=2", "warning", "0 or 1"),
    ("NCCL_IB_DISABLE=True", "warning", "NCCL_IB_DISABLE=1"),
    ("NCCL_IB_DISABLE=on", "warning", "NCCL_IB_DISABLE=1"),
    ("NCCL_IB_DISABLE=false", "hint", "happens to be"),
    ("NCCL_SHM_DISABLE=TRUE", "warning", "NCCL_SHM_DISABLE=1"),
    ("NCCL_SOCKET_FAMILY=ipv4", "warning", "AF_INET"),
    ("NCCL_SOCKET_FAMILY=AF_INET4", "warning", "NCCL_SOCKET_FAMILY=AF_INET"),
    ("NCCL_SOCKET_IFNAME=^lo,^docker0", "warning", "NCCL_SOCKET_IFNAME=^lo,docker0"),
    ("NCCL_SOCKET_IFNAME==eth0,=eth1", "warning", "NCCL_SOCKET_IFNAME==eth0,eth1"),
    ("NCCL_SOCKET_IFNAME=eth*", "error", "NCCL_SOCKET_IFNAME=eth"),
    ("NCCL_SOCKET_IFNAME=eth0 eth1", "warning", "NCCL_SOCKET_IFNAME=eth0,eth1"),
    ("NCCL_SOCKET_IFNAME=10.0.0.1", "warning", "an address"),
    ("NCCL_NET=Sockets", "warning", "NCCL_NET=Socket"),
    ("NCCL_NET=tcp", "warning", "NCCL_NET=Socket"),
    ("NCCL_NET=infiniband", "warning", "NCCL_NET=IB"),
    ("NCCL_NET=efa", "warning", "unset NCCL_NET"),
    ("NCCL_IB_HCA=ib0", "warning", "names of cards"),
    ("NCCL_IB_HCA=eth0:1,eth1", "warning", "/sys/class/infiniband"),
    ("NCCL_CHECK_MODE=LOCAL", "warning", "DEBUG_LOCAL"),
    ("TORCH_NCCL_BLOCKING_WAIT=on", "error", "TORCH_NCCL_BLOCKING_WAIT=1"),
    ("TORCH_NCCL_DUMP_ON_TIMEOUT=2", "error", "Invalid value for environment variable"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING=true", "error", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING=5", "warning", "from 0 to 3"),
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=30min", "warning", "reads 30"),
    ("TORCH_FR_BUFFER_SIZE=big", "error", "takes a number"),
    ("NCCL_BLOCKING_WAIT=on", "error", "NCCL_BLOCKING_WAIT=1"),
    ("TORCH_DISTRIBUTED_DEBUG=1", "error", "OFF, INFO, DETAIL"),
    ("TORCH_DISTRIBUTED_DEBUG=DETAILS", "error", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    ("TORCH_NCCL_USE_COMM_NONBLOCKING=true", "warning", "0 or 1"),
    ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments=True", "error", "expandable_segments:True"),
    ("PYTORCH_CUDA_ALLOC_CONF=max_split_size:128", "error", "max_split_size_mb"),
    ("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:10", "error", "20 at least"),
    ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:true", "error", "expandable_segments:True"),
    ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:0", "error", "expandable_segments:False"),
    (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True;max_split_size_mb:64",
        "error",
        "True or False",
    ),
    ("PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:80", "error", "between 0 and 1"),
    ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments", "error", "has no value"),
    ("PYTORCH_ALLOC_CONF=expandable_segment:True", "error", "expandable_segments"),
    ("GLOO_SOCKET_IFNAME=^lo,docker0", "warning", "Unable to find address for: ^lo"),
    ("GLOO_SOCKET_IFNAME==eth0", "warning", "GLOO_SOCKET_IFNAME=eth0"),
    ("OMP_NUM_THREADS=0", "warning", "number of threads"),
    ("OMP_NUM_THREADS=auto", "warning", "number of threads"),
    ("CUDA_DEVICE_ORDER=PCI_BUS", "warning", "PCI_BUS_ID"),
    ("CUDA_DEVICE_MAX_CONNECTIONS=64", "warning", "from 1 to 32"),
]


@pytest.mark.parametrize(("line", "severity", "words"), WRONG)
def test_a_value_that_is_not_understood_is_told(line, severity, words):
    name, _, value = line.partition("=")
    found = [each for each in judge_settings({name: value}) if each.name == "variable-unknown"]
    assert len(found) == 1, found
    (finding,) = found
    assert finding.severity == severity
    assert words.lower() in f"{finding.what} {finding.why} {finding.fix}".lower()
    assert finding.what.startswith(f"{name}={value.strip()}: ")


@pytest.mark.parametrize(
    ("version", "severity", "words"),
    [
        ("2.21.5", "warning", "the word is ignored"),
        ("2.23.4", "warning", "the word is ignored"),
        ("2.24.3", "error", "Unrecognized element token"),
        ("2.32.3", "error", "Unrecognized element token"),
    ],
)
def test_a_misspelt_algorithm_is_fatal_since_2_24(version, severity, words):
    (finding,) = judge_settings({"NCCL_ALGO": "Ring,Tre"}, versions={"nccl": version})
    assert finding.severity == severity
    assert words in finding.why


@pytest.mark.parametrize(
    ("value", "version", "told"),
    [
        ("Ring,PAT", "2.21.5", "2.23"),
        ("Ring,NVLS", "2.16.2", "2.17"),
        ("Ring,NVLSTree", "2.17.1", "2.18"),
        ("Ring,PAT", "2.29.7", ""),
        ("Ring,Collnet", "2.13.4", ""),
    ],
)
def test_an_algorithm_of_another_version_is_told(value, version, told):
    found = judge_settings({"NCCL_ALGO": value}, versions={"nccl": version})
    assert [each.name for each in found] == (["variable-unknown"] if told else [])
    assert told in "".join(each.what for each in found)


def test_the_level_attn_is_new():
    assert judge_settings({"NCCL_DEBUG": "ATTN"}, versions={"nccl": "2.32.3"}) == []
    (finding,) = judge_settings({"NCCL_DEBUG": "ATTN"}, versions={"nccl": "2.29.7"})
    assert "2.32" in finding.what


@pytest.mark.parametrize(
    ("value", "choices"),
    [
        ("Ring", [ListChoice("", False, ("ring",))]),
        ("^Tree,NVLS", [ListChoice("", True, ("tree", "nvls"))]),
        (
            "ring;allreduce:^tree",
            [ListChoice("", False, ("ring",)), ListChoice("allreduce", True, ("tree",))],
        ),
        ("", []),
        (";", []),
    ],
)
def test_algorithms_are_read_as_nccl_reads_them(value, choices):
    assert parse_choices(value) == choices


@pytest.mark.parametrize(
    ("text", "whole", "beginning"),
    [
        ("1", 1, 1),
        (" 22 ", 22, 22),
        ("-1", -1, -1),
        ("0x10", 16, 16),
        ("010", 8, 8),
        ("0", 0, 0),
        ("4M", None, 4),
        ("true", None, 0),
        ("", None, 0),
        ("1e6", None, 1),
        ("0xZ", None, 0),
    ],
)
def test_numbers_are_read_as_c_reads_them(text, whole, beginning):
    assert number(text) == whole
    assert leading_number(text) == beginning


@pytest.mark.parametrize(
    "value",
    ["", " ", "^", "=", ",", ";", ":", "^^", "==", "*", "\x00", "é", "a" * 10_000, "[", "\n"],
)
@pytest.mark.parametrize(
    "name",
    [
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "NCCL_DEBUG",
        "NCCL_BUFFSIZE",
    ],
)
def test_no_value_is_too_odd(name, value):
    for finding in judge_settings({name: value}):
        assert finding.render()


def test_no_setting_at_all_is_too_odd():
    """Names and values at random, made of what settings are made of."""
    chance = random.Random(0)
    parts = [
        "NCCL_",
        "TORCH_",
        "NCCL",
        "_",
        "DEBUG",
        "IB_HCA",
        "ALGO",
        "=",
        "^",
        ",",
        ";",
        ":",
        "1",
        "0",
        " ",
        "\t",
        "é",
        "[",
        "*",
    ]
    for _ in range(500):
        settings = {
            "".join(chance.choices(parts, k=chance.randint(1, 6))): "".join(
                chance.choices(parts, k=chance.randint(0, 8))
            )
            for _ in range(3)
        } | {
            chance.choice(list(known())): "".join(chance.choices(parts, k=chance.randint(0, 5)))
            for _ in range(3)
        }
        for finding in judge_settings(
            settings, versions={"nccl": chance.choice(["2.19.3", "2.29.7", "", "x"])}
        ):
            assert finding.render()
            assert "\n" not in finding.what

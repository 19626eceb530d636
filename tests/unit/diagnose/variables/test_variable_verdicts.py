"""What is true of each variable that people set, one verdict a line, for an NCCL 2.29.7 and a torch 2.13."""

import pytest

from paceline.diagnose.variables import judge_settings
from paceline.diagnose.variables.table import known

VERSIONS = {"nccl": "2.29.7", "torch": "2.13.0"}

# settings -> (name, severity) of what is told; nothing where it is real and right
VERDICTS = """
NCCL_TIMEOUT=1800                                   variable-unknown warning
NCCL_SOCKET_TIMEOUT=1800                            variable-unknown warning
TORCH_NCCL_TIMEOUT=1800                             variable-unknown warning
TORCH_DISTRIBUTED_TIMEOUT=1800                      variable-unknown warning
NCCL_HEARTBEAT_TIMEOUT=1800                         variable-unknown warning
NCCL_CHECK_TIMEOUT=1800                             variable-unknown warning
TORCH_DIST_INIT_BARRIER=1
NCCL_ASYNC_ERROR_HANDLING=1                         variable-renamed hint
NCCL_BLOCKING_WAIT=0                                variable-renamed hint
NCCL_DESYNC_DEBUG=1                                 variable-renamed hint
NCCL_ENABLE_TIMING=1                                variable-renamed hint
TORCH_NCCL_ASYNC_ERROR_HANDLING=1
TORCH_NCCL_ASYNC_ERROR_HANDLING=3
TORCH_NCCL_ASYNC_ERROR_HANDLING=0                   variable-harmful hint
TORCH_NCCL_BLOCKING_WAIT=1                          variable-harmful hint
TORCH_NCCL_AVOID_RECORD_STREAMS=1                   variable-harmful hint
TORCH_FR_BUFFER_SIZE=2000
TORCH_FR_BUFFER_SIZE=0                              variable-harmful hint
TORCH_NCCL_TRACE_BUFFER_SIZE=2000                   variable-renamed hint
TORCH_FR_CPP_STACK=1
TORCH_NCCL_TRACE_CPP_STACK=1                        variable-renamed hint
TORCH_FR_DUMP_TEMP_FILE=/scratch/4711/trace_
TORCH_FR_DUMP_TEMP_FILE=/home/me/trace_             variable-harmful hint
TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/4711/trace_    variable-renamed hint
TORCH_FR_DUMP_DYNAMIC_FILE_NAME=1
TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/pipe_
TORCH_NCCL_DUMP_ON_TIMEOUT=1
TORCH_NCCL_EXTRA_DUMP_ON_EXEC=1
TORCH_INCLUDE_STACK_TRACE=1
TORCH_INCLUDE_ONLY_ACTIVE=1
TORCH_NCCL_DESYNC_DEBUG=1
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=480
TORCH_NCCL_ENABLE_MONITORING=1
TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=15000
TORCH_NCCL_COORD_CHECK_MILSEC=1000
TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN=1
TORCH_NCCL_RETHROW_CUDA_ERRORS=1
TORCH_NCCL_NAN_CHECK=0
TORCH_NCCL_PROPAGATE_ERROR=1
TORCH_NCCL_CUDA_EVENT_CACHE=1
TORCH_NCCL_RANKS_PER_ROOT=128
TORCH_NCCL_HIGH_PRIORITY=1
TORCH_NCCL_USE_COMM_NONBLOCKING=1
TORCH_NCCL_USE_COMM_NONBLOCKING=1;TORCH_NCCL_NONBLOCKING_TIMEOUT=60
TORCH_NCCL_BCAST_UNIQUEID=1
TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=1
NCCL_LL_THRESHOLD=0                                 variable-unknown warning
NCCL_TREE_THRESHOLD=0                               variable-unknown warning
NCCL_SINGLE_RING_THRESHOLD=0                        variable-unknown warning
NCCL_RINGS=01                                       variable-unknown warning
NCCL_CHECKS_DISABLE=1                               variable-unknown warning
NCCL_IB_CUDA_SUPPORT=1                              variable-renamed warning
NCCL_WORK_FIFO_DEPTH=65536                          variable-renamed warning
NCCL_CHECK_POINTERS=1                               variable-renamed hint
NCCL_CHECK_MODE=DEBUG_LOCAL
NCCL_MIN_NRINGS=4                                   variable-renamed hint
NCCL_MAX_NRINGS=4                                   variable-renamed hint
NCCL_MIN_NCHANNELS=4                                variable-renamed hint
NCCL_MAX_NCHANNELS=4                                variable-renamed hint
NCCL_MIN_CTAS=4
NCCL_MAX_CTAS=64
NCCL_MAX_CTAS=65                                    variable-unknown warning
NCCL_MIN_CHANNELS=32                                variable-unknown warning
NCCL_SHM_USE_CUDA_MEMCPY=1
NCCL_IB_GDR_LEVEL=PHB                               variable-renamed warning
NCCL_NET_GDR_LEVEL=PHB
NCCL_P2P_DISABLE=1
NCCL_P2P_DISABLE=1;NCCL_P2P_LEVEL=NVL               variable-contradicted warning
NCCL_P2P_LEVEL=NVL
NCCL_P2P_LEVEL=nvl                                  variable-unknown warning
NCCL_P2P_LEVEL=3                                    variable-harmful hint
NCCL_BUFFSIZE=4194304
NCCL_BUFFSIZE=4M                                    variable-unknown warning
NCCL_ALGO=ring,tree
NCCL_ALGO=^NVLS
NCCL_ALGO=allreduce:tree,ring;broadcast:ring
NCCL_ALGO=Rinng                                     variable-unknown error
NCCL_ALGO=Tree                                      variable-harmful error
NCCL_PROTO=LL,Simple
NCCL_PROTO=LL128                                    variable-harmful hint
NCCL_PROTO=LL127                                    variable-unknown error
NCCL_SOCKET_IFNAME=eth,ens
NCCL_SOCKET_IFNAME==eth0
NCCL_SOCKET_IFNAME=^docker,lo
NCCL_SOCKET_NTHREADS=4;NCCL_NSOCKS_PERTHREAD=4
NCCL_SOCKET_NTHREADS=16;NCCL_NSOCKS_PERTHREAD=8     variable-contradicted warning
NCCL_IB_TIMEOUT=22
NCCL_IB_TIMEOUT=32                                  variable-unknown warning
NCCL_NVLS_ENABLE=0
NCCL_CUMEM_HOST_ENABLE=0
NCCL_RAS_ENABLE=0
NCCL_RAS_ADDR=localhost:28029
NCCL_CONF_FILE=/etc/other.conf
FI_EFA_USE_DEVICE_RDMA=1                            variable-harmful hint
FI_EFA_FORK_SAFE=1                                  variable-harmful hint
RDMAV_FORK_SAFE=1                                   variable-harmful hint
FI_EFA_ENABLE_SHM_TRANSFER=1                        variable-harmful hint
FI_PROVIDER=efa;NCCL_PROTO=simple                   variable-harmful hint
FI_PROVIDER=efa;NCCL_SOCKET_NTHREADS=4              variable-contradicted hint
FI_PROVIDER=efa
FI_EFA_USE_HUGE_PAGE=0
NCCL_TUNER_PLUGIN=ofi
""".splitlines()[1:]


@pytest.mark.parametrize("line", VERDICTS, ids=lambda line: line.split()[0])
def test_the_verdict_is_given(line):
    text, *told = line.split()
    # a list of NCCL_ALGO has semicolons too: only those before a name separate settings
    parts = text.replace(";NCCL", "\n" + "NCCL").replace(";TORCH", "\n" + "TORCH").split("\n")
    found = judge_settings(dict(part.split("=", 1) for part in parts), versions=VERSIONS)
    assert [(each.name, each.severity) for each in found] == ([tuple(told)] if told else [])


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3 "),
        ("TORCH_FR_BUFFER_SIZE", "2000"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1 "),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "480"),
        ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "15000"),
        ("NCCL_BUFFSIZE", "4194304"),
        ("NCCL_IB_TIMEOUT", "20 "),
        ("NCCL_IB_RETRY_CNT", "7"),
        ("NCCL_NVLS_ENABLE", "2"),
        ("NCCL_RAS_ADDR", "localhost:28028"),
        ("NCCL_SOCKET_NTHREADS", "1 (AWS 2, gVNIC 4)"),
        ("NCCL_NSOCKS_PERTHREAD", "1 (AWS 8)"),
        ("TORCH_DIST_INIT_BARRIER", "0"),
    ],
)
def test_the_default_is_known(name, default):
    assert f"{known()[name].default} ".startswith(default)

"""Names: which are real, in which version, which are folklore, renamed or misspelt."""

import pytest

from paceline.diagnose.variables import judge_settings
from paceline.diagnose.variables.families import closest_real, distance, is_relevant
from paceline.diagnose.variables.folklore import FOLKLORE, folklore
from paceline.diagnose.variables.renamed import RENAMED
from paceline.diagnose.variables.table import known, newest_version


def findings(name, value="1", **versions):
    return judge_settings({name: value}, versions=versions)


def one(name, value="1", **versions):
    found = findings(name, value, **versions)
    assert len(found) == 1, found
    return found[0]


TIMEOUTS = (
    "NCCL_TIMEOUT",
    "NCCL_SOCKET_TIMEOUT",
    "NCCL_SOCKET_TIMEOUT_MS",
    "NCCL_TIMEOUT_MINUTES",
    "NCCL_COMM_TIMEOUT",
    "NCCL_CONNECT_TIMEOUT",
    "NCCL_BLOCKING_WAIT_TIMEOUT",
    "TORCH_NCCL_TIMEOUT",
    "TORCH_NCCL_TIMEOUT_SEC",
    "TORCH_DISTRIBUTED_TIMEOUT",
    "TORCH_DIST_TIMEOUT",
    "TORCH_DISTRIBUTED_DEFAULT_TIMEOUT",
    "NCCL_HEARTBEAT_TIMEOUT",
    "GLOO_TIMEOUT",
    "GLOO_TIMEOUT_SECONDS",
)


@pytest.mark.parametrize("name", TIMEOUTS)
def test_a_timeout_is_an_argument_and_not_a_variable(name):
    finding = one(name, "1800")
    assert (finding.name, finding.severity) == ("variable-unknown", "warning")
    assert "init_process_group(timeout=" in finding.fix
    assert "--hang-timeout" in finding.fix


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("NCCL_P2P_DISBALE", "NCCL_P2P_DISABLE"),
        ("NCCL_DISABLE_P2P", "NCCL_P2P_DISABLE"),
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_IB_DISABLED", "NCCL_IB_DISABLE"),
        ("NCCL_DISABLE_IB", "NCCL_IB_DISABLE"),
        ("NCCL_SOCKET_IFNAM", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKET_IF_NAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_DEBUG_SUBSYSTEM", "NCCL_DEBUG_SUBSYS"),
        ("NCCL_DEBUG_SUBSYSTEMS", "NCCL_DEBUG_SUBSYS"),
        ("NCCL_NSOCKS_PER_THREAD", "NCCL_NSOCKS_PERTHREAD"),
        ("NCCL_SOCKET_NTHREAD", "NCCL_SOCKET_NTHREADS"),
        ("NCCL_NET_GDR_LEVLE", "NCCL_NET_GDR_LEVEL"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("TORCH_NCCL_DEBUG", "NCCL_DEBUG"),
        ("NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
        ("NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
        ("NCCL_ASYNC_ERROR_HANDLIN", "NCCL_ASYNC_ERROR_HANDLING"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDELING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("TORCH_DISTRIBUTED_DEUBG", "TORCH_DISTRIBUTED_DEBUG"),
        ("GLOO_SOCKET_IFNAMES", "GLOO_SOCKET_IFNAME"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("CUDA_VISBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
        ("MKL_NUM_THREAD", "MKL_NUM_THREADS"),
        ("FI_EFA_USE_DEVICE_RMDA", "FI_EFA_USE_DEVICE_RDMA"),
        ("PYTORCH_CUDA_ALLOC_CONFIG", "PYTORCH_CUDA_ALLOC_CONF"),
        ("PET_NPROC_PER_NODES", "PET_NPROC_PER_NODE"),
        ("NCCL_IB_GID", "NCCL_IB_GID_INDEX"),
        ("NCCL_NET_GDR", "NCCL_NET_GDR_LEVEL"),
        ("NCCL_NVLS", "NCCL_NVLS_ENABLE"),
        ("TORCH_FR_BUFFER", "TORCH_FR_BUFFER_SIZE"),
        ("NCCL_IB_RETRY_COUNT", "NCCL_IB_RETRY_CNT"),
        ("NCCL_GDR_READ", "NCCL_NET_GDR_READ"),
        ("TORCH_NCCL_TRACE_BUFFER", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ],
)
def test_a_misspelt_name_is_told_with_the_real_one(name, real):
    assert closest_real(name) == real
    finding = one(name)
    assert (finding.name, finding.severity) == ("variable-unknown", "warning")
    assert real in finding.fix


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("NCCL_MIN_CHANNELS", "NCCL_MIN_CTAS"),
        ("NCCL_MAX_CHANNELS", "NCCL_MAX_CTAS"),
        ("NCCL_SOCKET_INTERFACE", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_OOB_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_LOG_LEVEL", "NCCL_DEBUG=INFO"),
        ("NCCL_IB_ENABLE", "NCCL_IB_DISABLE"),
        ("NCCL_P2P_ENABLE", "NCCL_P2P_DISABLE"),
        ("NCCL_BUFFER_SIZE", "NCCL_BUFFSIZE"),
        ("NCCL_GDR_ENABLE", "NCCL_NET_GDR_LEVEL"),
        ("TORCH_DISTRIBUTED_DETAIL", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    ],
)
def test_folklore_is_answered_with_what_does_it(name, instead):
    finding = one(name)
    assert finding.name == "variable-unknown"
    assert instead in finding.fix


def test_folklore_is_not_real():
    assert [name for name in known() if folklore(name)] == []


@pytest.mark.parametrize("entry", FOLKLORE, ids=lambda entry: entry.names[0])
def test_folklore_is_told_by_its_names(entry):
    for name in entry.names:
        assert folklore(name) == entry
        assert one(name).fix == entry.instead


@pytest.mark.parametrize("name", sorted(known()))
def test_a_real_name_is_never_called_unknown(name):
    variable = known()[name]
    if variable.until:
        return
    unknown = [each for each in findings(name, "$VALUE") if each.name == "variable-unknown"]
    assert unknown == []
    assert is_relevant(name)
    assert closest_real(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_HOME",
        "NCCL_ROOT",
        "NCCL_ROOT_DIR",
        "NCCL_INCLUDE_DIR",
        "NCCL_LIB_DIR",
        "NCCL_LIBRARY",
        "NCCL_VERSION",
        "NCCL_TESTS_PATH",
        "NCCL_LOG_DIR",
        "NCCL_FASTRAK_IFNAME",
        "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME",
        "NCCL_INSPECTOR_ENABLE",
        "NCCL_DYNAMIC_CHUNK_SIZE",
        "NCCL_TEMP_DIR",
        "FI_OFI_RXR_RX_COPY_UNEXP",
        "TORCH_SHARE_RDZV_TCP_STORE",
        "NCCL_TUNER_CONFIG_PATH",
        "NCCL_PROFILE_EVENT_MASK",
        "NCCL_IBEXT_DISABLE",
        "UCX_TLS",
        "UCX_IB_SOMETHING_ELSE",
        "FI_CXI_SOMETHING",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_ROOT",
        "CUDA_VERSION",
        "OMP_TARGET_OFFLOAD",
        "MKLROOT",
        "PYTORCH_VERSION",
        "RANK",
        "PATH",
        "HCCL_CONNECT_TIMEOUT",
        "WANDB_MODE",
    ],
)
def test_what_others_read_is_left_alone(name):
    assert findings(name) == []


def test_a_name_that_nobody_knows_is_told():
    finding = one("NCCL_FOO_BAR")
    assert finding.what == f"no NCCL up to {newest_version('nccl')} reads NCCL_FOO_BAR"
    assert finding.severity == "warning"


@pytest.mark.parametrize("value", ["aws-ofi", "/opt/lib/libnccl-net.so"])
def test_a_plugin_may_read_what_nobody_knows(value):
    assert judge_settings({"NCCL_NET_PLUGIN": value, "NCCL_FOO_BAR": "1"}) == []


def test_a_newer_nccl_may_read_what_the_table_does_not_know():
    assert findings("NCCL_FOO_BAR", nccl="2.99.1") == []


@pytest.mark.parametrize(
    ("name", "value", "versions", "words"),
    [
        ("NCCL_RAS_ENABLE", "1", {"nccl": "2.21.5"}, "since 2.24"),
        ("NCCL_CUMEM_HOST_ENABLE", "1", {"nccl": "2.19.3"}, "since 2.23"),
        ("NCCL_NVLS_ENABLE", "0", {"nccl": "2.14.3"}, "since 2.17"),
        ("NCCL_CTA_POLICY", "ZERO", {"nccl": "2.26.5"}, "since 2.27"),
        ("NCCL_MIN_CTAS", "4", {"nccl": "2.16.2"}, "since 2.17"),
        ("NCCL_SHM_USE_CUDA_MEMCPY", "1", {"nccl": "2.30.7"}, "the last to do so was 2.29.7"),
        (
            "NCCL_WORK_FIFO_DEPTH",
            "65536",
            {"nccl": "2.27.3"},
            "NCCL_WORK_FIFO_BYTES since NCCL 2.22",
        ),
        ("NCCL_LL_THRESHOLD", "0", {}, "no longer reads"),
        ("NCCL_TREE_THRESHOLD", "0", {}, "no longer reads"),
        ("NCCL_SINGLE_RING_THRESHOLD", "0", {"nccl": "2.29.7"}, "no longer reads|does not read"),
        ("NCCL_RINGS", "0 1 | 1 0", {}, "no longer reads"),
        ("NCCL_CHECKS_DISABLE", "1", {}, "no longer reads"),
        ("TORCH_FR_BUFFER_SIZE", "2000", {"torch": "2.6.0"}, "since 2.8"),
        ("TORCH_NCCL_BLOCKING_WAIT", "0", {"torch": "2.1.2+cu118"}, "since 2.2"),
        ("TORCH_NCCL_PROPAGATE_ERROR", "1", {"torch": "2.5.1"}, "since 2.7"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", {"torch": "2.8.0"}, "since 2.9"),
        ("GLOO_LOG_LEVEL", "INFO", {"torch": "2.9.1"}, "since 2.11"),
    ],
)
def test_a_name_of_another_version_is_told(name, value, versions, words):
    found = [each for each in findings(name, value, **versions) if each.severity == "warning"]
    assert len(found) == 1
    assert any(word in found[0].what for word in words.split("|"))


@pytest.mark.parametrize(
    ("name", "value", "versions"),
    [
        ("NCCL_RAS_ENABLE", "1", {"nccl": "2.24.3"}),
        ("NCCL_RAS_ENABLE", "1", {"nccl": "2.29.7"}),
        ("NCCL_RAS_ENABLE", "1", {}),
        ("NCCL_SHM_USE_CUDA_MEMCPY", "1", {"nccl": "2.29.7"}),
        ("NCCL_SHM_USE_CUDA_MEMCPY", "1", {}),
        ("NCCL_WORK_FIFO_DEPTH", "65536", {"nccl": "2.19.3"}),
        ("TORCH_FR_BUFFER_SIZE", "2000", {"torch": "2.13.0+cpu"}),
        ("TORCH_DIST_INIT_BARRIER", "1", {"torch": "2.13.0"}),
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "/tmp/pipe", {"torch": "2.13.0"}),
        ("NCCL_CHECK_MODE", "DEBUG_LOCAL", {"nccl": "2.29.2"}),
        ("NCCL_IB_HCA", "mlx5", {"nccl": "not a version"}),
    ],
)
def test_a_name_of_the_installed_version_is_not(name, value, versions):
    assert findings(name, value, **versions) == []


@pytest.mark.parametrize(
    ("old", "new", "severity"),
    [
        ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "hint"),
        ("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT", "hint"),
        ("NCCL_DESYNC_DEBUG", "TORCH_NCCL_DESYNC_DEBUG", "hint"),
        ("NCCL_ENABLE_TIMING", "TORCH_NCCL_ENABLE_TIMING", "hint"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", "hint"),
        ("TORCH_NCCL_TRACE_CPP_STACK", "TORCH_FR_CPP_STACK", "hint"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE", "hint"),
        ("NCCL_MIN_NRINGS", "NCCL_MIN_CTAS", "hint"),
        ("NCCL_MAX_NRINGS", "NCCL_MAX_CTAS", "hint"),
        ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS", "hint"),
        ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "hint"),
        ("NCCL_IB_GDR_LEVEL", "NCCL_NET_GDR_LEVEL", "warning"),
        ("NCCL_IB_CUDA_SUPPORT", "NCCL_NET_GDR_LEVEL", "warning"),
        ("NCCL_MNNVL", "NCCL_MNNVL_ENABLE", "warning"),
    ],
)
def test_a_renamed_variable_is_told_with_its_name_now(old, new, severity):
    (finding,) = [each for each in findings(old) if each.name == "variable-renamed"]
    assert finding.severity == severity
    assert f"{old} is called {new} since" in finding.what
    assert finding.fix.startswith(f"{old} -> {new}")


def test_the_old_name_is_right_where_the_new_one_is_not_read_yet():
    assert findings("NCCL_ASYNC_ERROR_HANDLING", torch="2.1.2") == []
    assert findings("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", torch="2.6.0") == []
    assert findings("NCCL_MIN_NCHANNELS", "4", nccl="2.16.2") == []


def test_the_allocator_is_renamed_only_where_the_version_is_known():
    assert findings("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True") == []
    finding = one("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", torch="2.13.0")
    assert (finding.name, finding.severity) == ("variable-renamed", "hint")


def test_every_new_name_is_real():
    assert [change.new for change in RENAMED.values() if change.new not in known()] == []


def test_a_name_with_blanks_or_words_is_another_name():
    found = judge_settings({"NCCL_DEBUG ": "INFO", "export NCCL_IB_HCA": "mlx5"})
    assert [each.name for each in found] == ["variable-unknown"] * 2
    assert [each.fix for each in found] == ["NCCL_DEBUG=INFO", "NCCL_IB_HCA=mlx5"]


def test_the_place_is_told():
    (finding,) = judge_settings({"NCCL_TIMEOUT": "1"}, where={"NCCL_TIMEOUT": "/etc/nccl.conf:3"})
    assert finding.where == "/etc/nccl.conf:3"
    assert finding.evidence == ("NCCL_TIMEOUT=1",)


def test_a_secret_is_not_shown():
    (finding,) = judge_settings({"NCCL_PSKS_TOKEN": "hunter2"})
    assert "hunter2" not in finding.render()


@pytest.mark.parametrize(
    ("one", "other", "limit", "letters"),
    [
        ("ab", "ab", 2, 0),
        ("ab", "ba", 2, 1),
        ("abc", "abd", 2, 1),
        ("abc", "abcd", 2, 1),
        ("abc", "xyz", 2, 3),
    ],
)
def test_letters_are_counted(one, other, limit, letters):
    assert distance(one, other, limit) == letters

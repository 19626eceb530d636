"""The plan: options and facts in, decisions with their reasons out."""

import json
from dataclasses import replace

import pytest

from paceline.errors import SetupError, UsageError
from paceline.launch.plan import plan as planning
from paceline.launch.plan.parsing import parse
from paceline.launch.plan.plan import Choice
from paceline.machine.host import HostFacts
from refusals import refusal
from typed import words


def asked(**typed):
    return parse("train.py", (), typed=typed, inherited={})


def machine(*, gpus=0, cpus=8, platform="linux"):
    return HostFacts(
        hostname="box",
        platform=platform,
        usable_cpus=cpus,
        cpu_reason="CPU affinity",
        num_gpus=gpus,
        gpu_reason="GPUs of the machine" if gpus else "no NVIDIA driver answers",
        addresses=(("eth0", "10.0.0.1"),),
    )


def planned(facts=None, environ=None, source="", **typed):
    return planning.make(asked(**typed), facts or machine(), environ=environ or {}, source=source)


# ------------------------------------------------------------------------------------------------- ranks


@pytest.mark.parametrize(
    ("text", "gpus", "expected", "reason"),
    [
        ("", 0, 1, "no GPU here"),
        ("", 4, 4, "one per GPU (GPUs of the machine)"),
        ("3", 0, 3, "--nproc-per-node"),
        ("3", 4, 3, "--nproc-per-node"),
        ("gpu", 2, 2, "one per GPU (GPUs of the machine)"),
        ("auto", 2, 2, "one per GPU (GPUs of the machine)"),
        ("auto", 0, 8, "one per usable CPU (CPU affinity)"),
        ("cpu", 2, 8, "one per usable CPU (CPU affinity)"),
    ],
)
def test_ranks_of_a_node(text, gpus, expected, reason):
    assert planning.choose_nproc(text, machine(gpus=gpus)) == Choice(expected, reason)


@pytest.mark.parametrize("text", ["gpu", "xpu"])
def test_devices_that_are_not_there_are_a_finding(text):
    finding = refusal(SetupError, planned, nproc_per_node=text)
    assert finding.name == "gpus-fewer-than-processes"
    assert finding.where == "box"
    assert finding.evidence == ("no NVIDIA driver answers",)
    assert text.upper() in finding.what


# ----------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize(
    ("cpus", "nproc", "threads"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 2, 1), (2, 8, 1), (1, 1, 1)]
)
def test_threads_are_an_equal_share_of_the_usable_cpus(cpus, nproc, threads):
    chosen = planned(machine(cpus=cpus), nproc_per_node=str(nproc)).threads
    assert chosen == Choice(
        threads, f"{cpus} usable CPU{'s' * (cpus > 1)} / {nproc} rank{'s' * (nproc > 1)}"
    )


def test_the_users_own_number_of_threads_is_left_alone():
    chosen = planned(environ={"OMP_NUM_THREADS": "3"}).threads
    assert chosen == Choice(None, "OMP_NUM_THREADS=3 is set")


def test_an_empty_variable_counts_as_unset():
    assert planned(environ={"OMP_NUM_THREADS": ""}).threads.value == 8


# ---------------------------------------------------------------------------------------------- endpoint


@pytest.mark.parametrize(
    ("typed", "rendezvous", "host", "port"),
    [
        ("", "local", "127.0.0.1", 0),
        ("standalone", "local", "127.0.0.1", 0),
        ("standalone rdzv_backend=c10d", "local", "127.0.0.1", 0),
        ("rdzv_backend=c10d", "local", "127.0.0.1", 0),
        ("master_port=29501", "static", "127.0.0.1", 29501),
        ("master_port=0", "static", "127.0.0.1", 0),
        ("nnodes=2 master_addr=head", "static", "head", 29500),
        ("nnodes=2 master_addr=head master_port=7", "static", "head", 7),
        ("nnodes=2 rdzv_endpoint=head:7", "static", "head", 7),
        ("nnodes=2 rdzv_endpoint=head", "static", "head", 29500),
        ("rdzv_endpoint=localhost:0", "static", "localhost", 0),
        ("nnodes=2 rdzv_backend=c10d rdzv_endpoint=head:7", "c10d", "head", 7),
        ("nnodes=2 rdzv_backend=c10d rdzv_endpoint=head", "c10d", "head", 29400),
        ("nnodes=1:4 rdzv_backend=c10d rdzv_endpoint=[fd00::1]:7", "c10d", "fd00::1", 7),
        ("nnodes=2 rdzv_backend=etcd-v2 rdzv_endpoint=a:1,b:2", "etcd-v2", "a:1,b:2", 0),
    ],
)
def test_where_nodes_meet(typed, rendezvous, host, port):
    found_rendezvous, found_host, found_port = planning.choose_endpoint(asked(**words(typed)))
    assert (found_rendezvous, found_host, found_port.value) == (rendezvous, host, port)
    assert found_port.reason


def test_a_wrong_endpoint_is_a_finding():
    with pytest.raises(UsageError, match="rdzv-endpoint"):
        planned(nnodes="2", rdzv_endpoint="head:99999")


# ------------------------------------------------------------------------------------------ start method


@pytest.mark.parametrize(
    "source",
    [
        'os.environ["OMP_NUM_THREADS"] = "1"',
        "os.environ['MKL_NUM_THREADS'] = '1'",
        'os.environ[ "KMP_AFFINITY" ] = os.environ["TORCH_LOGS"] = "none"',
        'from os import environ\nenviron["OPENBLAS_NUM_THREADS"] = "1"',
        'os.environ.setdefault("OMP_NUM_THREADS", "1")',
        'os.environ.setdefault(\n    "OMP_NUM_THREADS", "1"\n)',
        'os.environ.update({"OMP_NUM_THREADS": "1"})',
        'os.environ.update(\n    {\n        "GOMP_CPU_AFFINITY": "0-3"})',
        'os.environ.update({"SEED": "1", "OMP_NUM_THREADS": "1"})',
        'os.environ.update(OMP_NUM_THREADS="1")',
        'os.putenv("OMP_NUM_THREADS", "1")',
        'if True:\n    os.environ["TORCH_LOGS"] = "+dynamo"',
        'os.environ["TORCH_CPP_LOG_LEVEL"] = "INFO"',
        'os.environ["TORCHDYNAMO_DISABLE"] = "1"',
        'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
        'os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"',
        'os.environ |= {"OMP_NUM_THREADS": "1"}',
        'os.environ.pop("OMP_NUM_THREADS", None)',
        'del os.environ["OMP_NUM_THREADS"]',
        'PATTERN = "\\d"\nos.environ["OMP_NUM_THREADS"] = "1"',
        'os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"',
        'os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"',
        'os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/scratch"',
        'os.environ["TORCH_COMPILE_DISABLE"] = "1"',
        'os.environ["PYTORCH_JIT"] = "0"',
        'os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"',
        'os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = "BF16"',
        'os.environ["NPY_DISABLE_CPU_FEATURES"] = "AVX512F"',
    ],
)
def test_a_script_that_sets_what_torch_reads_at_import_gets_a_fresh_interpreter(source):
    chosen = planned(source=f"import os\n{source}\nimport torch\n").start_method
    assert chosen.value == "spawn"
    assert "when it is imported" in chosen.reason


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        'print(os.environ.get("OMP_NUM_THREADS"))',
        'os.environ["TOKENIZERS_PARALLELISM"] = "false"',
        'os.environ["MASTER_PORT"] = "29501"',
        'os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"',
        'os.environ["TORCH_HOME"] = "/scratch"',
        'os.environ["TORCHELASTIC_ERROR_FILE"] = "error.json"',
        "torch.set_num_threads(1)",
        'print(os.environ["OMP_NUM_THREADS"])',
        '# os.environ["OMP_NUM_THREADS"] = "1"',
        'settings["OMP_NUM_THREADS"] = "1"',
        "def broken(:",
    ],
)
def test_other_scripts_are_forked(source):
    assert planned(source=source).start_method == Choice("fork", "")


@pytest.mark.parametrize(
    ("typed", "environ", "platform", "expected", "reason"),
    [
        ("", {}, "linux", "fork", ""),
        ("start_method=forkserver", {}, "linux", "fork", ""),
        ("start_method=spawn", {}, "linux", "spawn", "--start-method"),
        ("start_method=exec", {}, "linux", "exec", "--start-method"),
        ("no_python", {}, "linux", "exec", "--no-python"),
        ("no_python start_method=spawn", {}, "linux", "exec", "--no-python"),
        ("", {"PYTHON_EXEC": "/opt/python"}, "linux", "exec", "PYTHON_EXEC"),
        ("start_method=spawn", {"PYTHON_EXEC": "/opt/python"}, "linux", "exec", "PYTHON_EXEC"),
        ("", {}, "darwin", "spawn", "Linux only"),
        ("nccl_debug", {}, "linux", "spawn", "--nccl-debug"),
    ],
)
def test_start_method(typed, environ, platform, expected, reason):
    chosen = planned(machine(platform=platform), environ, **words(typed)).start_method
    assert chosen.value == expected
    assert reason in chosen.reason


def test_flags_of_the_launchers_interpreter_do_not_reach_ranks():
    chosen = planned(replace(machine(), python_flags=("-O", "-W error"))).start_method
    assert chosen == Choice("spawn", "ranks get no -O -W error, which Python was started with")


def test_a_script_on_standard_input_is_read_by_python_itself():
    options = parse("-", (), typed={}, inherited={})
    assert planning.make(options, machine(), environ={}, source="").start_method.value == "exec"


@pytest.mark.parametrize(
    ("source", "warm"),
    [
        ("optimizer = torch.optim.SGD(model.parameters())", ("torch._dynamo",)),
        ("import lightning", ("torch._dynamo",)),
        ("session = paceline.Session()", ("torch._dynamo",)),
        ("model = torch.compile(model)", ("torch._dynamo",)),
        ("torch.distributed.all_reduce(x)", ()),
        ("optimistic = 1", ()),
        ("", ()),
    ],
)
def test_what_training_scripts_need_is_imported_once(source, warm):
    assert planned(source=source).warm_imports == warm


# -------------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("nodes", "keep_alive", "last_call"), [(1, 2, 5), (2, 2, 5), (256, 3, 30), (1000, 5, 30)]
)
def test_signs_of_life_get_rarer_with_the_number_of_nodes(nodes, keep_alive, last_call):
    assert planning.choose_keep_alive(nodes) == keep_alive
    assert planning.choose_last_call(nodes) == last_call


def test_intervals_never_shrink_and_never_pass_torchs_own():
    for choose, most in ((planning.choose_keep_alive, 5), (planning.choose_last_call, 30)):
        found = [choose(nodes) for nodes in range(1, 5000)]
        assert found == sorted(found)
        assert found[-1] == most


def test_a_lost_node_of_few_is_known_within_fifteen_seconds():
    assert 3 * planning.choose_keep_alive(16) + planning.choose_last_call(16) <= 15


@pytest.mark.parametrize(
    ("typed", "environ", "seconds"),
    [
        ("", {}, 30),
        ("", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "12"}, 12),
        ("shutdown_timeout=5", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "12"}, 5),
        ("grace_s=0", {}, 0),
    ],
)
def test_time_to_end(typed, environ, seconds):
    assert planned(environ=environ, **words(typed)).grace_s == seconds


def test_an_empty_time_in_the_variable_counts_as_unset():
    assert planned(environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": ""}).grace_s == 30


@pytest.mark.parametrize("text", ["half a minute", "-1", "1.5", "²"])
def test_a_wrong_time_in_the_variable_is_a_finding(text):
    finding = refusal(UsageError, planned, environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": text})
    assert finding.name == "option-invalid"
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" in finding.fix


# ------------------------------------------------------------------------------------------ whole plans


def test_backend_follows_the_devices():
    assert planned().backend == "gloo"
    assert planned(machine(gpus=1)).backend == "nccl"


def test_windows_is_refused_in_one_sentence():
    assert refusal(SetupError, planned, machine(platform="win32")).name == "platform-unsupported"


def test_a_filter_beyond_the_ranks_is_a_warning():
    (warning,) = planned(nproc_per_node="2", local_ranks_filter="0,2").warnings
    assert "local rank 2" in warning.what
    assert (warning.severity, warning.fix) == ("warning", "--local-ranks-filter 0")


def test_a_virtual_local_rank_without_gpus_is_a_warning():
    (warning,) = planned(virtual_local_rank=True, nproc_per_node="2").warnings
    assert (warning.severity, warning.fix) == ("warning", "remove --virtual-local-rank")


@pytest.mark.parametrize(
    ("gpus", "visible", "fix"),
    [(2, None, "--nproc-per-node 2"), (0, "0", "remove --virtual-local-rank")],
)
def test_a_virtual_local_rank_needs_a_gpu_for_each_rank(gpus, visible, fix):
    with pytest.raises(UsageError) as caught:
        planned(
            machine(gpus=gpus),
            {"CUDA_VISIBLE_DEVICES": visible},
            virtual_local_rank=True,
            nproc_per_node="4",
        )
    assert (caught.value.finding.name, caught.value.finding.fix) == ("option-contradicted", fix)
    assert planned(machine(gpus=4), virtual_local_rank=True).nproc.value == 4


def test_numa_binding_needs_gpus():
    assert refusal(UsageError, planned, numa_binding="node").name == "option-contradicted"
    assert planned(machine(gpus=2), numa_binding="node").nproc.value == 2


def test_a_plan_is_plain_data():
    content = json.loads(json.dumps(planned(nproc_per_node="2").to_json()))
    assert content["nproc"] == {"value": 2, "reason": "--nproc-per-node"}
    assert content["threads"]["value"] == 4
    assert content["start_method"] == {"value": "fork", "reason": ""}


@pytest.mark.parametrize(
    ("typed", "asked_for", "gpus", "expected"),
    [
        ("", None, False, ("hang: notice after 120 s", "ended only if it is proven")),
        ("on_hang=report", None, False, ("hang: notice after 120 s", "never ended")),
        (
            "on_hang=report hang_timeout=30",
            30,
            False,
            ("hang: report after 30 s", "--hang-timeout"),
        ),
        (
            "hang_timeout=900",
            900,
            True,
            ("hang: stop after 900 s", "--hang-timeout; torch's own timeout of 600 s comes first"),
        ),
        ("hang_timeout=900", 900, False, ("hang: stop after 900 s", "--hang-timeout")),
        ("no_probe", None, False, ("hangs are not watched", "--no-probe")),
    ],
)
def test_how_long_a_run_may_stand_still(typed, asked_for, gpus, expected):
    options = asked(**words(typed))
    assert options.hang_timeout == asked_for
    chosen = planning.choose_hang(options, gpus=gpus)
    assert (chosen.value, chosen.reason) == expected


@pytest.mark.parametrize(
    ("typed", "facts", "environ", "expected"),
    [
        ("nproc_per_node=2", machine(), {}, "1 node x 2 ranks · gloo · runs/x"),
        ("", machine(cpus=1), {}, "1 node x 1 rank (no GPU here) · gloo · runs/x"),
        (
            "nnodes=1:4 rdzv_backend=c10d rdzv_endpoint=h:4711 start_method=spawn",
            machine(gpus=8),
            {"OMP_NUM_THREADS": "2"},
            "1-4 nodes x 8 ranks (one per GPU) · nccl · head 127.0.0.1 · spawn (--start-method) · runs/x",
        ),
        (
            "nnodes=2 master_addr=h nproc_per_node=1",
            machine(),
            {},
            "2 nodes x 1 rank · gloo · head 127.0.0.1 · runs/x",
        ),
        (
            "nproc_per_node=2 hang_timeout=900",
            machine(),
            {},
            "1 node x 2 ranks · gloo · hang: stop after 900 s (--hang-timeout) · runs/x",
        ),
    ],
    ids=["two ranks", "default", "elastic", "two nodes", "a limit"],
)
def test_the_plan_is_one_line(typed, facts, environ, expected):
    plan = planned(facts, environ, **words(typed))
    assert (
        planning.describe(plan, asked(**words(typed)), head="127.0.0.1", run_dir="runs/x")
        == expected
    )


# ------------------------------------------------------------------------------------- a rank's variables

RANKS = {
    "rank": 5,
    "local_rank": 1,
    "world_size": 8,
    "local_world_size": 4,
    "node_rank": 1,
    "num_nodes": 2,
    "role_rank": 5,
    "role_world_size": 8,
}


def variables(visible_devices=None, *, agent_store=True, **typed):
    return planning.rank_environment(
        options=asked(**typed),
        ranks=RANKS,
        master=("10.0.0.1", 4711),
        restart_count=2,
        run_id="job-7",
        agent_store=agent_store,
        visible_devices=visible_devices,
    )


def test_a_rank_gets_torchruns_variables():
    assert variables(max_restarts="3", role="trainer") == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "5",
        "ROLE_NAME": "trainer",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "job-7",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    }


def test_who_hosts_the_store_is_said_as_torch_reads_it():
    assert variables(agent_store=False)["TORCHELASTIC_USE_AGENT_STORE"] == "False"


@pytest.mark.parametrize(
    ("visible", "device"),
    [(None, "1"), ("", "1"), ("4,6", "6"), ("GPU-aa, GPU-bb", "GPU-bb"), ("3,2,1,0", "2")],
)
def test_a_virtual_local_rank_sees_its_own_gpu_as_device_0(visible, device):
    found = variables(visible, virtual_local_rank=True)
    assert (found["CUDA_VISIBLE_DEVICES"], found["LOCAL_RANK"]) == (device, "0")


def test_otherwise_the_visible_gpus_are_not_touched():
    assert "CUDA_VISIBLE_DEVICES" not in variables("4,6")


@pytest.mark.parametrize(("most", "warned"), [(96, True), (198, False), (None, False), (-1, False)])
def test_a_limit_of_open_files_that_is_too_low_is_said_before_the_start(most, warned):
    facts = replace(machine(), most_files=most)
    warnings = planned(facts, nproc_per_node="24").warnings
    assert [finding.name for finding in warnings] == ["too-many-open-files"] * warned

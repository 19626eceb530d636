"""What ranks are told under a configuration of accelerate, compared with what the installed accelerate tells them."""

import os
import shlex
import warnings

import pytest

from paceline.diagnose.lint.job.launcher_options import ACCELERATE
from paceline.errors import UsageError
from paceline.launch.plan.accelerate import choice, config_file
from paceline.launch.plan.accelerate.settings import AccelerateSettings, settle
from paceline.launch.plan.parsing import parse
from paceline.launch.run.start import configure
from refusals import refusal

BF16 = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 4\n"
FSDP = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: true
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer,Other
  fsdp_version: 2
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 29555
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: c10d
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
FSDP1 = """
distributed_type: FSDP
fsdp_config: {backward_prefetch: BACKWARD_PRE, sharding_strategy: SHARD_GRAD_OP, min_num_params: 20, offload_params: 1}
mixed_precision: fp16
num_processes: 2
"""
DEEPSPEED = """
compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 1
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: CPU
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 8
num_machines: 1
"""
DEEPSPEED_FILE = """
deepspeed_config: {deepspeed_config_file: Configs/DS.json, zero3_init_flag: false}
distributed_type: DEEPSPEED
num_processes: 8
"""
DYNAMO = """
distributed_type: 'NO'
dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: reduce-overhead, dynamo_use_dynamic: true, use_fullgraph: true}
mixed_precision: 'no'
num_processes: 1
gpu_ids: '0'
"""
MEGATRON = """
distributed_type: MEGATRON_LM
megatron_lm_config: {megatron_lm_tp_degree: 2, megatron_lm_pp_degree: 2, megatron_lm_num_micro_batches: 4,
  megatron_lm_recompute_activations: true, megatron_lm_gradient_clipping: 0.5}
mixed_precision: bf16
num_processes: 8
"""
PARALLEL = """
distributed_type: FSDP
fsdp_config: {fsdp_version: 2}
parallelism_config: {parallelism_config_dp_shard_size: 2, parallelism_config_cp_size: 2, parallelism_config_sp_size: 1}
num_processes: 4
"""
CPU = "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\nmixed_precision: 'no'\ndebug: true\n"
OLD = "distributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\ndynamo_backend: EAGER\n"
GPU_IDS = "distributed_type: MULTI_GPU\ngpu_ids: 1,3\nnum_processes: 2\nmixed_precision: 'no'\n"

CASES = [
    (BF16, ""),
    (BF16, "--mixed_precision fp16"),
    (BF16, "--num_processes 2 --mixed-precision no"),
    (BF16, "--use_fsdp --fsdp_version 2"),
    (BF16, "--cpu"),
    (FSDP, ""),
    (FSDP, "--machine_rank 0 --fsdp_offload_params True"),
    (FSDP, "--multi_gpu --num_machines 1 --num_processes 8"),
    (FSDP1, ""),
    (DEEPSPEED, ""),
    (DEEPSPEED, "--mixed_precision fp16 --zero_stage 2 --gradient_clipping 2"),
    (DEEPSPEED_FILE, ""),
    (DYNAMO, ""),
    (DYNAMO, "--dynamo_backend eager --enable_cpu_affinity --debug"),
    (MEGATRON, ""),
    (MEGATRON, "--megatron_lm_attention_dropout 0 --megatron_lm_no_load_optim false"),
    (PARALLEL, ""),
    (CPU, ""),
    (OLD, ""),
    (GPU_IDS, ""),
    ("", "--cpu --num_processes 2"),
    ("", "--multi_gpu --num_processes 4 --mixed_precision bf16"),
    (
        "",
        "--multi_gpu --num_processes 8 --num_machines 2 --machine_rank 1 --main_process_ip h --main_process_port 1234",
    ),
    (
        "",
        "--use_deepspeed --num_processes 2 --zero_stage 3 --offload_optimizer_device cpu --gradient_clipping 1",
    ),
    (
        "",
        "--use_fsdp --num_processes 2 --fsdp_auto_wrap_policy SIZE_BASED_WRAP --fsdp_sharding_strategy HYBRID_SHARD",
    ),
    (
        "",
        "--use_fsdp --fsdp_version 2 --use_parallelism_config --parallelism_config_tp_size 2 --num_processes 2",
    ),
    ("", "--use_megatron_lm --num_processes 2 --megatron_lm_tp_degree 2"),
    (
        "",
        "--multi_gpu --num_processes 2 --mixed_precision fp8 --fp8_backend te --fp8_override_linear_precision yes,no,1",
    ),
    (
        "",
        "--multi_gpu --num_processes 2 --mixed_precision fp8 --fp8_backend ao --fp8_pad_inner_dim false",
    ),
]
LEFT_TO_PACELINE = {"OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH"}


def typed(line):
    """The options of a line as ``{name: text}``."""
    found, words = {}, shlex.split(line)
    while words:
        name = ACCELERATE.find(words.pop(0).removeprefix("--"))
        found[name] = "" if name in ACCELERATE.flags else words.pop(0)
    return found


@pytest.fixture(scope="module")
def installed():
    pytest.importorskip("accelerate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from accelerate.commands import launch
        from accelerate.utils import launch as prepare
    return launch, prepare


def really(installed, line, config, tmp_path, monkeypatch):
    """What accelerate itself would set, by its own functions; and its arguments when it is done."""
    launch, prepare = installed
    for name in [name for name in os.environ if name.startswith(("OMP_", "ACCELERATE_", "CUDA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(launch, "default_config_file", str(tmp_path / "none.yaml"))
    monkeypatch.setattr(prepare, "is_fp8_available", lambda: True)
    monkeypatch.setattr(prepare, "is_port_in_use", lambda port: False)
    words = shlex.split(line)
    if config:
        path = tmp_path / "config.yaml"
        path.write_text(config)
        words = ["--config_file", str(path), *words]
    args = launch.launch_command_parser().parse_args([*words, "train.py"])
    args, defaults, from_config = launch._validate_launch_command(args)
    if args.use_deepspeed and not args.cpu:
        fields = list(defaults.deepspeed_config.keys()) if defaults else []
        fields += ["mixed_precision"] if from_config else []
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        environ = prepare.prepare_deepspeed_cmd_env(args)[1]
    elif (args.use_fsdp or args.use_megatron_lm or args.multi_gpu) and not args.cpu:
        environ = prepare.prepare_multi_gpu_env(args)
    else:
        environ = prepare.prepare_simple_launcher_cmd_env(args)[1]
    new = {name: value for name, value in environ.items() if os.environ.get(name) != value}
    return {name: value for name, value in new.items() if name not in LEFT_TO_PACELINE}, args


def ours(line, config, tmp_path):
    path = tmp_path / "ours.yaml"
    path.write_text(config)
    config_file.read.cache_clear()
    return settle(typed(line), config_file.read(path) if config else None)


@pytest.mark.parametrize(("config", "line"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_ranks_are_told_what_the_installed_accelerate_tells_them(
    config, line, installed, tmp_path, monkeypatch
):
    expected, args = really(installed, line, config, tmp_path, monkeypatch)
    found = ours(line, config, tmp_path)
    assert found.environment == expected
    if getattr(args, "nproc_per_node", None):
        assert found.options["nproc_per_node"] == args.nproc_per_node
    if getattr(args, "nnodes", None):
        meeting = f"{found.options['master_addr']}:{found.options['master_port']}"
        assert (found.options["nnodes"], found.options["node_rank"]) == (
            args.nnodes,
            str(args.node_rank),
        )
        assert meeting == (args.rdzv_endpoint if hasattr(args, "rdzv_endpoint") else meeting)


def test_lint_and_translate_know_every_option_of_the_installed_accelerate(installed):
    launch, _ = installed
    found = {
        name[2:].replace("-", "_"): action.nargs == 0
        for action in launch.launch_command_parser()._actions
        for name in action.option_strings
        if name.startswith("--")
    }
    assert {name: name in ACCELERATE.flags for name in found} == found
    assert set(found) <= ACCELERATE.flags | ACCELERATE.values


def test_threads_that_were_asked_for_are_set():
    assert settle({"num_cpu_threads_per_process": "6"}, None).environment["OMP_NUM_THREADS"] == "6"


def test_a_configuration_without_a_head_names_none():
    config = {"distributed_type": "MULTI_GPU", "num_processes": 4, "num_machines": 2}
    assert "master_addr" not in choice.layout(settle({}, config), decided={})


def test_one_process_on_cpus_is_said():
    found = settle({"cpu": "", "num_processes": "2"}, None)
    assert found.options["nproc_per_node"] == "2"
    assert "starts one process" in found.notes[0]


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"distributed_type": "XLA"}, "TPU"),
        ({"distributed_type": "NO", "compute_environment": "AMAZON_SAGEMAKER"}, "AMAZON_SAGEMAKER"),
        ({"mixed_precision": "bf16"}, "no distributed_type"),
        ({"distributed_type": "SOLO"}, "SOLO"),
        ({"distributed_type": "NO", "mixed_precision": "half"}, "half"),
        ({"distributed_type": "FSDP", "fsdp_config": [1]}, "fsdp_config"),
    ],
)
def test_what_cannot_be_started_is_refused(config, what):
    with pytest.raises(UsageError, match=what):
        settle({}, config)


def test_what_yaml_reads_as_false_means_no():
    assert settle({}, {"distributed_type": False, "mixed_precision": False}).asks == ()


def test_a_key_that_is_not_known_is_said():
    assert "color" in settle({}, {"distributed_type": "NO", "color": "red"}).notes[0]


# ------------------------------------------------------------------------------------------- taken or not


FOR_GPUS = AccelerateSettings(
    {"ACCELERATE_MIXED_PRECISION": "bf16", "CUDA_VISIBLE_DEVICES": "1"},
    {},
    ("mixed precision bf16",),
)


def by_default(settings, environ=None, *, num_gpus=2, has_deepspeed=False):
    return choice.by_default(
        settings, "c.yaml", environ or {}, num_gpus=num_gpus, has_deepspeed=has_deepspeed
    )


def test_the_default_configuration_says_how_to_train_and_not_where():
    taken = by_default(FOR_GPUS)
    assert taken.environment == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    assert "mixed precision bf16 (c.yaml" in taken.summary
    assert not taken.warnings


@pytest.mark.parametrize("value", ["no", "fp16"])
def test_an_environment_that_says_how_to_train_is_left_alone(value):
    assert by_default(FOR_GPUS, {"ACCELERATE_MIXED_PRECISION": value}) == choice.AccelerateChoice()


def test_a_configuration_that_asks_for_nothing_is_not_mentioned():
    assert (
        by_default(AccelerateSettings({"ACCELERATE_MIXED_PRECISION": "no"}, {}))
        == choice.AccelerateChoice()
    )


@pytest.mark.parametrize(
    ("config", "environ", "reason"),
    [
        ({"distributed_type": "DEEPSPEED"}, {}, "not installed"),
        ({"distributed_type": "MEGATRON_LM"}, {}, "one number of ranks"),
        (
            {"distributed_type": "NO", "mixed_precision": "bf16"},
            {"ACCELERATE_USE_FSDP": "true"},
            "is set",
        ),
    ],
)
def test_what_is_not_handed_on_is_a_warning(config, environ, reason):
    kept = by_default(settle({}, config), environ)
    assert not kept.environment
    (warning,) = kept.warnings
    assert (warning.name, warning.severity) == ("launcher-config-ignored", "warning")
    assert reason in warning.evidence[0]


@pytest.mark.parametrize(
    ("config", "num_gpus"),
    [
        ({"distributed_type": "FSDP", "mixed_precision": "bf16"}, 0),
        ({"distributed_type": "NO", "mixed_precision": "fp16"}, 0),
        ({"distributed_type": "NO", "use_cpu": True, "mixed_precision": "bf16"}, 2),
    ],
)
def test_a_default_configuration_for_another_kind_of_machine_is_passed_over(config, num_gpus):
    assert by_default(settle({}, config), num_gpus=num_gpus) == choice.AccelerateChoice()


def test_a_configuration_that_is_named_wins_over_the_environment_and_says_so():
    taken = choice.named(FOR_GPUS, "c.yaml", {"ACCELERATE_MIXED_PRECISION": "no"})
    assert taken.environment == FOR_GPUS.environment
    assert "replaces ACCELERATE_MIXED_PRECISION" in taken.summary


@pytest.mark.parametrize(
    ("decided", "expected"),
    [
        ({}, {"nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port"}),
        ({"nproc_per_node": "1"}, {"nnodes", "node_rank", "master_addr", "master_port"}),
        ({"nnodes": "4"}, {"nproc_per_node"}),
        ({"standalone": True}, {"nproc_per_node"}),
    ],
)
def test_who_types_a_layout_decides_all_of_it(decided, expected):
    config = {
        "distributed_type": "MULTI_GPU",
        "num_processes": 4,
        "num_machines": 2,
        "main_process_ip": "h",
    }
    assert set(choice.layout(settle({}, config), decided=decided)) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import accelerate", True),
        ("from accelerate.utils import set_seed", True),
        ("def main():\n    from accelerate import Accelerator", True),
        ("import accelerated", False),
        ("from .accelerate import x", False),
        ("# import accelerate\nx = 'import accelerate'", False),
        ("import accelerate as", False),
        ("", False),
    ],
)
def test_whether_a_script_imports_accelerate(source, expected):
    assert choice.imports_accelerate(source) is expected


@pytest.fixture
def default_configuration(monkeypatch, tmp_path):
    """A home of Hugging Face's with a default configuration; variables that are set meanwhile are removed."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    path = config_file.default_path({"HF_HOME": str(tmp_path)})
    path.parent.mkdir()
    path.write_text('{"distributed_type": "NO", "mixed_precision": "bf16"}')


@pytest.mark.usefixtures("default_configuration")
@pytest.mark.parametrize(
    ("named", "source", "environ", "expected"),
    [
        ({}, "import accelerate", {}, "bf16"),
        ({}, "import transformers", {}, None),
        ({}, "", {}, None),
        ({"accelerate_config": "none"}, "import accelerate", {}, None),
        ({}, "import accelerate", {"ACCELERATE_MIXED_PRECISION": "no"}, "no"),
    ],
)
def test_when_the_default_configuration_counts(named, source, environ, expected):
    os.environ.update(environ)
    config_file.read.cache_clear()
    chosen = configure(parse("train.py", (), typed=named, inherited={}), source)
    assert os.environ.get("ACCELERATE_MIXED_PRECISION") == expected
    assert bool(chosen.summary) == (expected == "bf16")
    assert not chosen.warnings


# ------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HOME": "/h"}, "/h/accelerate/default_config.yaml"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/accelerate/default_config.yaml"),
        ({}, os.path.expanduser("~/.cache/huggingface/accelerate/default_config.yaml")),
    ],
)
def test_where_the_default_configuration_is(environ, expected):
    assert str(config_file.default_path(environ)) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [("c.yaml", "a: [1"), ("c.json", "{"), ("c.yaml", "- 1"), ("c.yaml", "\t"), ("c.yaml", None)],
)
def test_a_file_that_is_no_configuration_is_refused(name, text, tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert refusal(UsageError, config_file.read, path).where == str(path)

"""What ranks are told under a configuration of accelerate: its own answer, and what paceline makes of it."""

import json
import os
import shlex
import sys

import pytest

from paceline.diagnose.lint.job.launcher_options import ACCELERATE
from paceline.errors import SetupError, UsageError
from paceline.launch.plan.accelerate import ask, choice
from paceline.launch.plan.parsing import parse
from paceline.launch.run.start import configure
from refusals import refusal

FSDP = """{distributed_type: FSDP, fsdp_config: {fsdp_offload_params: false, fsdp_version: 2}, machine_rank: 1,
main_process_ip: 10.0.0.1, main_process_port: 29555, mixed_precision: bf16, num_machines: 2, num_processes: 16,
rdzv_backend: c10d, tpu_env: []}"""
DEEPSPEED = """{distributed_type: DEEPSPEED, mixed_precision: bf16, num_processes: 8,
deepspeed_config: {gradient_clipping: 1.0, offload_param_device: CPU, zero_stage: 3}}"""
CPU = "{distributed_type: MULTI_CPU, use_cpu: true, num_processes: 2, mpirun_config: {mpirun_hostfile: hosts}}"
OLD = "{distributed_type: MULTI_GPU, fp16: true, num_processes: 2, dynamo_backend: EAGER}"
FP8 = "{distributed_type: MULTI_GPU, mixed_precision: fp8, fp8_config: {backend: TE, margin: 2}, num_processes: 2}"
MEETING = {"nnodes": "2", "node_rank": "1", "master_addr": "10.0.0.1", "master_port": "29555"}

# A configuration, a line, and some of what comes of them: variables, options, words.
CASES = [
    (FSDP, "", "FSDP_OFFLOAD_PARAMS=false", {"nproc_per_node": "8", **MEETING}, "mixed precision bf16, FSDP2"),
    (FSDP, "--num_machines 1 --fsdp_version 1", "FSDP_VERSION=1",
     {"nproc_per_node": "16", "master_port": "29555"}, "mixed precision bf16, FSDP"),
    (DEEPSPEED, "", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE=cpu", {"nproc_per_node": "8"},
     "mixed precision bf16, DeepSpeed ZeRO stage 3"),
    (DEEPSPEED, "--mixed_precision no", "ACCELERATE_CONFIG_DS_FIELDS="
     "gradient_clipping,offload_param_device,zero_stage", {"nproc_per_node": "8"}, "DeepSpeed ZeRO stage 3"),
    (CPU, "", "KMP_BLOCKTIME=1", {"nproc_per_node": "2"}, "CPUs only"),
    (OLD, "", "ACCELERATE_DYNAMO_BACKEND=EAGER", {"nproc_per_node": "2"},
     "mixed precision fp16, torch.compile with eager"),
    (FP8, "", "ACCELERATE_FP8_MARGIN=2", {"nproc_per_node": "2"}, "mixed precision fp8"),
    ("{distributed_type: MULTI_GPU}", "--gpu_ids 1,3", "CUDA_VISIBLE_DEVICES=1,3", {}, ""),
    ("{distributed_type: no, mixed_precision: no, gpu_ids: 0}", "", "CUDA_VISIBLE_DEVICES=0", {}, ""),
    ("", "--num_cpu_threads_per_process 6 --debug", "OMP_NUM_THREADS=6", {}, "accelerate's debug mode"),
    ("", "--use_deepspeed --zero_stage $Z", "ACCELERATE_DEEPSPEED_ZERO_STAGE=$Z", {}, "DeepSpeed ZeRO stage $Z"),
    ("", "--use_megatron_lm --num_processes 2", "MEGATRON_LM_TP_DEGREE=1", {"nproc_per_node": "2"}, "Megatron-LM"),
]  # fmt: skip


def typed(line):
    """The options of a line as ``{name: text}``."""
    found, words = {}, shlex.split(line)
    while words:
        name = ACCELERATE.find(words.pop(0).removeprefix("--"))
        found[name] = "" if name in ACCELERATE.flags else words.pop(0)
    return found


@pytest.fixture
def settled(asked_here, tmp_path):
    """Settles the text of a configuration and a line."""

    def settle(config, line=""):
        path = tmp_path / "c.yaml"
        path.write_text(config)
        ask.read.cache_clear()
        return ask.settle(typed(line), file=str(path) if config else "")[0]

    return settle


@pytest.mark.parametrize(("config", "line", "variable", "options", "asks"), CASES)
def test_a_configuration_and_a_line_become_settings(
    settled, monkeypatch, config, line, variable, options, asks
):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = settled(config, line)
    name, _, value = variable.partition("=")
    assert found.environment[name] == value
    assert (found.options, ", ".join(found.asks)) == (options, asks)
    assert not {"PYTHONPATH", "MASTER_PORT"} & set(found.environment)
    assert ("OMP_NUM_THREADS" in found.environment) == ("threads" in line), "paceline chooses it"


def test_lint_and_translate_know_every_option_of_the_installed_accelerate():
    launch = pytest.importorskip("accelerate.commands.launch")
    found = {
        name[2:].replace("-", "_"): action.nargs == 0
        for action in launch.launch_command_parser()._actions
        for name in action.option_strings
        if name.startswith("--")
    }
    assert {name: name in ACCELERATE.flags for name in found} == found
    assert set(found) <= ACCELERATE.flags | ACCELERATE.values


@pytest.mark.parametrize(
    ("config", "line", "note"),
    [
        ("", "--cpu --num_processes 2", "starts one process"),
        (CPU, "", "mpirun is not used"),
        ("{distributed_type: 'NO', color: red}", "", "color"),
    ],
)
def test_what_differs_is_said(settled, config, line, note):
    assert note in settled(config, line).notes[0]


@pytest.mark.parametrize(
    ("config", "name", "what"),
    [
        ("{distributed_type: XLA}", "option-invalid", "TPU"),
        ("{compute_environment: AMAZON_SAGEMAKER}", "option-invalid", "AMAZON_SAGEMAKER"),
        ("{mixed_precision: bf16}", "option-invalid", "`distributed_type` must be"),
        ("{distributed_type: SOLO}", "option-invalid", "SOLO"),
        ("{distributed_type: 'NO', mixed_precision: half}", "option-invalid", "half"),
        ("{distributed_type: FSDP, fsdp_config: [1]}", "option-invalid", "fsdp_config"),
        ("{distributed_type: DEEPSPEED, deepspeed_config: {1: 2}}", "option-invalid", "TypeError"),
        ("a: [1", "input-unreadable", "flow sequence"),
        ("- 1", "input-unreadable", "not a mapping"),
        ("\t", "input-unreadable", "cannot start any token"),
    ],
)
def test_what_cannot_be_started_is_refused(settled, config, name, what, tmp_path):
    finding = refusal(UsageError, settled, config)
    assert (finding.name, finding.where) == (name, str(tmp_path / "c.yaml"))
    assert what in finding.what
    assert finding.fix.startswith("accelerate ")


BF16 = "{distributed_type: MULTI_GPU, mixed_precision: bf16, gpu_ids: '1,2'}"


def by_default(settings, environ, num_gpus=2):
    return choice.by_default(settings, "c.yaml", environ, num_gpus=num_gpus, has_deepspeed=False)


def test_the_default_configuration_says_how_to_train_and_not_where(settled):
    taken = by_default(settled(BF16), {})
    assert taken.environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert "CUDA_VISIBLE_DEVICES" not in taken.environment
    assert "mixed precision bf16 (c.yaml" in taken.summary
    assert not taken.warnings


@pytest.mark.parametrize(
    ("config", "environ", "num_gpus"),
    [
        (BF16, {"ACCELERATE_MIXED_PRECISION": "no"}, 2),
        (BF16, {"ACCELERATE_MIXED_PRECISION": "fp16"}, 2),
        ("{distributed_type: MULTI_GPU}", {}, 2),
        ("{distributed_type: FSDP, mixed_precision: bf16}", {}, 0),
        ("{distributed_type: 'NO', mixed_precision: fp16}", {}, 0),
        ("{distributed_type: 'NO', use_cpu: true, mixed_precision: bf16}", {}, 2),
    ],
)
def test_nothing_is_taken_nor_said_if_the_environment_decides_or_the_machine_is_another(
    settled, config, environ, num_gpus
):
    assert by_default(settled(config), environ, num_gpus) == choice.AccelerateChoice()


@pytest.mark.parametrize(
    ("config", "environ", "reason"),
    [
        ("{distributed_type: DEEPSPEED}", {}, "not installed"),
        ("{distributed_type: MEGATRON_LM}", {}, "one number of ranks"),
        (BF16, {"ACCELERATE_USE_FSDP": "true"}, "is set"),
    ],
)
def test_what_is_not_handed_on_is_a_warning(settled, config, environ, reason):
    kept = by_default(settled(config), environ)
    assert not kept.environment
    (warning,) = kept.warnings
    assert (warning.name, warning.severity) == ("launcher-config-ignored", "warning")
    assert reason in warning.evidence[0]


def test_a_configuration_that_is_named_wins_over_the_environment_and_says_so(settled):
    taken = choice.named(settled(BF16), "c.yaml", {"ACCELERATE_MIXED_PRECISION": "no"})
    assert taken.environment == settled(BF16).environment
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
def test_who_types_a_layout_decides_all_of_it(settled, decided, expected):
    assert set(choice.layout(settled(FSDP), decided=decided)) == expected


def test_a_configuration_without_a_head_names_none(settled):
    found = settled("{distributed_type: MULTI_GPU, num_processes: 4, num_machines: 2}")
    assert "master_addr" not in choice.layout(found, decided={})


def test_whether_a_script_imports_accelerate():
    method = "def main():\n    from accelerate import Accelerator"
    for source in ("import accelerate", "from accelerate.utils import set_seed", method):
        assert choice.imports_accelerate(source)
    for source in ("import accelerated", "from .accelerate import x", "x = 'import accelerate'"):
        assert not choice.imports_accelerate(source)
    assert not choice.imports_accelerate("import accelerate as"), "it cannot be parsed"


@pytest.fixture
def default_configuration(monkeypatch, tmp_path):
    """A home of Hugging Face's with a default configuration; variables that are set meanwhile are removed."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    path = ask.default_path({"HF_HOME": str(tmp_path)})
    path.parent.mkdir()
    path.write_text('{"distributed_type": "NO", "mixed_precision": "bf16"}')
    return path


@pytest.mark.usefixtures("asked_here", "default_configuration")
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
    chosen = configure(parse("train.py", (), typed=named, inherited={}), source)
    assert os.environ.get("ACCELERATE_MIXED_PRECISION") == expected
    assert bool(chosen.summary) == (expected == "bf16")
    assert not chosen.warnings


@pytest.mark.usefixtures("asked_here")
@pytest.mark.parametrize(
    ("content", "num_warnings"),
    [
        ("{", 1),
        ('{"mixed_precision": "bf15", "distributed_type": "NO"}', 1),
        ('{"compute_environment": "AMAZON"}', 0),
    ],
)
def test_a_default_configuration_that_accelerate_refuses_is_mentioned(
    default_configuration, content, num_warnings
):
    default_configuration.write_text(content)
    chosen = configure(parse("train.py", (), typed={}, inherited={}), "import accelerate")
    assert not chosen.environment
    assert [warning.name for warning in chosen.warnings] == [
        "launcher-config-ignored"
    ] * num_warnings


# ----------------------------------------------------------------------------------------- files, processes


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HOME": "/h"}, "/h/accelerate/default_config.yaml"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/accelerate/default_config.yaml"),
        ({}, os.path.expanduser("~/.cache/huggingface/accelerate/default_config.yaml")),
    ],
)
def test_where_the_default_configuration_is(environ, expected):
    assert str(ask.default_path(environ)) == expected


@pytest.mark.ci
def test_a_process_answers_once_and_sees_no_variables(monkeypatch, tmp_path):
    pytest.importorskip("accelerate")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    first = ask.settle({})
    monkeypatch.setattr(ask, "ask", None)
    ask._answers.cache_clear()
    assert ask.settle({}) == first
    assert first[0].environment["ACCELERATE_MIXED_PRECISION"] == "no"


def test_an_accelerate_that_cannot_be_imported_is_not_a_traceback(monkeypatch, tmp_path):
    (tmp_path / "accelerate.py").write_text("raise ImportError('it fits another torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = refusal(SetupError, ask.ask, json.dumps([{"typed": {}, "text": None}]))
    assert (finding.name, finding.fix) == ("module-not-found", "pip install 'accelerate>=1.15'")
    assert finding.evidence == ("ImportError: it fits another torch",)


def test_without_accelerate_the_fix_installs_it(monkeypatch):
    monkeypatch.setattr(ask.importlib.metadata, "version", ask.importlib.metadata.distribution)
    monkeypatch.setattr(sys, "path", [])
    ask._answers.cache_clear()
    assert "not installed" in refusal(SetupError, ask.settle, {}).what

"""Scripts that count on what another launcher tells its ranks: the same ranks, told the same."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess

import pytest

from starting import BIN

pytestmark = [pytest.mark.ci, pytest.mark.cold]  # variables reach ranks as from a shell

PREFIXES = ("ACCELERATE_", "FSDP_", "LT_", "KMP_")
TELL = f"""
import json, os
def accelerated():
    import accelerate
if os.environ.get("RANK", "0") == "0":
    told = {{name: value for name, value in os.environ.items() if name.startswith({PREFIXES})}}
    print(json.dumps([os.environ.get("WORLD_SIZE", "1"), told], sort_keys=True))
"""
FSDP = """{"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 2,
"fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}"""


def needs(module):
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed")


def told(ended):
    assert ended.status == 0, ended.err
    (line,) = [line for line in ended.out.splitlines() if line.startswith("[")]
    return json.loads(line)


def test_a_named_configuration_gives_ranks_their_variables_and_their_number(command):
    config = command.folder / "c.yaml"
    config.write_text(FSDP)
    ended = command.run("--accelerate-config", config, command.script(TELL))
    num_ranks, variables = told(ended)
    assert num_ranks == "2"
    assert (variables["ACCELERATE_MIXED_PRECISION"], variables["FSDP_VERSION"]) == ("bf16", "2")
    assert f"accelerate: mixed precision bf16, FSDP2 ({config})" in ended.err


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.peers
@needs("accelerate")
def test_a_named_configuration_tells_ranks_what_accelerate_launch_tells_them(command):
    script = command.script(TELL)
    config = command.folder / "c.yaml"
    config.write_text(FSDP)
    there = command.run("launch", "--config_file", config, script, program="accelerate", timeout=80)
    here = command.run("--accelerate-config", config, script)
    assert told(here) == told(there)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.peers
@pytest.mark.parametrize(
    ("module", "line"),
    [
        pytest.param(
            "accelerate",
            "accelerate launch --cpu --mixed_precision bf16 train.py",
            marks=needs("accelerate"),
        ),
        pytest.param(
            "lightning",
            "fabric run --accelerator cpu --strategy ddp --devices 2 --precision bf16-mixed train.py",
            marks=needs("lightning"),
        ),
    ],
)
def test_a_translated_line_tells_ranks_what_the_line_itself_tells_them(command, module, line):
    command.script(TELL)
    first, *words = shlex.split(line)
    there = command.run(*words, program=first, timeout=80)
    translated = subprocess.run(
        [BIN / "paceline", "translate", "--", *shlex.split(line)],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    ).stdout
    settings, _, words = translated.replace("\\\n", " ").partition("paceline run")
    environment = dict(word.split("=", 1) for word in shlex.split(settings))
    here = command.run(*shlex.split(words), env=environment)
    mine, theirs = told(here), told(there)
    defaults = {
        name for name in theirs[1] if name.startswith("ACCELERATE_DYNAMO_")
    }  # what holds without them
    assert mine == [
        theirs[0],
        {name: value for name, value in theirs[1].items() if name not in defaults},
    ]


def default(command, text):
    path = command.folder / "hf" / "accelerate" / "default_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return {"HF_HOME": str(command.folder / "hf")}


BF16 = '{"distributed_type": "MULTI_GPU", "mixed_precision": "bf16", "num_processes": 7}'


def test_the_default_configuration_counts_where_the_script_imports_accelerate(command):
    home = default(command, BF16)
    ended = command.run(command.script(TELL), env=home)
    assert told(ended)[0] == "1"  # how many ranks there are is the command line's
    assert told(ended)[1]["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert "accelerate: mixed precision bf16 (" in ended.err


def test_what_the_default_configuration_asks_for_and_ranks_lack_is_said_once(command):
    home = default(command, '{"distributed_type": "MEGATRON_LM", "mixed_precision": "bf16"}')
    ended = command.run("--nproc-per-node", "2", command.script(TELL), env=home)
    assert told(ended) == ["2", {}]
    assert ended.err.count("explain USE007") == 1, "in full once; the end repeats its first line"
    assert ended.err.index("launcher-config-ignored") < ended.err.index("done: 2 ranks")
    assert "asks for mixed precision bf16, Megatron-LM" in ended.err


@pytest.mark.parametrize(
    ("text", "name"), [(None, "input-unreadable"), ('{"num_processes": 2}', "option-invalid")]
)
def test_a_named_configuration_that_is_none_is_refused(command, text, name):
    config = command.folder / "c.yaml"
    if text:
        config.write_text(text)
    ended = command.run("--accelerate-config", config, command.script(TELL))
    assert ended.status == 2
    assert name in ended.err
    assert "Traceback" not in ended.err

"""Ask the installed accelerate about a configuration and options, and keep its answers.

The process that it is asked in takes as long as importing torch. An answer depends on nothing but
the question and the versions of accelerate and paceline: it is kept in a file for later starts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline import env, version
from paceline.deadlines import OTHER_LAUNCHER
from paceline.errors import SetupError, UsageError
from paceline.launch.plan.accelerate.settings import LINE, AccelerateSettings, convert
from paceline.machine import own_process
from paceline.rundir import files, owned

NONE = "none"  # in place of a file: do not use the default one either


def default_path(environ: Mapping[str, str]) -> Path:
    """Return the path that ``accelerate config`` writes to, and ``accelerate launch`` reads."""
    cache = environ.get(env.CACHE_HOME) or "~/.cache"
    home = environ.get(env.HUGGING_FACE_HOME) or f"{cache}/huggingface"
    return Path(home).expanduser() / "accelerate" / "default_config.yaml"


def settle(*typed: Mapping[str, str], file: str = "") -> list[AccelerateSettings]:
    """Return the settings that ``accelerate launch`` would use with each set of options.

    Raises UsageError if the file cannot be read, accelerate refuses it, or it requires a TPU or
    SageMaker, which paceline does not support; SetupError if accelerate cannot be asked.
    """
    text = read(file) if file else None
    answers = _answers(json.dumps([{"typed": options, "text": text} for options in typed]))
    pairs = zip(typed, answers, strict=True)
    return [convert(options, answer, file or LINE) for options, answer in pairs]


@functools.lru_cache(maxsize=1)  # a pipe can be read once
def read(file: str) -> str:
    """Return the text of a configuration."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError.of(
            "input-unreadable",
            f"accelerate's configuration cannot be read: {why}",
            where=file,
            fix="accelerate config --config_file FILE writes one",
        ) from None


@functools.lru_cache(maxsize=8)
def _answers(questions: str) -> Any:
    try:
        versions = f"{importlib.metadata.version('accelerate')} {version.__version__}"
    except importlib.metadata.PackageNotFoundError:
        raise _unable("accelerate is not installed, which says what its options mean") from None
    name = hashlib.sha256(f"{versions} {questions}".encode()).hexdigest()
    kept = Path(env.read(env.CACHE_HOME) or "~/.cache", "paceline/accelerate", name).expanduser()
    with contextlib.suppress(OSError, ValueError):
        return files.read_json(kept, most_bytes=1 << 20)
    answers = ask(questions)
    if not any("refusal" in answer for answer in answers):  # what is missing may be installed later
        with contextlib.suppress(OSError):  # a home that cannot be written
            kept.parent.mkdir(parents=True, exist_ok=True)
            owned.write_whole(kept, json.dumps(answers))
    return answers


def ask(questions: str) -> Any:
    """Return the answers of ``answer.answer`` to a list of arguments, as JSON."""
    try:
        ended = subprocess.run(
            own_process.command(module="paceline.launch.plan.accelerate.answer"),
            input=questions,
            capture_output=True,
            text=True,
            check=True,
            env={**env.snapshot(), env.CUDA_DEVICES: ""},
            timeout=OTHER_LAUNCHER,
        )
        return json.loads(ended.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise _unable("the installed accelerate cannot be asked", *lines[-1:]) from None


def _unable(what: str, *evidence: str) -> SetupError:
    fix = "pip install 'accelerate>=1.15'"
    return SetupError.of("module-not-found", what, evidence=evidence, fix=fix)

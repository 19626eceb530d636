"""Find and read a configuration of accelerate. The module reads files and decides nothing."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import SetupError, UsageError
from paceline.launch.plan.accelerate.settings import AccelerateSettings, settle

NONE = "none"  # in place of a file: do not use the default one either


def default_path(environ: Mapping[str, str]) -> Path:
    """Return the path that ``accelerate config`` writes to, and ``accelerate launch`` reads."""
    cache = Path(environ.get(env.CACHE_HOME) or "~/.cache").expanduser()
    home = Path(environ.get(env.HUGGING_FACE_HOME) or cache / "huggingface").expanduser()
    return home / "accelerate" / "default_config.yaml"


def settings_of(file: str) -> AccelerateSettings:
    """Return the settings that ``accelerate launch --config_file FILE`` would use.

    Raises UsageError if the file cannot be read, or requires a launch that paceline does not
    support; SetupError if the file is YAML and no YAML parser is installed.
    """
    return settle({}, read(Path(file)), source=file)


@functools.lru_cache(maxsize=1)  # a pipe can be read once
def read(path: Path) -> Mapping[str, Any]:
    """Return the content of a configuration."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, getattr(error, "strerror", None) or str(error)) from None
    content = _json(text, path) if path.suffix == ".json" else _yaml(text, path)
    if not isinstance(content, dict):
        raise _unreadable(path, "it is not a mapping of keys to values")
    return content


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _unreadable(path, f"it is not JSON: {error}") from None


def _yaml(text: str, path: Path) -> Any:
    with contextlib.suppress(ValueError):
        # accelerate's write_basic_config writes JSON, even into a .yaml file
        return json.loads(text)
    try:
        import yaml
    except ImportError:
        raise _no_yaml(path) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise _unreadable(path, f"it is not YAML: {' '.join(str(error).split())}") from None


def _no_yaml(path: Path) -> SetupError:
    return SetupError.of(
        "module-not-found",
        f"{path} is YAML, and the module yaml cannot be imported",
        where=str(path),
        fix="pip install pyyaml",
    )


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError.of(
        "input-unreadable",
        f"accelerate's configuration cannot be read: {why}",
        where=str(path),
        fix="accelerate config --config_file FILE writes one",
    )

"""Collect versions and settings without importing the packages."""

from __future__ import annotations

import importlib.util
import platform
import re
from importlib import metadata
from pathlib import Path

from paceline import __version__
from paceline.diagnose.doctor.facts import Software
from paceline.machine import files

_NCCL_WHEEL = re.compile(r"nvidia-nccl-cu\d+")


def gather_software() -> Software:
    """Return the installed versions from the packages' metadata."""
    return Software(
        python=platform.python_version(),
        torch=_version("torch"),
        torch_cuda=_torch_cuda(),
        nccl=_nccl(),
        paceline=__version__,
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _nccl() -> str:
    """Return the version of the NCCL wheel that torch requires; empty for other builds of torch."""
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return ""
    names = [match[0] for line in requirements if (match := _NCCL_WHEEL.match(line))]
    return next(filter(None, map(_version, names)), "")


def _torch_cuda() -> str:
    try:
        spec = importlib.util.find_spec("torch")  # finds the package without importing it
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.origin:
        return ""
    match = re.search(
        r"^cuda\b[^=\n]*=\s*'([\d.]+)'", files.text(Path(spec.origin).parent / "version.py"), re.M
    )
    return match[1] if match else ""


def gather_settings() -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of NCCL, torch, gloo and libfabric by name, and their source files."""
    from paceline.diagnose import variables

    return variables.gather_settings()

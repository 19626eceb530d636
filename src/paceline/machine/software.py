"""Versions of Python, torch, CUDA, NCCL and paceline: as installed, or as loaded by this process.

``installed`` reads the metadata of packages, so it answers in milliseconds, and also where torch
cannot be imported. ``loaded`` asks torch, and shows what ranks will use. The two can differ: the
metadata of a torch that a site has built does not say which NCCL it loads.
"""

from __future__ import annotations

import importlib.util
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from paceline.machine import files
from paceline.version import __version__

_NCCL_WHEEL = re.compile(r"nvidia-nccl-cu\d+")
_CUDA_OF_TORCH = re.compile(r"^cuda\b[^=\n]*=\s*'([\d.]+)'", re.M)


@dataclass(frozen=True)
class Software:
    """Versions; empty if a package is not there or its version is unknown."""

    python: str = ""  # version of Python
    torch: str = ""  # version of torch
    # the CUDA version that torch was built with; empty for a build without CUDA
    torch_cuda: str = ""
    nccl: str = ""  # version of torch's NCCL
    paceline: str = ""  # version of this package


def installed() -> Software:
    """Return the installed versions, without importing torch."""
    return Software(
        python=platform.python_version(),
        torch=_version("torch"),
        torch_cuda=_cuda_of_torch(),
        nccl=_version_of_nccl_wheel(),
        paceline=__version__,
    )


def loaded() -> Software:
    """Return the versions that this process uses; imports torch."""
    import torch
    from torch import distributed

    nccl = ""
    if distributed.is_nccl_available():
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return Software(
        python=platform.python_version(),
        torch=str(torch.__version__),
        torch_cuda=torch.version.cuda or "",
        nccl=nccl,
        paceline=__version__,
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _version_of_nccl_wheel() -> str:
    """Return the version of the NCCL wheel that torch requires; empty for other builds of torch."""
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return ""
    wheels = [match[0] for line in requirements if (match := _NCCL_WHEEL.match(line))]
    versions = map(_version, wheels)
    return next(filter(None, versions), "")


def _cuda_of_torch() -> str:
    try:
        spec = importlib.util.find_spec("torch")  # finds the package without importing it
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.origin:
        return ""
    match = _CUDA_OF_TORCH.search(files.text(Path(spec.origin).parent / "version.py"))
    return match[1] if match else ""

"""Check that torch is installed, can be loaded and is recent enough.

torch is not a dependency of the distribution but of its extra ``paceline[torch]``: ``explain``,
``lint``, ``doctor``, ``submit`` and ``jobs`` work without it, and clusters often have their own
torch. pip then checks no version, so this module does. ``torch_private`` lists the private names of
torch that paceline uses.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys

from paceline.errors import Finding, SetupError, option_invalid

OLDEST = (2, 8)


class TorchRequiredError(SetupError, ImportError):
    """torch cannot be used here; an ImportError too, because paceline's imports raise it."""


def require_installed() -> None:
    """Check that torch is installed, without importing it.

    Raises TorchRequiredError if torch is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:  # a folder named torch without Python code
        raise TorchRequiredError(_missing())


def require() -> None:
    """Import torch.

    Raises TorchRequiredError if torch is not installed, cannot be loaded, or is too old for
    paceline.
    """
    require_installed()
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of torch
        raise TorchRequiredError(_unloadable(error)) from error
    if is_too_old(str(torch.__version__)):
        raise TorchRequiredError(_too_old(str(torch.__version__)))


def require_numa_binding() -> None:
    """Check that torch can bind ranks to CPUs."""
    require()
    import torch

    if importlib.util.find_spec("torch.numa") is None:
        what = f"--numa-binding needs torch 2.9 or newer, and {torch.__version__} is installed"
        fix = f'{_pip_install()} "torch>=2.9", or leave --numa-binding out'
        raise option_invalid(what, fix=fix)


def is_too_old(version: str) -> bool:
    """Return whether a version of torch is older than the oldest supported one.

    Only major and minor are compared: NVIDIA's containers call their torch ``2.8.0a0``.
    """
    release = re.match(r"(\d+)\.(\d+)", version)
    return release is not None and (int(release[1]), int(release[2])) < OLDEST


def _pip_install() -> str:
    return f"{shlex.quote(sys.executable)} -m pip install"


def _missing() -> Finding:
    return Finding(
        "torch-missing",
        "torch is not installed in the Python that runs here",
        where=sys.executable,
        fix=f'{_pip_install()} "paceline[torch]", or activate the environment that has torch',
    )


def _unloadable(error: Exception) -> Finding:
    return Finding(
        "torch-missing",
        f"torch is installed and cannot be imported: {type(error).__name__}: {error}",
        where=sys.executable,
        fix=(
            f"{_pip_install()} --force-reinstall torch, or on a cluster load the modules that its"
            " torch needs"
        ),
    )


def _too_old(version: str) -> Finding:
    oldest = ".".join(map(str, OLDEST))
    return Finding(
        "torch-too-old",
        f"torch {version} is installed, and paceline needs {oldest} or newer",
        where=sys.executable,
        fix=f'{_pip_install()} "torch>={oldest}", or start the script with torchrun',
    )

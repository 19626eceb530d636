"""Choose the words that start the ranks of a job in a container. Pure.

Apptainer (and Singularity, its former name) is a command before ``paceline run``. Pyxis is a
plug-in of Slurm that starts containers of enroot; it is asked by options of srun. In both, the rest
of the job script runs outside, where Slurm's commands are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

APPTAINER, SINGULARITY, PYXIS = "apptainer", "singularity", "pyxis"
RUNTIMES = (APPTAINER, SINGULARITY, PYXIS)


@dataclass(frozen=True)
class Container:
    """The container of a profile."""

    runtime: str  # one of ``RUNTIMES``
    image: str  # path of the image, or its address in a registry
    # further folders, ``SOURCE``, ``SOURCE:TARGET`` or ``SOURCE:TARGET:FLAGS``
    mounts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # further options, of ``apptainer exec`` or, with pyxis, of srun


def srun_options(container: Container | None, folders: Sequence[str]) -> list[str]:
    """Return the options of srun.

    Args:
        container: The container, None without one.
        folders: Folders that the run needs, the working folder first.
    """
    if container is None or container.runtime != PYXIS:
        return []
    mounts = [_with_target(mount) for mount in _mounts(container, folders)]
    return [
        f"--container-image={container.image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={folders[0]}",
        *container.options,
    ]


def command(container: Container | None, folders: Sequence[str], *, gpus: bool) -> list[str]:
    """Return the words before ``paceline run``.

    Args:
        container: The container, None without one.
        folders: Folders that the run needs, the working folder first.
        gpus: Whether the job has GPUs, whose driver the container then needs.
    """
    if container is None or container.runtime == PYXIS:
        return []
    driver = ["--nv"] if gpus and "--rocm" not in container.options else []
    return [
        *(container.runtime, "exec"),
        *dict.fromkeys((*driver, *container.options)),
        f"--bind={','.join(_mounts(container, folders))}",
        f"--pwd={folders[0]}",
        container.image,
    ]


def _mounts(container: Container, folders: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*folders, *container.mounts]))


def _with_target(mount: str) -> str:
    return mount if ":" in mount else f"{mount}:{mount}"

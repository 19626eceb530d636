"""Restart ``python train.py`` under ``paceline run`` for ``Trainer(devices=2)``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch.distributed as dist

from paceline import env
from paceline.errors import option_contradicted
from paceline.machine import own_process, own_world
from paceline.text import terminal
from paceline.train.session import Session


def start_ranks(devices: int | None, num_nodes: int) -> None:
    """Replace a process that was started alone by ``paceline run`` of its script."""
    launched = env.read(env.RUN_TOKEN) is not None or _launcher() != "none"
    if launched or dist.is_initialized() or (devices or 1) * num_nodes == 1:
        return
    if num_nodes > 1:
        raise option_contradicted(
            f"num_nodes={num_nodes}, and this process was started without a launcher: it cannot"
            " start other nodes",
            where="Trainer(num_nodes=...)",
            fix=(
                f"srun --nodes {num_nodes} python script.py, or on each node: "
                f"paceline run --nnodes {num_nodes} --rdzv-endpoint HOST:29500 script.py"
            ),
        )
    script = _script()
    if script is None:
        raise option_contradicted(
            f"devices={devices}, and there is no script to start on each of them",
            where="Trainer(devices=...)",
            fix=f"put it into a function: paceline.launch(train, nproc_per_node={devices})",
        )
    ranks = ["--nproc-per-node", str(devices), "--standalone"]  # also in a larger Slurm job
    words = ["run", *ranks, *script, *sys.argv[1:]]
    line = " ".join(["paceline", *words])
    terminal.say(f"Trainer(devices={devices}) starts its ranks with: {line}")
    sys.stdout.flush()
    os.execv(sys.executable, own_process.command(*words))


def _launcher() -> str:
    return own_world.read().launcher


def local_world_size() -> int:
    """Return the number of ranks on this node."""
    return own_world.read().local_world_size


def _script() -> list[str] | None:
    """Return ``paceline run``'s arguments for this process's script; None if it is not a file."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return ["-m", spec.name.removesuffix(".__main__")]
    file = getattr(main, "__file__", None)
    return [os.path.abspath(file)] if file and Path(file).is_file() else None


def check_world(devices: int | None, num_nodes: int, session: Session) -> None:
    """Refuse a run with another number of ranks than the Trainer requests."""
    requested = (devices or 0) * num_nodes
    if requested in (0, session.world_size):
        return
    start = f"paceline run --nproc-per-node {devices} script.py"
    if _launcher() == "slurm":
        start = f"#SBATCH --nodes={num_nodes} --ntasks-per-node={devices}"
    raise option_contradicted(
        f"devices={devices} and num_nodes={num_nodes} make {requested} ranks, "
        f"and this run was started with {session.world_size}",
        where="Trainer(devices=...)",
        why="the number of ranks is decided where the run is started",
        fix=f'Trainer(devices="auto"), or: {start}',
    )


def check_device(device_type: str, session: Session) -> None:
    """Refuse ranks on another type of device than the Trainer requests."""
    present = session.device.type
    is_any_gpu = device_type == "gpu" and present != "cpu"
    if device_type in ("", present) or is_any_gpu:
        return
    if device_type == "cpu":
        fix = "export CUDA_VISIBLE_DEVICES= (empty) hides the GPUs from this run"
    else:
        fix = (
            'Trainer(accelerator="auto"); to find out why torch sees no GPU: python -m'
            " torch.utils.collect_env"
        )
    raise option_contradicted(
        f"the ranks of this run are on {present}, and the Trainer requires {device_type}",
        where="Trainer(accelerator=...)",
        fix=fix,
    )

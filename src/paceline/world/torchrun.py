"""Read the world of a rank from torchrun's variables, which ``paceline run`` sets too. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from paceline import env
from paceline.errors import UsageError
from paceline.world.world import World, whole


def is_started_rank(environ: Mapping[str, str]) -> bool:
    """Return whether a launcher of ranks has started this process.

    ``RANK`` alone can be a shell's, a job script's or a pod's.
    """
    return env.RUN_TOKEN in environ or env.RUN_ID in environ


def world_of_rank(environ: Mapping[str, str], requested: str) -> World:
    """Return the world of a rank; ``requested`` is PACELINE_LAUNCHER, empty without one.

    Raises UsageError if a variable is missing, or is not a number.
    """
    needed = (env.RANK, env.WORLD_SIZE, env.LOCAL_RANK, env.MASTER_ADDR, env.MASTER_PORT)
    missing = [name for name in needed if name not in environ]
    if missing:
        why = f"PACELINE_LAUNCHER={requested}" if requested else "RANK is"
        raise UsageError.of(
            "rank-env-missing",
            f"{', '.join(missing)} not set, although {why}",
            where="environment",
            fix="start the script with: paceline run script.py",
        )
    world_size = whole(environ, env.WORLD_SIZE)
    is_ours = env.RUN_TOKEN in environ
    starter = "paceline run" if is_ours else "torchrun"
    source = f"and PACELINE_LAUNCHER={requested}" if requested else f"by {starter}"

    def number(name: str, default: int) -> int:
        return whole(environ, name) if name in environ else default

    return World(
        rank=whole(environ, env.RANK),
        world_size=world_size,
        local_rank=whole(environ, env.LOCAL_RANK),
        local_world_size=number(env.LOCAL_WORLD_SIZE, world_size),
        node_rank=number(env.GROUP_RANK, 0),
        num_nodes=number(env.GROUP_WORLD_SIZE, 1),
        master_addr=environ[env.MASTER_ADDR],
        master_port=whole(environ, env.MASTER_PORT),
        launcher=requested or ("paceline" if is_ours else "torchrun"),
        reason=f"RANK and WORLD_SIZE={world_size} are set {source}",
    )

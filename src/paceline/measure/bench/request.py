"""What a bench measures, and whether this node can. ``check`` and the parsers decide; pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UsageError, option_contradicted, option_invalid

PER_RANK = "{per_rank}"
FEWEST_STEPS = 12  # fewer leave no window of steps after the warm-up
EXAMPLE = "--batch-option '--batch-size={per_rank}'"


@dataclass(frozen=True)
class Devices:
    """What this node has for ranks."""

    count: int  # number of GPUs, or of CPUs on a node without GPUs
    are_gpus: bool  # whether they are GPUs

    @property
    def words(self) -> str:
        """The devices in words: ``2 CPUs``."""
        kind = "GPU" if self.are_gpus else "CPU"
        return f"{self.count} {kind}{'' if self.count == 1 else 's'}"


@dataclass(frozen=True)
class BenchRequest:
    """A bench as requested. Times are in seconds."""

    command: tuple[str, ...]  # the script and its arguments
    # numbers of ranks, the smallest first; none for those of ``default_worlds``
    worlds: tuple[int, ...]
    steps: int = 40  # optimizer steps of each trial, with those of the warm-up
    rounds: int = 3  # how often each number of ranks is measured
    scaling: str = "weak"  # ``"weak"`` or ``"strong"``
    batch_option: str = ""  # argument of the script with ``{per_rank}`` for the batch of a rank
    # samples of a step over all ranks, for strong scaling; None for those of the smallest number of
    # ranks
    global_batch: int | None = None
    timeout_s: float = 600.0  # time that a trial may take
    oversubscribe: bool = False  # whether there may be more ranks than devices
    is_module: bool = False  # whether the script is a module, as in ``python -m``
    settings: str = ""  # settings to try, as ``settings.choose`` takes them; empty for none
    run_dir: Path | None = None  # the run folder; None for a new one

    @property
    def options(self) -> tuple[str, ...]:
        """Options of ``paceline run`` in every trial."""
        return ("--module",) if self.is_module else ()

    def command_for(self, world_size: int, global_batch: int | None) -> tuple[str, ...]:
        """Return the command for a number of ranks; unchanged if no global batch is given."""
        if self.scaling == "weak" or global_batch is None:
            return self.command
        per_rank = str(global_batch // world_size)
        return (*self.command, *shlex.split(self.batch_option.replace(PER_RANK, per_rank)))


def parse_worlds(text: str) -> tuple[int, ...]:
    """Return the numbers of ranks of ``--world``, the smallest first."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        what = f"--world is numbers of ranks, separated by commas, and not {text!r}"
        raise option_invalid(what, where="--world", fix="--world 1,2,4")
    return tuple(sorted({int(word) for word in words}))


def default_worlds(devices: Devices) -> tuple[int, ...]:
    """Return the powers of two up to the number of devices, and that number."""
    powers = {1 << power for power in range(devices.count.bit_length())}
    return tuple(sorted({size for size in powers if size < devices.count} | {devices.count}))


def check(request: BenchRequest, devices: Devices) -> None:
    """Refuse what cannot be measured."""
    _check_devices(request, devices)
    if request.steps < FEWEST_STEPS:
        what = f"--steps needs at least {FEWEST_STEPS} steps, with those of the warm-up"
        raise option_invalid(what, where="--steps", fix=f"--steps {FEWEST_STEPS}")
    if request.scaling == "strong":
        _check_strong(request)
    elif request.batch_option or request.global_batch is not None:
        option = "--batch-option" if request.batch_option else "--global-batch"
        what = f"{option} has no effect with weak scaling, where a rank has the script's own batch"
        raise option_contradicted(what, where=option, fix="--scaling strong")


def _check_devices(request: BenchRequest, devices: Devices) -> None:
    largest = request.worlds[-1]
    if largest <= devices.count or request.oversubscribe:
        return
    sizes = [size for size in request.worlds if size <= devices.count] or [devices.count]
    worlds = ",".join(map(str, sizes))
    raise UsageError.of(
        "world-larger-than-node",
        f"--world has {largest} ranks, and this node has {devices.words}",
        where="--world",
        why="ranks that share a device take turns, which says nothing about ranks that do not",
        fix=f"paceline bench --world {worlds} {shlex.join(request.command)}",
    )


def _check_strong(request: BenchRequest) -> None:
    if PER_RANK not in request.batch_option:
        what = f"--scaling strong needs --batch-option with {PER_RANK} for the batch of a rank"
        raise option_invalid(what, where="--batch-option", fix=f"--scaling strong {EXAMPLE}")
    if request.global_batch is not None:
        check_division(request, request.global_batch)


def check_division(request: BenchRequest, global_batch: int) -> None:
    """Refuse a global batch that cannot be divided among the ranks."""
    uneven = [size for size in request.worlds if global_batch % size]
    if uneven or not global_batch:
        what = f"a global batch of {global_batch} samples cannot be divided by {uneven[0]} ranks"
        near = max(global_batch // uneven[0], 1) * uneven[0]
        raise option_invalid(what, where="--global-batch", fix=f"--global-batch {near}")


def no_effect(
    request: BenchRequest, world_size: int, *, measured: int, expected: int
) -> UsageError:
    """Return the error that the script does not follow ``--batch-option``."""
    what = (
        f"with {' '.join(request.command_for(world_size, expected)[len(request.command) :])},"
        f" {request.command[0]} takes {measured} samples a step on {world_size} ranks, and not"
        f" {expected}"
    )
    return option_invalid(
        what, where="--batch-option", fix=f"name the option of the batch of one rank: {EXAMPLE}"
    )


def batch_unknown() -> UsageError:
    """Return the error that strong scaling needs a batch that cannot be seen."""
    what = "the script's batch cannot be seen, because it does not come from a DataLoader of torch"
    return option_invalid(what, where="--global-batch", fix="--global-batch 256")

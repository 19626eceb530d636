"""Check settings of torch's process group that override each other, and old names that are set
beside new ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.diagnose.variables.given import Settings
from paceline.diagnose.variables.renamed import RENAMED
from paceline.errors import Finding
from paceline.text.wording import is_or_are

BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
DUMPS = ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
STACKS = ("TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK", "TORCH_FR_DUMP_DYNAMIC_FILE_NAME")
STRICTER = (
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NRINGS",
    "NCCL_MAX_NRINGS",
    "NCCL_CHECK_POINTERS",
)


def judge_torch_pairs(settings: Settings) -> Iterator[Finding]:
    """Yield the findings about settings of torch that contradict each other."""
    yield from _blocking_wait(settings)
    yield from _monitoring(settings)
    yield from _flight_recorder(settings)
    yield from _nonblocking(settings)
    yield from _both_names(settings)


def _blocking_wait(settings: Settings) -> Iterator[Finding]:
    if not settings.is_true(*BLOCKING):
        return
    idle = [
        name for name in HANDLING if settings.has(name) and settings.number(name) not in (0, None)
    ]
    watchdog_flags = (
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_DESYNC_DEBUG",
        "TORCH_NCCL_ENABLE_MONITORING",
    )
    idle += [name for name in watchdog_flags if settings.is_true(name)]
    idle += [
        name
        for name in ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "NCCL_DESYNC_DEBUG")
        if settings.has(name)
    ]
    if idle:
        cause = next(name for name in BLOCKING if settings.is_true(name))
        yield settings.contradicted(
            (cause, *idle),
            f"{cause}=1 starts no watchdog thread, and {', '.join(idle)} {is_or_are(idle)} for it",
            why=(
                "a timeout raises an error in wait() alone: nothing is torn down and no flight"
                " recorder is written"
            ),
            fix=f"unset {cause}",
        )


def _monitoring(settings: Settings) -> Iterator[Finding]:
    if settings.is_false("TORCH_NCCL_ENABLE_MONITORING") and settings.has(
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
    ):
        yield settings.contradicted(
            ("TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
            "TORCH_NCCL_ENABLE_MONITORING=0 starts no monitor, and TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
            " is its patience",
            why=(
                "a watchdog that hangs is never noticed, and neither is the time that was given"
                " to it"
            ),
            fix="unset one of the two",
        )


def _flight_recorder(settings: Settings) -> Iterator[Finding]:
    cause = next((name for name in BUFFER if settings.number(name) == 0), None)
    if cause is None:
        return
    idle = [name for name in DUMPS[1:] if settings.has(name)]
    idle += [name for name in (DUMPS[0], *STACKS) if settings.is_true(name)]
    if idle:
        yield settings.contradicted(
            (cause, *idle),
            f"{cause}=0 switches the flight recorder off, and {', '.join(idle)}"
            f" {is_or_are(idle)} for it",
            why="there is nothing to write after a timeout",
            fix=f"unset {cause} (the default is 2000 entries)",
        )


def _nonblocking(settings: Settings) -> Iterator[Finding]:
    names = ("TORCH_NCCL_USE_COMM_NONBLOCKING", "TORCH_NCCL_NONBLOCKING_TIMEOUT")
    if settings.has(names[1]) and not settings.has(names[0]):
        yield settings.contradicted(
            names,
            f"{names[1]} is read with {names[0]}=1 only, which is not set",
            why="torch warns that it has no effect, and continues",
            fix=f"{names[0]}=1, or unset {names[1]}",
            severity="hint",
        )


def _both_names(settings: Settings) -> Iterator[Finding]:
    for old, change in RENAMED.items():
        if not change.works or not (settings.has(old) and settings.has(change.new)):
            continue
        if settings.text(old) == settings.text(change.new) or old == "NCCL_CHECK_POINTERS":
            continue
        # For its process group torch reads the oldest name first and lets the newest replace it;
        # the allocator takes its old name where both are set.
        wins = old if old == "PYTORCH_CUDA_ALLOC_CONF" else change.new
        text = "the stricter of the two counts" if old in STRICTER else f"{wins} wins"
        yield settings.contradicted(
            (old, change.new),
            f"{old} and {change.new} are one setting with two values: {text}",
            why="changing the other one has no effect",
            fix=(
                f"unset {old}"
                if old != wins
                else f"unset {change.new}, or move all options there and unset {old}"
            ),
        )

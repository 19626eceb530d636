"""Record in a rank what ``paceline verify`` compares: samples, steps, and printed figures.

It is installed before the probe, which may end the rank in its hook after the last step. Unlike the
probe it looks at every step and waits for the device, so a run with it is slow, and only
``paceline verify`` requests it.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline import env
from paceline.launch.probe import (
    one_rank_mesh,
    record_loops,
    record_masks,
    record_steps,
    stack_responder,
    trial_end,
)
from paceline.launch.probe.loader_maker import Makers
from paceline.launch.probe.padding import have_combined
from paceline.launch.probe.record_file import RecordFile
from paceline.launch.probe.record_loops import LoopRecords
from paceline.launch.probe.record_steps import StepRecords
from paceline.launch.probe.record_values import ValueRecords
from paceline.machine.compiled import left_alone
from paceline.rundir.files import RunDir
from paceline.text.wording import shorten

_FIGURE = re.compile(r"\d\.\d")
_MOST_LINES = 50  # of what a rank prints
_MOST_CHARACTERS = 160


def install(is_users: Callable[[str], bool]) -> None:
    """Record into the run folder of this rank; a run whose file cannot be created is left alone."""
    folder, rank = env.read(env.RUN_DIR), env.read(env.RANK)
    if folder is None or rank is None:
        return
    try:
        file = RecordFile(RunDir(Path(folder)).observed(int(rank)))
    except OSError:  # a full disk, or the records of the attempt before
        return
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    makers = Makers(is_users)
    makers.watch()

    def place() -> str:
        return makers.line_of(sys._getframe(1))

    loops = LoopRecords(file, place)
    steps = StepRecords(file, loops, place)
    iterators: Any = dataloader._BaseDataLoaderIter
    record_loops.watch(iterators, loops)
    record_steps.watch(steps)
    _watch_values(RunDir(Path(folder)).values(int(rank)), place, is_users)
    optimizer.register_optimizer_step_post_hook(left_alone(_settling(loops)))
    atexit.register(file.close)
    atexit.register(file.guarded(loops.settle))  # called first
    if int(rank) == 0:
        for stream in (sys.stdout, sys.stderr):
            _listen(stream, Printed(file, loops, place))


def _watch_values(path: Path, place: Callable[[], str], is_users: Callable[[str], bool]) -> None:
    with contextlib.suppress(OSError):  # what else is recorded can still be compared
        file = RecordFile(path)
        reference = env.read(env.VERIFY) or ""
        values = ValueRecords(file, place, is_users, Path(reference) if "/" in reference else None)
        values.watch()
        record_masks.neutralise(file.guarded(values.masks.note))
        atexit.register(file.close)
    if env.read(env.WORLD_SIZE) == "1":
        one_rank_mesh.allow()


def _settling(loops: LoopRecords) -> Callable[..., None]:
    """Return a hook that completes the records at the last step of a trial."""
    last_step, steps = trial_end.num_steps(), 0
    settle = loops.file.guarded(loops.settle)

    def settle_at_last_step(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == last_step:
            settle()

    return settle_at_last_step


class Printed:
    """Lines with a figure that rank 0 prints after an evaluation."""

    def __init__(
        self,
        file: RecordFile,
        loops: LoopRecords,
        place: Callable[[], str],  # the line of the script that runs
    ) -> None:
        self.file, self._loops, self._place = file, loops, place
        self._line = ""
        self._left = _MOST_LINES

    def add(self, text: str) -> None:
        """Add what was written to the stream."""
        *lines, self._line = re.split(r"[\r\n]+", self._line + text)
        self._line = self._line[:_MOST_CHARACTERS]
        for line in lines:
            self._see(line)

    def _see(self, line: str) -> None:
        loop = self._loops.evaluation()
        if loop is None or not self._left or not _FIGURE.search(line):
            return
        self._left -= 1
        self.file.write(
            "printed",
            loop=loop.number,
            line=shorten(line.strip(), _MOST_CHARACTERS),
            place=self._place(),
            combined=have_combined(stack_responder.entries(), since_ns=loop.since_ns),
        )


def _listen(stream: Any, printed: Printed) -> None:
    write, add = stream.write, printed.file.guarded(printed.add)

    def noted_write(text: str) -> Any:
        if isinstance(text, str):
            add(text)
        return write(text)

    stream.write = noted_write

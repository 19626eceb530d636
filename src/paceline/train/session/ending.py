"""At the end of a script that used a Session, finish pending writes, and say what it has proven."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from paceline.errors import EXIT_FAILED, PacelineError
from paceline.machine import agreement
from paceline.rundir import proofs
from paceline.text import terminal
from paceline.text.wording import few
from paceline.train import logging
from paceline.train.checkpoint import Checkpoints
from paceline.train.session.rank_check import RankCheck


@dataclass(frozen=True)
class Proven:
    """What a session on several ranks has proven about its result."""

    check: RankCheck
    whole_epochs: Mapping[int, int]  # epochs that served each sample once, by number of samples
    limits: Sequence[str]  # what depends on the number of ranks


def finish(
    checkpoints: Checkpoints,  # their writes
    loggers: logging.Loggers | None,  # what they have not written yet
    proven: Proven | None = None,  # what to print in the last line; None without one
) -> None:
    """Finish the pending writes of a script that succeeded; exit with status 1 if one fails."""
    if hasattr(sys, "last_type"):
        return
    try:
        checkpoints.close()
        if loggers is not None:
            loggers.close()
        if proven is not None and proven.check.num_steps:
            terminal.say(describe(proven))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, PacelineError):
            text = error.finding.render()
        terminal.show(text, sys.stderr)
        get_error_handler().record_exception(error)  # for the launcher, also torchrun
        sys.stdout.flush()
        os._exit(EXIT_FAILED)  # an exception in an exit handler would leave the exit status at 0


def describe(proven: Proven) -> str:
    """Return the last line of a run, for the script that runs."""
    epochs = [
        f"{'1 epoch' if count == 1 else f'{count} epochs'} of {samples:,}"
        for samples, count in proven.whole_epochs.items()
        if count
    ]
    parts = [f"every sample once ({', '.join(epochs)})"] if epochs else []
    if proven.limits:
        parts.append(f"depends on the number of ranks: {few(list(dict.fromkeys(proven.limits)))}")
    check = proven.check
    return agreement.last_line(
        checks=check.count,
        step=check.last_step,
        differs=bool(check.differs_since),
        others=parts,
        **proofs.part_of_last_line(sys.argv[0], sys.argv[1:]),
    )

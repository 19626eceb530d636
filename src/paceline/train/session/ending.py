"""At the end of a script that used a Session, finish pending writes or fail the script."""

from __future__ import annotations

import os
import sys

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from paceline.errors import EXIT_FAILED, PacelineError
from paceline.text import terminal
from paceline.train import logging
from paceline.train.checkpoint import Checkpoints


def finish(checkpoints: Checkpoints, loggers: logging.Loggers | None) -> None:
    """Finish the pending writes of a script that succeeded; exit with status 1 if one fails."""
    if hasattr(sys, "last_type"):
        return
    try:
        checkpoints.close()
        if loggers is not None:
            loggers.close()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, PacelineError):
            text = error.finding.render()
        terminal.show(text, sys.stderr)
        get_error_handler().record_exception(error)  # for the launcher, also torchrun
        sys.stdout.flush()
        os._exit(EXIT_FAILED)  # an exception in an exit handler would leave the exit status at 0

"""Entry of the command ``paceline``: Ctrl-C ends it without a traceback from the first line on."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command."""
    catches = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if catches:  # not in the background of a script, where it is ignored
        # Imports take most of the first second. A KeyboardInterrupt in one of them shows a
        # traceback of the imported library, or becomes another exception. Nothing has been started
        # yet that needs to be stopped.
        signal.signal(signal.SIGINT, _leave)
    from paceline.cli import main as cli

    if catches and sys.argv[1:2] != ["run"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # paceline run keeps the handler until its main thread takes signals; the fork server and ranks
    # have their own.
    cli.main()


def _leave(*_: object) -> None:
    os._exit(_INTERRUPTED)

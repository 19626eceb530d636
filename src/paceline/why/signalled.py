"""Send a rank the signal at which it prints its stack, and read the stack from its stderr.

From outside it is visible that a process catches a signal, but not what its handler does: at
SIGUSR1 Lightning saves and queues its job again. So no signal is sent unless the user names it with
``--signal``, and then only to a rank that catches it and whose stderr is a file, from which
faulthandler's stacks can be read.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from pathlib import Path

from paceline.launch.monitor import position, stacks

_ANSWER_S = 1.0
_ONE_BY_ONE = threading.Lock()  # ranks may write to the same file


def number_of(
    name: str,  # ``USR1``, ``SIGUSR2``, or the number of a real-time signal
) -> int:
    """Return the number of a signal, 0 for one that may end a rank."""
    user_signal = {"USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}.get(
        name.upper().removeprefix("SIG")
    )
    if user_signal is not None:
        return int(user_signal)
    first, last = int(getattr(signal, "SIGRTMIN", 1)), int(getattr(signal, "SIGRTMAX", 0))
    return int(name) if name.isdigit() and first <= int(name[:4]) <= last else 0


def ask(
    pid: int,  # process id of the rank
    signum: int,  # the signal for which the user has registered faulthandler
) -> tuple[list[tuple[str, int, str]], str]:
    """Return ``(file, line, function)`` of the main thread's frames, outermost first, and why there
    are none.
    """
    name = signal.Signals(signum).name if signum in set(signal.Signals) else f"signal {signum}"
    if not stacks.catches(pid, signum):
        return [], f"it does not catch {name}, so it was not sent"
    file = Path(f"/proc/{pid}/fd/2")
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return [], f"its stderr is not a file that can be read, so {name} was not sent"
        with _ONE_BY_ONE:
            start = file.stat().st_size
            os.kill(pid, signum)
            text = stacks.appended(file, start, time.monotonic() + _ANSWER_S)
    except OSError as error:
        return [], f"{name}: {error.strerror}"
    frames = list(position.parse(text))
    return frames, "" if frames else f"it wrote no stack to its stderr when {name} was sent"

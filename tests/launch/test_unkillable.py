"""A rank that waits in the kernel, where no signal reaches it, is named as soon as it is to end."""

from __future__ import annotations

import signal

from starting import BIN

# vfork suspends its caller in the kernel, in state D, until the child has gone; the child here takes its time.
SCRIPT = """
import ctypes, os, signal, time
open("up", "w").write("here\\n")
libc = ctypes.PyDLL(None)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
libc.syscall(58)  # vfork; what follows runs in the child, in the memory of its suspended parent
libc.sleep(4)
libc._exit(0)
"""


def test_a_rank_in_state_d_is_named_at_once(command):
    command.script(SCRIPT)
    running = command.start("--grace-s", "3", "train.py")
    command.wait_for(command.folder / "up")
    import time

    time.sleep(0.5)
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert BIN.exists()
    assert "notice: rank 0 (pid" in ended.err, ended.err
    assert "it waits in the kernel (state D)" in ended.err

"""Signals to the launcher, fetched where the system can and noted by handlers where it can't."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from paceline.launcher.signals import Caught, Signals


@pytest.fixture
def usual():
    """The process's own mask and handler, put back."""
    mask, handler = signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def send():
    """To this thread alone: the test runner may have others, which do not block it and would die of it."""
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)


def test_a_signal_is_fetched_with_its_sender(usual):
    signals = Signals([signal.SIGUSR2])
    assert signals.next(0.01) is None
    send()
    assert signals.next(1.0) == Caught(signal.SIGUSR2, os.getpid())
    assert signals.next(0.01) is None


def test_without_sigtimedwait_handlers_note_it(usual, monkeypatch):
    monkeypatch.delattr(signal, "sigtimedwait")
    signals = Signals([signal.SIGUSR2])
    send()
    assert signals.next(1.0) == Caught(signal.SIGUSR2, None)
    assert signals.next(0.01) is None

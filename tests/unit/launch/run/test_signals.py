"""Signals to the launcher, fetched where the system can and noted by handlers where it can't."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from paceline.launch.run.signals import Caught, RepeatPolicy, Signals, for_ranks


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


USUAL = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


@pytest.mark.parametrize(
    ("came", "handed_on", "given"),
    [
        ("SIGTERM", USUAL, "SIGTERM"),
        ("SIGINT", USUAL, "SIGINT"),
        ("SIGUSR1", USUAL, "SIGTERM"),
        ("SIGUSR2", USUAL, "SIGTERM"),
        ("SIGUSR1", (*USUAL, "SIGUSR1"), "SIGUSR1"),
        ("SIGUSR2", (*USUAL, "SIGUSR1"), "SIGTERM"),
    ],
)
def test_a_notice_reaches_ranks_as_sigterm_unless_it_is_to_be_handed_on(came, handed_on, given):
    assert for_ranks(signal.Signals[came], handed_on) is signal.Signals[given]


@pytest.mark.parametrize(
    ("came", "at_once"),
    [
        ([("SIGTERM", 0.0)], [False]),
        ([("SIGTERM", 0.0), ("SIGTERM", 0.01)], [False, False]),  # timeout sends it twice
        ([("SIGTERM", 0.0), ("SIGTERM", 0.5)], [False, True]),
        ([("SIGTERM", 0.0), ("SIGTERM", 0.01), ("SIGTERM", 0.5)], [False, False, True]),
        ([("SIGINT", 0.0), ("SIGINT", 0.5)], [False, True]),
        ([("SIGTERM", 0.0), ("SIGINT", 0.5)], [False, True]),
        ([("SIGHUP", 0.0), ("SIGTERM", 0.5)], [False, True]),
        # Slurm's notice, and at the limit the signal that it was about
        ([("SIGUSR1", 0.0), ("SIGTERM", 9.0)], [False, False]),
        ([("SIGUSR1", 0.0), ("SIGTERM", 9.0), ("SIGTERM", 10.0)], [False, False, True]),
        ([("SIGUSR1", 0.0), ("SIGUSR1", 9.0)], [False, False]),
        ([("SIGTERM", 0.0), ("SIGUSR2", 9.0)], [False, False]),
        ([("SIGUSR1", 0.0), ("SIGINT", 9.0)], [False, True]),
        # the launcher's own clock
        ([("", 0.0), ("SIGTERM", 9.0)], [False, False]),
        ([("", 0.0), ("SIGINT", 9.0)], [False, True]),
    ],
    ids=lambda value: " ".join(name for name, _ in value) if isinstance(value[0], tuple) else None,
)
def test_who_insists(came, at_once):
    policy = RepeatPolicy()
    assert [policy.record(name, 100 + when) for name, when in came] == at_once

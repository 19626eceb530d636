"""The buffers of a checkpoint: released also where no thread can start any more."""

import threading

import torch

from paceline.train.checkpoint import staging


def test_buffers_are_released_while_the_interpreter_ends(monkeypatch):
    """Python 3.12 and newer refuse a new thread then; the save before the end must not fail by it."""

    def refuse(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    monkeypatch.setattr(staging, "choose_hold_s", lambda **_: 5.0)
    buffers = staging.Staging(torch.device("cpu"))
    buffers.copy({"weight": torch.ones(4)})
    buffers.settle()
    assert buffers._buffers == {}

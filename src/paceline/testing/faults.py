"""Faults that a test injects: a rank that dies, one that hangs, a NaN.

    def test_the_others_notice(faults):
        faults.die(rank=1, step=3)
        with pytest.raises(RuntimeError):
            train()

A step is a call of ``step()`` of any torch optimizer of the rank, counted from the line that asks
for the fault. A fault that was asked for and has not happened fails the test: its steps were fewer.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from paceline.errors import Finding, UsageError
from paceline.testing.job import DIED_ON_PURPOSE, HANGS_ON_PURPOSE, RankChannel

_DIE, _HANG, _NAN = "die", "hang", "nan"
_ANNOUNCED = {_DIE: DIED_ON_PURPOSE, _HANG: HANGS_ON_PURPOSE}


@dataclass
class _Fault:
    """A fault that this rank will have."""

    kind: str  # what happens
    step: int  # in which optimizer step, from 1
    num_steps: int = 0  # number of steps that have begun
    happened: bool = False  # whether it has happened

    @property
    def call(self) -> str:
        """The call that asked for it, without the rank."""
        return f"faults.{self.kind}(step={self.step})"


class _Rank:
    """The state of this rank in the running job."""

    def __init__(self, number: int, channel: RankChannel) -> None:
        self.number, self.channel = number, channel
        self.faults: list[_Fault] = []
        self.handles: list[Any] = []


_here: _Rank | None = None


def prepare(number: int, channel: RankChannel) -> None:
    """Begin a job in which nothing is broken yet."""
    global _here  # noqa: PLW0603  # a process is one rank
    _here = _Rank(number, channel)


def forget() -> None:
    """End a job: remove the hooks that faults have installed."""
    global _here  # noqa: PLW0603
    for handle in _here.handles if _here else ():
        handle.remove()
    _here = None


def require_happened() -> None:
    """Check that all faults have happened."""
    for fault in _here.faults if _here else ():
        if not fault.happened:
            raise AssertionError(
                f"{fault.call} has not happened: after it this rank began {fault.num_steps}"
                " optimizer steps"
            )


class Faults:
    """What the fixture ``faults`` gives; its methods break the rank that they name.

    Call them in the body of a test with the mark ``ranks``, or in a function that ``ranks.run``
    gets, on all ranks alike: on other ranks they do nothing.
    """

    def die(self, *, rank: int, step: int | None = None) -> None:
        """Kill a rank by SIGKILL, as the system does when memory runs out.

        Args:
            rank: The rank.
            step: Before which optimizer step it happens, counted from 1; None means now.

        Raises:
            UsageError: The step is invalid, or this process is not a rank.
        """
        self._inject(_DIE, rank, step)

    def hang(self, *, rank: int, step: int | None = None) -> None:
        """Let a rank sleep for ever.

        Args:
            rank: The rank.
            step: Before which optimizer step it happens, counted from 1; None means now.

        Raises:
            UsageError: The step is invalid, or this process is not a rank.
        """
        self._inject(_HANG, rank, step)

    def nan(self, *, rank: int, step: int = 1) -> None:
        """Multiply the output of the first module that runs in a step by NaN.

        The loss and all gradients of the rank become NaN by it, as by a broken sample.

        Args:
            rank: The rank.
            step: In which optimizer step it happens, counted from 1.

        Raises:
            UsageError: The step is invalid, or this process is not a rank.
        """
        self._inject(_NAN, rank, step)

    def _inject(self, kind: str, rank: int, step: int | None) -> None:
        if _here is None:
            raise UsageError(_outside(kind))
        if step is not None and not _is_step(step):
            raise UsageError(_bad_step(kind, step))
        if rank != _here.number:
            return
        if step is None:
            _happen(_Fault(kind, 0))
        else:
            _arm(_Fault(kind, step))


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _arm(fault: _Fault) -> None:
    """Let a fault happen in its step."""
    from torch.nn.modules.module import register_module_forward_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    assert _here is not None
    _here.faults.append(fault)

    def before_step(*_: Any) -> None:
        fault.num_steps += 1
        if fault.kind != _NAN and fault.num_steps == fault.step:
            _happen(fault)

    def after_forward(module: Any, inputs: Any, output: Any) -> Any:
        is_time = fault.num_steps == fault.step - 1 and not fault.happened
        if not is_time or not getattr(output, "requires_grad", False):
            return output
        fault.happened = True
        return output * float("nan")

    _here.handles.append(register_optimizer_step_pre_hook(before_step))
    if fault.kind == _NAN:
        _here.handles.append(register_module_forward_hook(after_forward))


def _happen(fault: _Fault) -> NoReturn:
    """Announce that this rank will not answer, and let it die or hang."""
    assert _here is not None
    _here.channel.send(_ANNOUNCED[fault.kind])
    if fault.kind == _DIE:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(3600)


def _outside(kind: str) -> Finding:
    return Finding(
        "option-invalid",
        f"faults.{kind} was called in the test process, and faults happen in ranks",
        fix="call it in a test with the mark ranks, or in a function that ranks.run gets",
    )


def _bad_step(kind: str, step: object) -> Finding:
    return Finding(
        "option-invalid",
        f"faults.{kind}: step={step!r} is not the number of an optimizer step",
        fix=f"faults.{kind}(rank=1, step=1)   (the first one)",
    )

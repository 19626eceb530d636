"""What the Trainer is doing, under Lightning's names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

STAGES = {"fit": "train", "validate": "validate", "test": "test", "predict": "predict"}


@dataclass
class TrainerState:
    """What the Trainer is doing."""

    # running or last method: ``"fit"``, ``"validate"``, ``"test"``, ``"predict"``; None before the
    # first one
    fn: str | None = None
    # ``"train"``, ``"validate"``, ``"sanity_check"``, ``"test"``, ``"predict"``; None between
    # methods
    stage: str | None = None
    # ``"initializing"``, ``"running"``, ``"finished"`` or ``"interrupted"``
    status: str = "initializing"

    @property
    def finished(self) -> bool:
        """Whether the last method has ended without an exception."""
        return self.status == "finished"

    @property
    def stopped(self) -> bool:
        """Whether no method is running after one did."""
        return self.status in ("finished", "interrupted")

    @contextmanager
    def running(self, fn: str) -> Iterator[None]:
        """Record that a method runs inside the context."""
        self.fn, self.stage, self.status = fn, STAGES[fn], "running"
        try:
            yield
        except BaseException:
            self.status = "interrupted"
            raise
        else:
            self.status = "finished"
        finally:
            self.stage = None

    @contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Record another stage inside the context."""
        before, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = before

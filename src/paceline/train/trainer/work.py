"""Set up a task: wrap the module that ranks share, and call its methods through the wrapper."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.train.session import Session
from paceline.train.trainer.meters import kept_state, put_back


class Parts(nn.Module):
    """The modules among the attributes of a task that is not a module itself, under their names."""

    def __init__(self, task: Any) -> None:
        super().__init__()
        for name, value in vars(task).items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)


class Work:
    """A task that was set up.

    DDP, FSDP and Session's precision act on the ``forward`` of the module that they wrap. A task
    computes in ``training_step``, which may call ``self(x)``, ``self.net(x)``, or both. So the
    wrapped module is called with ``training_step`` in place of its ``forward``; inside, ``forward``
    is the task's own again. (As under Lightning, a forward hook on the task itself is therefore
    called around both.)

    Args:
        task: The user's object.
        session: Session to set it up in.
        optimizers: Optimizers of the task.

    Attributes:
        module: The task itself, or the modules that it holds.
        is_sharded: Whether the module is sharded, so that every forward is a collective.
    """

    def __init__(self, task: Any, session: Session, optimizers: Sequence[Optimizer] = ()) -> None:
        self.task = task
        self.module = task if isinstance(task, nn.Module) else Parts(task)
        ready: Any = session.setup(self.module, *optimizers)
        self._wrapped: nn.Module = ready[0] if optimizers else ready
        self.is_sharded = any(
            hasattr(parameter, "device_mesh") for parameter in self._wrapped.parameters()
        )
        self._methods: dict[str, Callable[..., Any]] = {}

    def train(self, batch: Any, batch_idx: int) -> Any:
        """Return the result of ``training_step``, called so that backward averages gradients."""
        return self._call(self._wrapped, "training_step", batch, batch_idx)

    def evaluate(self, step: str, batch: Any, batch_idx: int) -> Any:
        """Return the result of ``validation_step`` or ``test_step``, called without DDP."""
        return self._call(self.module, step, batch, batch_idx)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the task's modules and attributes by name."""
        yield from self.module.named_modules()
        yield from vars(self.task).items()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to evaluation mode; afterwards restore every module's mode."""
        modes = [(module, module.training) for module in self.module.modules()]
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, mode in modes:
                module.training = mode

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Keep another rank's row out of metrics, and of lists that a task fills."""
        metrics = [part for _, part in self.parts() if hasattr(part, "metric_state")]
        states = [(metric, kept_state(metric)) for metric in metrics]
        lists = [value for value in vars(self.task).values() if isinstance(value, list)]
        lengths = [(value, len(value)) for value in lists]
        try:
            yield
        finally:
            for metric, state in states:
                put_back(metric, state)
            for value, length in lengths:
                del value[length:]

    def _call(self, wrapped: nn.Module, name: str, batch: Any, batch_idx: int) -> Any:
        method = self._methods.get(name) or self._look_up(name)
        # In the instance's __dict__, because nn.Module's setattr takes microseconds, and because a
        # forward that was set on the instance must be restored.
        attributes = self.module.__dict__
        before = attributes.get("forward")

        def restore() -> None:
            if before is None:
                attributes.pop("forward", None)
            else:
                attributes["forward"] = before

        def forward(*inputs: Any) -> Any:
            restore()
            return method(*inputs)

        attributes["forward"] = forward
        try:
            return wrapped(batch, batch_idx)
        finally:
            restore()

    def _look_up(self, name: str) -> Callable[..., Any]:
        """Return a method of the task, which may omit the parameter ``batch_idx``."""
        method = getattr(self.task, name)
        try:
            inspect.signature(method).bind("batch", 0)
            self._methods[name] = method
        except TypeError:
            self._methods[name] = lambda batch, _: method(batch)
        return self._methods[name]

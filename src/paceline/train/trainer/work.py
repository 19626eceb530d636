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
    """

    def __init__(self, task: Any, session: Session, optimizers: Sequence[Optimizer] = ()) -> None:
        self.task = task
        # the task itself, or the modules that it holds
        self.module = task if isinstance(task, nn.Module) else Parts(task)
        ready: Any = session.setup(self.module, *optimizers)
        self._wrapped: nn.Module = ready[0] if optimizers else ready
        parameters = self._wrapped.parameters()
        # whether the module is sharded, so that every forward is a collective
        self.is_sharded = any(hasattr(parameter, "device_mesh") for parameter in parameters)
        self._methods: dict[str, Callable[..., Any]] = {}

    def train(self, *inputs: Any) -> Any:
        """Return the result of ``training_step``, called so that backward averages gradients."""
        return self._call(self._wrapped, self._method("training_step"), *inputs)

    def evaluate(self, step: str, *inputs: Any) -> Any:
        """Return the result of a step, called without DDP."""
        return self._call(self.module, self._method(step), *inputs)

    def reduced(self, loss: torch.Tensor) -> torch.Tensor:
        """Return a loss that was computed without DDP, so that its backward averages gradients.

        DDP prepares for a backward at the end of its forward, by the graph of what that returns.
        """
        if self._wrapped is self.module:
            return loss
        result: torch.Tensor = self._call(self._wrapped, lambda: loss)
        return result

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the task's modules and attributes by name."""
        yield from self.module.named_modules()
        yield from vars(self.task).items()

    @contextmanager
    def evaluating(self, *, inference: bool = False) -> Iterator[None]:
        """Switch to evaluation mode, or inference mode; afterwards restore every module's mode."""
        modes = [(module, module.training) for module in self.module.modules()]
        self.module.eval()
        try:
            with torch.inference_mode() if inference else torch.no_grad():
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

    def _call(self, wrapped: nn.Module, method: Callable[..., Any], *inputs: Any) -> Any:
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
            return wrapped(*inputs)
        finally:
            restore()

    def _method(self, name: str) -> Callable[..., Any]:
        """Return a method of the task, which may omit the parameters after ``batch``."""
        if name not in self._methods:
            self._methods[name] = accepting(getattr(self.task, name))
        return self._methods[name]


def accepting(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that passes on as many of ``batch, batch_idx, dataloader_idx`` as fit."""
    accepted = 3
    while accepted > 1:
        try:
            inspect.signature(method).bind(*range(accepted))
            break
        except TypeError:
            accepted -= 1
    if accepted == 3:
        return method
    return lambda *inputs: method(*inputs[:accepted])

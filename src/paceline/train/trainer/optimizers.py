"""Read all forms that ``configure_optimizers`` may return, and step schedulers when due."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from paceline.errors import UsageError, closest, option_contradicted, option_invalid

KEYS_OF_PAIR = ("optimizer", "lr_scheduler", "monitor")
KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau")


@dataclass(frozen=True)
class Schedule:
    """A scheduler and when it steps."""

    scheduler: Any  # any object with ``step``; usually a torch scheduler
    interval: str = "epoch"  # ``"epoch"`` or ``"step"``
    frequency: int = 1  # number of intervals between steps
    monitor: str = ""  # metric passed to its ``step``; empty without one
    name: str | None = None  # name for a LearningRateMonitor; None without one

    def step(
        self,
        metrics: Mapping[str, Any],  # logged values
        *,
        # the monitored metric must be among them; otherwise a missing one is ignored
        required: bool,
        # given the scheduler and the metric or None; its own ``step`` if None
        how: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        """Step the scheduler; raise UsageError if the monitored metric is required and missing."""
        if not self.monitor:
            self._step(how)
        elif self.monitor in metrics:
            self._step(how, float(metrics[self.monitor]))
        elif required:
            raise never_logged(self.monitor, metrics, where="configure_optimizers")

    def _step(self, how: Callable[[Any, Any], Any] | None, *metric: float) -> None:
        if how is None:
            self.scheduler.step(*metric)
        else:
            how(self.scheduler, metric[0] if metric else None)


def never_logged(monitor: str, metrics: Mapping[str, Any], *, where: str) -> UsageError:
    """Return the error for a monitored metric that is never logged."""
    near = closest(monitor, metrics)
    return option_invalid(
        f"the metric {monitor!r} was never logged; logged were"
        f" {', '.join(sorted(metrics)) or 'none'}",
        where=where,
        fix=f'monitor="{near}"' if near else f'self.log("{monitor}", value) in validation_step',
    )


def read(configured: Any) -> tuple[list[Optimizer], list[Schedule]]:
    """Return the optimizers and schedules in the result of ``configure_optimizers``.

    That is an optimizer; a list of optimizers; a pair of lists, of optimizers and of schedulers; a
    dict with ``optimizer``, ``lr_scheduler`` and ``monitor``; or a list of such dicts. A scheduler
    may be a dict with ``scheduler``, ``interval``, ``frequency`` and ``monitor``. Raises UsageError
    otherwise.
    """
    if isinstance(configured, Optimizer):
        return [configured], []
    if isinstance(configured, Mapping):
        return _read_dict(configured)
    if not isinstance(configured, list | tuple) or not configured:
        raise option_invalid(
            f"configure_optimizers returned {type(configured).__name__}",
            where="configure_optimizers",
            fix=(
                'return {"optimizer": optimizer, "lr_scheduler": scheduler}, or the optimizer alone'
            ),
        )
    # Two optimizers are a list as well: only a pair of lists is optimizers and schedulers.
    if len(configured) == 2 and all(isinstance(part, list | tuple) for part in configured):
        first, second = configured
        optimizers, _ = _joined(first)
        return optimizers, [_schedule(scheduler) for scheduler in second]
    return _joined(configured)


def check_steps(optimizers: Sequence[Optimizer]) -> None:
    """Refuse optimizers that compute the loss themselves, such as LBFGS."""
    for optimizer in optimizers:
        # Most optimizers take a closure; those that need one have no default for it.
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise _needs_closure(type(optimizer).__name__)


def _needs_closure(kind: str) -> UsageError:
    return option_contradicted(
        f"{kind} computes the loss several times in a step, and Trainer computes it once",
        where="configure_optimizers",
        fix=(
            "an optimizer with one backward a step, such as AdamW; or a loop over Session with"
            " optimizer.step(closure)"
        ),
    )


def _read_dict(configured: Mapping[str, Any]) -> tuple[list[Optimizer], list[Schedule]]:
    _check_keys(configured)
    optimizers, _ = read(configured.get("optimizer"))
    scheduler = configured.get("lr_scheduler")
    if scheduler is None:
        return optimizers, []
    return optimizers, [_schedule(scheduler, monitor=configured.get("monitor"))]


def _joined(parts: Sequence[Any]) -> tuple[list[Optimizer], list[Schedule]]:
    """Return the optimizers and schedules of all parts, each of a form that ``read`` accepts."""
    optimizers: list[Optimizer] = []
    schedules: list[Schedule] = []
    for part in parts:
        more_optimizers, more_schedules = read(part)
        optimizers += more_optimizers
        schedules += more_schedules
    return optimizers, schedules


def _check_keys(configured: Mapping[str, Any]) -> None:
    for key in configured:
        if key in KEYS_OF_PAIR:
            continue
        if key in KEYS and key != "scheduler":
            what = f"a key {key!r}, which belongs to the scheduler"
            fix = f'"lr_scheduler": {{"scheduler": scheduler, "{key}": {configured[key]!r}}}'
        else:
            what = f"an unknown key {key!r}"
            fix = f'"{closest(str(key), KEYS_OF_PAIR) or "lr_scheduler"}": ...'
        raise option_invalid(
            f"the dict that configure_optimizers returned has {what}",
            where="configure_optimizers",
            why="it would have no effect",
            fix=fix,
        )


def _schedule(configured: Any, *, monitor: str | None = None) -> Schedule:
    """Return the schedule of a scheduler, or of a dict with one."""
    settings = dict(configured) if isinstance(configured, Mapping) else {"scheduler": configured}
    _check_schedule(settings)
    scheduler = settings["scheduler"]
    takes_metric = isinstance(scheduler, ReduceLROnPlateau) or settings.get("reduce_on_plateau")
    metric = settings.get("monitor") or monitor or ""
    if takes_metric and not metric:
        raise _unusable("is a ReduceLROnPlateau without a metric", fix='"monitor": "val_loss"')
    return Schedule(
        scheduler,
        settings.get("interval", "epoch"),
        settings.get("frequency", 1),
        metric if takes_metric else "",  # the other schedulers' step takes no metric
        settings.get("name"),
    )


def _check_schedule(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a scheduler that have no effect or cannot be used."""
    unknown = [key for key in settings if key not in KEYS]
    if unknown:
        near = closest(unknown[0], KEYS) or "scheduler"
        raise _unusable(f"has an unknown key {unknown[0]!r}", fix=f"{{{near!r}: ...}}")
    scheduler = settings.get("scheduler")
    if scheduler is None:
        raise _unusable("has no scheduler", fix="{'scheduler': ...}")
    interval, frequency = settings.get("interval", "epoch"), settings.get("frequency", 1)
    if interval not in ("epoch", "step"):
        raise _unusable(f"has interval={interval!r}", fix='"interval": "epoch" or "step"')
    if not isinstance(frequency, int) or frequency < 1:
        raise _unusable(f"has frequency={frequency!r}", fix='"frequency": 1')
    if isinstance(scheduler, Optimizer) or not callable(getattr(scheduler, "step", None)):
        raise _unusable(
            f"is of type {type(scheduler).__name__}",
            fix="torch.optim.lr_scheduler.StepLR(optimizer, 30)",
        )


def _unusable(what: str, *, fix: str) -> UsageError:
    return option_invalid(f"lr_scheduler {what}", where="configure_optimizers", fix=fix)


def with_state(schedules: list[Schedule]) -> dict[str, Any]:
    """Return the schedulers that a checkpoint stores, by name."""
    return {
        f"scheduler_{number}" if number else "scheduler": schedule.scheduler
        for number, schedule in enumerate(schedules)
        if hasattr(schedule.scheduler, "state_dict")
    }

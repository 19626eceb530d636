"""Read all forms that ``configure_optimizers`` may return, and step schedulers when due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from paceline.errors import Finding, UsageError, closest

KEYS_OF_PAIR = ("optimizer", "lr_scheduler", "monitor")
KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau")


@dataclass(frozen=True)
class Schedule:
    """A scheduler and when it steps.

    Attributes:
        scheduler: Any object with ``step``; usually a torch scheduler.
        interval: ``"epoch"`` or ``"step"``.
        frequency: Number of intervals between steps.
        monitor: Metric passed to its ``step``; empty without one.
    """

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str = ""

    def step(self, metrics: Mapping[str, Any], *, required: bool) -> None:
        """Step the scheduler.

        Args:
            metrics: Logged values, by name.
            required: Whether the monitored metric must be among them; otherwise a missing one is
                ignored.

        Raises:
            UsageError: The monitored metric is required and missing.
        """
        if not self.monitor:
            self.scheduler.step()
        elif self.monitor in metrics:
            self.scheduler.step(float(metrics[self.monitor]))
        elif required:
            raise never_logged(self.monitor, metrics, where="configure_optimizers")


def never_logged(monitor: str, metrics: Mapping[str, Any], *, where: str) -> UsageError:
    """Return the error for a monitored metric that is never logged."""
    near = closest(monitor, metrics)
    return UsageError(
        Finding(
            "option-invalid",
            f"the metric {monitor!r} was never logged; logged were"
            f" {', '.join(sorted(metrics)) or 'none'}",
            where=where,
            fix=f'monitor="{near}"' if near else f'self.log("{monitor}", value) in validation_step',
        )
    )


def read(configured: Any) -> tuple[list[Optimizer], list[Schedule]]:
    """Return the optimizers and schedules in the result of ``configure_optimizers``.

    Args:
        configured: An optimizer; a list of optimizers; a pair of lists, of optimizers and of
            schedulers; a dict with ``optimizer``, ``lr_scheduler`` and ``monitor``; or a list of
            such dicts. A scheduler may be a dict with ``scheduler``, ``interval``, ``frequency``
            and ``monitor``.

    Raises:
        UsageError: The result has another form.
    """
    if isinstance(configured, Optimizer):
        return [configured], []
    if isinstance(configured, Mapping):
        _check_keys(configured)
        scheduler = configured.get("lr_scheduler")
        optimizers, _ = read(configured.get("optimizer"))
        return optimizers, (
            [] if scheduler is None else [_schedule(scheduler, monitor=configured.get("monitor"))]
        )
    if isinstance(configured, list | tuple) and configured:
        if len(configured) == 2 and all(isinstance(part, list | tuple) for part in configured):
            return [one for each in configured[0] for one in read(each)[0]], [
                _schedule(each) for each in configured[1]
            ]
        pairs = [read(each) for each in configured]
        return [one for ones, _ in pairs for one in ones], [
            one for _, ones in pairs for one in ones
        ]
    raise UsageError(
        Finding(
            "option-invalid",
            f"configure_optimizers returned {type(configured).__name__}",
            where="configure_optimizers",
            fix=(
                'return {"optimizer": optimizer, "lr_scheduler": scheduler}, or the optimizer alone'
            ),
        )
    )


def _check_keys(configured: Mapping[str, Any]) -> None:
    for key in configured:
        if key in KEYS_OF_PAIR:
            continue
        near = closest(str(key), KEYS_OF_PAIR) or "lr_scheduler"
        of_scheduler = key in KEYS and key != "scheduler"
        raise UsageError(
            Finding(
                "option-invalid",
                f"what configure_optimizers returned has {'a' if of_scheduler else 'an unknown'}"
                f" key {key!r}" + (", which belongs to the scheduler" if of_scheduler else ""),
                where="configure_optimizers",
                why="it would have no effect",
                fix=(
                    f'"lr_scheduler": {{"scheduler": scheduler, "{key}": {configured[key]!r}}}'
                    if of_scheduler
                    else f'"{near}": ...'
                ),
            )
        )


def _schedule(given: Any, *, monitor: str | None = None) -> Schedule:
    settings = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    unknown = [key for key in settings if key not in KEYS]
    scheduler = settings.get("scheduler")
    interval, frequency = settings.get("interval", "epoch"), settings.get("frequency", 1)
    if unknown or scheduler is None:
        near = closest(unknown[0], KEYS) if unknown else ""
        raise _unusable(
            f"has an unknown key {unknown[0]!r}" if unknown else "has no scheduler",
            fix=f"{{{near or 'scheduler'!r}: ...}}",
        )
    if interval not in ("epoch", "step"):
        raise _unusable(f"has interval={interval!r}", fix='"interval": "epoch" or "step"')
    if not isinstance(frequency, int) or frequency < 1:
        raise _unusable(f"has frequency={frequency!r}", fix='"frequency": 1')
    if isinstance(scheduler, Optimizer) or not callable(getattr(scheduler, "step", None)):
        raise _unusable(
            f"is of type {type(scheduler).__name__}",
            fix="torch.optim.lr_scheduler.StepLR(optimizer, 30)",
        )
    monitor = settings.get("monitor") or monitor or ""
    takes_metric = isinstance(scheduler, ReduceLROnPlateau) or settings.get("reduce_on_plateau")
    if takes_metric and not monitor:
        raise _unusable("is a ReduceLROnPlateau without a metric", fix='"monitor": "val_loss"')
    return Schedule(scheduler, interval, frequency, monitor if takes_metric else "")  # else none


def _unusable(what: str, *, fix: str) -> UsageError:
    return UsageError(
        Finding("option-invalid", f"lr_scheduler {what}", where="configure_optimizers", fix=fix)
    )


def with_state(schedules: list[Schedule]) -> dict[str, Any]:
    """Return the schedulers that a checkpoint stores, by name."""
    return {
        f"scheduler_{number}" if number else "scheduler": each.scheduler
        for number, each in enumerate(schedules)
        if hasattr(each.scheduler, "state_dict")
    }

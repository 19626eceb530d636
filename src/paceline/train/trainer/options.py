"""Validate the Trainer's arguments: read Lightning's spellings, refuse what is not supported."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.errors import Finding, UsageError, closest

PRECISIONS = {
    "32": "32-true",
    "64": "64-true",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
    "single": "32-true",
    "double": "64-true",
}
ACCELERATORS = {"auto": "", "cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}

# Arguments of Lightning's Trainer that are missing here, with the replacement.
INSTEAD = {
    "barebones": "leave it out: features that are off cost nothing",
    "benchmark": "torch.backends.cudnn.benchmark = True",
    "detect_anomaly": "torch.autograd.set_detect_anomaly(True)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "enable_model_summary": "leave it out; print(model) shows the layers",
    "fast_dev_run": (
        "Trainer(max_steps=1, limit_val_batches=1, logger=False, enable_checkpointing=False)"
    ),
    "inference_mode": "leave it out: evaluation runs under torch.no_grad()",
    "max_time": "paceline run --max-time 3h script.py",
    "overfit_batches": "Trainer(limit_train_batches=...) with a DataLoader that does not shuffle",
    "profiler": "with torch.profiler.profile(): trainer.fit(...)",
    "sync_batchnorm": "Trainer(strategy=paceline.DDP(sync_batchnorm=True)), on GPUs",
    "use_distributed_sampler": "leave it out: samples are shared out exactly",
}


# Options of Lightning's self.log without effect here: a mean is always over all rows of all ranks.
LOG_WITHOUT_EFFECT = (
    "sync_dist",
    "sync_dist_group",
    "add_dataloader_idx",
    "metric_attribute",
    "enable_graph",
)
LOG_OPTIONS = (
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "reduce_fx",
    "batch_size",
    *LOG_WITHOUT_EFFECT,
)


def refuse_unknown_log(names: Iterable[str]) -> None:
    """Refuse options of ``log`` that neither this Trainer nor Lightning has.

    Raises:
        UsageError: An option is unknown.
    """
    for name in names:
        if name not in LOG_WITHOUT_EFFECT:
            near = closest(name, LOG_OPTIONS)
            raise UsageError(
                Finding(
                    "option-unknown",
                    f"log has no option {name}",
                    where="self.log(...)",
                    fix=(
                        f"self.log(..., {near}=...)"
                        if near
                        else f"one of {', '.join(LOG_OPTIONS[:6])}"
                    ),
                )
            )


def refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that the Trainer does not have.

    Raises:
        UsageError: An argument is unknown.
    """
    for name in names:
        near = closest(name, known)
        raise UsageError(
            Finding(
                "option-unknown",
                f"Trainer has no argument {name}",
                where=f"Trainer({name}=...)",
                fix=INSTEAD.get(name)
                or (f"Trainer({near}=...)" if near else "see help(paceline.Trainer)"),
            )
        )


def invalid(name: str, value: object, what: str, *, fix: str) -> UsageError:
    """Return the error for an argument's value."""
    return UsageError(
        Finding(
            "option-invalid",
            f"{name}={value!r} is not {what}",
            where=f"Trainer({name}=...)",
            fix=fix,
        )
    )


def contradiction(what: str, *, where: str, fix: str, why: str = "") -> UsageError:
    """Return the error for arguments that contradict each other, or how the run was started."""
    return UsageError(Finding("option-contradicted", what, where=where, why=why, fix=fix))


def read_precision(precision: str | int) -> str:
    """Return Session's name of a precision, given in any of Lightning's spellings."""
    return PRECISIONS.get(str(precision), str(precision))


def read_accelerator(accelerator: str) -> str:
    """Return the requested type of device; empty if any is accepted.

    Raises:
        UsageError: The accelerator is unknown.
    """
    if accelerator not in ACCELERATORS:
        near = closest(str(accelerator), ACCELERATORS) or "auto"
        raise invalid(
            "accelerator",
            accelerator,
            f"one of {', '.join(ACCELERATORS)}",
            fix=f'Trainer(accelerator="{near}")',
        )
    return ACCELERATORS[accelerator]


def read_devices(devices: int | str | list[int]) -> int | None:
    """Return the requested number of ranks on a node; None if it follows the launcher.

    Raises:
        UsageError: The value is not a positive number, or it names devices.
    """
    text = str(devices)
    if text in ("auto", "-1"):
        return None
    if not text.isdecimal() or int(text) < 1:
        fix = "CUDA_VISIBLE_DEVICES=0,1 chooses GPUs; Trainer(devices=2) sets their number"
        raise invalid("devices", devices, 'a number of ranks or "auto"', fix=fix)
    return int(text)


def count(name: str, value: Any, *, least: int = 1) -> int:
    """Return a value that must be a whole number.

    Raises:
        UsageError: The value is not an int, or it is too small.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise invalid(
        name, value, f"a whole number of at least {least}", fix=f"Trainer({name}={least})"
    )


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """Return a value that must be one of ``known``.

    Raises:
        UsageError: The value is unknown.
    """
    if value in known:
        return value
    near = closest(str(value), known) or known[0]
    raise invalid(name, value, f"one of {', '.join(known)}", fix=f'Trainer({name}="{near}")')


def either(first: str, value: Any, second: str, other: Any) -> Any:
    """Return the value of an argument that has two names.

    Raises:
        UsageError: Both names are given.
    """
    if value is not None and other is not None:
        raise contradiction(
            f"{first} and {second} are the same", where="Trainer(...)", fix=f"Trainer({first}=...)"
        )
    return other if value is None else value


def part(name: str, value: Any) -> int | float | None:
    """Return a value that must be a number of batches, a fraction of them, or None for all.

    Raises:
        UsageError: The value is of another type or range.
    """
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, float) and 0 <= value <= 1:
        return value
    raise invalid(
        name, value, "a number of batches or a fraction from 0.0 to 1.0", fix=f"Trainer({name}=1.0)"
    )


def num_batches(
    name: str, limit: int | float | None, length: int | None, *, least: int = 0
) -> int | None:
    """Return the number of batches that an argument means; None if it is unknown.

    Args:
        name: Name of the argument.
        limit: Value of the argument.
        length: Batches of the loader; None if unknown.
        least: Least result of a fraction; with 0, a fraction of less than one batch is refused.

    Raises:
        UsageError: The value is a fraction, and the length is unknown or the result less than one
            batch.
    """
    if limit is None or (isinstance(limit, float) and limit == 1):
        return length
    if isinstance(limit, int):
        return limit if length is None else min(limit, length)
    if length is None:
        raise invalid(
            name,
            limit,
            "a number of batches, and the length of a stream is unknown",
            fix=f"Trainer({name}=100)",
        )
    number = max(least, int(length * limit))
    if length and limit and not number:
        whole = 10 ** (len(str(length)) + 1)
        fix = f"Trainer({name}={-(-whole // length) / whole})"
        raise invalid(name, limit, f"as much as one of {length} batches", fix=fix)
    return number


def no_batches() -> UsageError:
    """Return the error that there is nothing to train on."""
    return UsageError(
        Finding(
            "option-invalid",
            "the loader for train has no batch",
            where="trainer.fit(...)",
            why="nothing would be trained",
            fix="a dataset with samples; with drop_last=True it needs batch_size of them",
        )
    )


@dataclass(frozen=True)
class Plan:
    """The training arguments, under the names of the Trainer's arguments.

    Raises:
        UsageError: A value is invalid or has no effect.
    """

    max_epochs: int | None
    max_steps: int
    accumulate_grad_batches: int
    gradient_clip_val: float | None
    gradient_clip_algorithm: str
    log_every_n_steps: int
    val_check_interval: int | float | None
    check_val_every_n_epoch: int
    num_sanity_val_steps: int
    limit_train_batches: int | float | None
    limit_val_batches: int | float | None
    limit_test_batches: int | float | None
    enable_checkpointing: bool
    monitor: str | None
    mode: str
    patience: int | None
    min_delta: float
    save_top_k: int

    def __post_init__(self) -> None:
        count("max_epochs", 0 if self.max_epochs is None else self.max_epochs, least=-1)
        count("max_steps", self.max_steps, least=-1)
        count("accumulate_grad_batches", self.accumulate_grad_batches)
        count("log_every_n_steps", self.log_every_n_steps)
        count("check_val_every_n_epoch", self.check_val_every_n_epoch)
        count("num_sanity_val_steps", self.num_sanity_val_steps, least=0)
        count("save_top_k", self.save_top_k, least=0)
        for name in (
            "val_check_interval",
            "limit_train_batches",
            "limit_val_batches",
            "limit_test_batches",
        ):
            part(name, getattr(self, name))
        if self.val_check_interval == 0:
            raise invalid(
                "val_check_interval", 0, "more than no batch", fix="Trainer(limit_val_batches=0)"
            )
        one_of("mode", self.mode, ("min", "max"))
        one_of("gradient_clip_algorithm", self.gradient_clip_algorithm, ("norm", "value"))
        if self.gradient_clip_val is not None and not self.gradient_clip_val > 0:
            raise invalid(
                "gradient_clip_val",
                self.gradient_clip_val,
                "above 0",
                fix="Trainer(gradient_clip_val=1.0)",
            )
        if self.patience is not None:
            count("patience", self.patience)
            if self.monitor is None:
                raise contradiction(
                    "patience is given without a metric to monitor",
                    where="Trainer(patience=...)",
                    fix=f'Trainer(monitor="val_loss", patience={self.patience})',
                )

    @property
    def epochs(self) -> int:
        """Number of epochs; ``sys.maxsize`` without a limit."""
        return sys.maxsize if self.max_epochs is None or self.max_epochs < 0 else self.max_epochs

    @property
    def saves_best(self) -> bool:
        """Whether there will be a best checkpoint."""
        return self.enable_checkpointing and self.monitor is not None and self.save_top_k > 0

    def check_has_end(self) -> None:
        """Refuse to train without any limit.

        Raises:
            UsageError: Neither epochs nor steps are limited.
        """
        if self.max_epochs is None and self.max_steps < 0:
            raise invalid(
                "max_epochs", None, "a number, nor is max_steps", fix="Trainer(max_epochs=10)"
            )
        if self.limit_train_batches == 0 and self.epochs == sys.maxsize:
            raise contradiction(
                "limit_train_batches=0 makes no step, and the number of epochs has no limit",
                where="Trainer(limit_train_batches=...)",
                fix="Trainer(max_epochs=1, limit_train_batches=0)",
            )

    def train_batches(self, length: int | None) -> int | None:
        """Return the number of batches to train on in an epoch; None if it is unknown.

        Raises:
            UsageError: There is no batch, or the limit cuts through a group of accumulated batches,
                whose gradients would be lost.
        """
        if length == 0:
            raise no_batches()
        number = num_batches("limit_train_batches", self.limit_train_batches, length)
        group = self.accumulate_grad_batches
        if number is None or number == length or number % group == 0:
            return number
        raise contradiction(
            f"limit_train_batches={self.limit_train_batches} means {number} batches, and {group}"
            " make a step",
            where="Trainer(limit_train_batches=...)",
            why="the gradients of an incomplete group would be lost",
            fix=f"Trainer(limit_train_batches={-(-number // group) * group})",
        )

    def steps(self, num_batches: int | None) -> float:
        """Return the number of optimizer steps of a whole fit; ``inf`` if it is unknown."""
        in_epochs = math.inf
        if num_batches is not None and self.epochs < sys.maxsize:
            in_epochs = self.epochs * math.ceil(num_batches / self.accumulate_grad_batches)
        return in_epochs if self.max_steps < 0 else min(in_epochs, self.max_steps)

    def batches(self, num_batches: int | None) -> int | None:
        """Return the number of batches of a whole fit; None if it is unknown."""
        limits = []
        if num_batches is not None and self.epochs < sys.maxsize:
            limits.append(self.epochs * num_batches)
        if self.max_steps >= 0:
            limits.append(self.max_steps * self.accumulate_grad_batches)
        return min(limits, default=None)

"""Validate the Trainer's arguments: read Lightning's spellings, refuse what is not supported."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError, closest, option_contradicted, option_invalid
from paceline.signatures.lightning_names import refused

# Options of Lightning's self.log without effect here: a mean is always over all rows of all ranks.
LOG_WITHOUT_EFFECT = (
    "sync_dist",
    "sync_dist_group",
    "metric_attribute",
    "enable_graph",
    "rank_zero_only",
)
LOG_OPTIONS = (
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "reduce_fx",
    "batch_size",
    "add_dataloader_idx",
    *LOG_WITHOUT_EFFECT,
)


def refuse_unknown_log(names: Iterable[str]) -> None:
    """Refuse options of ``log`` that neither this Trainer nor Lightning has."""
    for name in names:
        if name not in LOG_WITHOUT_EFFECT:
            near = closest(name, LOG_OPTIONS)
            raise UsageError.of(
                "option-unknown",
                f"log has no option {name}",
                where="self.log(...)",
                fix=(
                    f"self.log(..., {near}=...)" if near else f"one of {', '.join(LOG_OPTIONS[:7])}"
                ),
            )


def refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that the Trainer does not have."""
    for name in names:
        of_lightning = refused("trainer arguments", name) or refused("removed arguments", name)
        near = closest(name, known)
        hint = f"Trainer({near}=...)" if near else "see help(paceline.Trainer)"
        raise UsageError.of(
            "option-unknown",
            f"Trainer has no argument {name}",
            where=f"Trainer({name}=...)",
            why=of_lightning.text if of_lightning else "",
            fix=of_lightning.instead if of_lightning else hint,
        )


def invalid(name: str, value: object, what: str, *, fix: str, where: str = "Trainer") -> UsageError:
    """Return the error for an argument's value."""
    return option_invalid(f"{name}={value!r} is not {what}", where=f"{where}({name}=...)", fix=fix)


def count(name: str, value: Any, *, least: int = 1, where: str = "Trainer") -> int:
    """Return a value that must be a whole number."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise invalid(
        name,
        value,
        f"a whole number of at least {least}",
        where=where,
        fix=f"{where}({name}={least})",
    )


def one_of(name: str, value: str, known: tuple[str, ...], *, where: str = "Trainer") -> str:
    """Return a value that must be one of ``known``."""
    if value in known:
        return value
    near = closest(str(value), known) or known[0]
    raise invalid(
        name, value, f"one of {', '.join(known)}", fix=f'{where}({name}="{near}")', where=where
    )


def either(first: str, value: Any, second: str, other: Any) -> Any:
    """Return the value of an argument that has two names.

    Raises UsageError if both names are given.
    """
    if value is not None and other is not None:
        raise option_contradicted(
            f"{first} and {second} are the same", where="Trainer(...)", fix=f"Trainer({first}=...)"
        )
    return other if value is None else value


def part(name: str, value: Any) -> int | float | None:
    """Return a value that must be a number of batches, a fraction of them, or None for all.

    Raises UsageError if the value is of another type or range.
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
    name: str,
    limit: int | float | None,  # value of the argument
    length: int | None,  # batches of the loader; None if unknown
    *,
    least: int = 0,  # of a fraction; with 0, a fraction of less than one batch is refused
) -> int | None:
    """Return the number of batches that an argument means; None if it is unknown.

    Raises UsageError if the value is a fraction, and the length is unknown or the result less than
    one batch.
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
    return option_invalid(
        "the loader for train has no batch",
        where="trainer.fit(...)",
        why="nothing would be trained",
        fix="a dataset with samples; with drop_last=True it needs batch_size of them",
    )


@dataclass(frozen=True)
class TrainingPlan:
    """The training arguments, under the names of the Trainer's arguments.

    Raises UsageError if a value is invalid or has no effect.
    """

    max_epochs: int | None
    max_steps: int
    min_epochs: int | None
    min_steps: int | None
    accumulate_grad_batches: int
    gradient_clip_val: float | None
    gradient_clip_algorithm: str
    log_every_n_steps: int
    val_check_interval: int | float | None
    check_val_every_n_epoch: int | None
    num_sanity_val_steps: int
    reload_dataloaders_every_n_epochs: int
    limit_train_batches: int | float | None
    limit_val_batches: int | float | None
    limit_test_batches: int | float | None
    limit_predict_batches: int | float | None
    overfit_batches: int | float
    fast_dev_run: int | bool
    max_time: float | None
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
        count("log_every_n_steps", self.log_every_n_steps, least=0)
        count("min_epochs", self.min_epochs or 0, least=0)
        count("min_steps", self.min_steps or 0, least=0)
        self._check_when_validated()
        count("num_sanity_val_steps", self.num_sanity_val_steps, least=0)
        count("save_top_k", self.save_top_k, least=0)
        name = "reload_dataloaders_every_n_epochs"
        count(name, self.reload_dataloaders_every_n_epochs, least=0)
        for name in (
            "val_check_interval",
            "limit_train_batches",
            "limit_val_batches",
            "limit_test_batches",
            "limit_predict_batches",
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
                raise option_contradicted(
                    "patience is given without a metric to monitor",
                    where="Trainer(patience=...)",
                    fix=f'Trainer(monitor="val_loss", patience={self.patience})',
                )

    def _check_when_validated(self) -> None:
        if self.check_val_every_n_epoch is not None:
            count("check_val_every_n_epoch", self.check_val_every_n_epoch)
        elif isinstance(self.val_check_interval, float) or not self.val_check_interval:
            raise option_contradicted(
                "check_val_every_n_epoch=None counts batches over epochs, and val_check_interval is"
                f" {self.val_check_interval!r}",
                where="Trainer(check_val_every_n_epoch=None)",
                fix="Trainer(check_val_every_n_epoch=None, val_check_interval=1000)",
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
        """Refuse to train without any limit."""
        if self.max_epochs is None and self.max_steps < 0 and self.max_time is None:
            raise invalid(
                "max_epochs", None, "a number, nor is max_steps", fix="Trainer(max_epochs=10)"
            )
        if self.limit_train_batches == 0 and self.epochs == sys.maxsize:
            raise option_contradicted(
                "limit_train_batches=0 makes no step, and the number of epochs has no limit",
                where="Trainer(limit_train_batches=...)",
                fix="Trainer(max_epochs=1, limit_train_batches=0)",
            )

    def check_manual(self) -> None:
        """Refuse arguments that manual optimization leaves to the script."""
        fixes = {
            "gradient_clip_val": "self.clip_gradients(optimizer, 1.0) in training_step",
            "accumulate_grad_batches": "step the optimizer in every n-th training_step",
        }
        defaults = {"gradient_clip_val": None, "accumulate_grad_batches": 1}
        for name, fix in fixes.items():
            if getattr(self, name) != defaults[name]:
                raise option_contradicted(
                    f"under manual optimization training_step does this, and {name} is given",
                    where=f"Trainer({name}=...)",
                    fix=fix,
                )

    def train_batches(self, length: int | None, group: int) -> int | None:
        """Return the number of batches to train on in an epoch; None if it is unknown.

        Raises UsageError if there is no batch, or the limit cuts through a group of accumulated
        batches, whose gradients would be lost.
        """
        if length == 0:
            raise no_batches()
        number = num_batches("limit_train_batches", self.limit_train_batches, length)
        if number is None or number == length or number % group == 0:
            return number
        raise option_contradicted(
            f"limit_train_batches={self.limit_train_batches} means {number} batches, and {group}"
            " make a step",
            where="Trainer(limit_train_batches=...)",
            why="the gradients of an incomplete group would be lost",
            fix=f"Trainer(limit_train_batches={-(-number // group) * group})",
        )

    def steps(self, num_batches: int | None, groups: Mapping[int, int]) -> float:
        """Return the number of optimizer steps of a whole fit; ``inf`` if it is unknown.

        ``num_batches`` are those of an epoch; None if unknown. ``groups`` has, for each epoch in
        which it changes, how many batches make a step.
        """
        in_epochs = math.inf
        if num_batches is not None and self.epochs < sys.maxsize:
            in_epochs = sum(
                num_epochs * math.ceil(num_batches / group)
                for num_epochs, group in self._spans(groups)
            )
        return in_epochs if self.max_steps < 0 else min(in_epochs, self.max_steps)

    def batches(self, num_batches: int | None, groups: Mapping[int, int]) -> int | None:
        """Return the number of batches of a whole fit, as for ``steps``; None if it is unknown."""
        if self.max_steps < 0:
            is_known = num_batches is not None and self.epochs < sys.maxsize
            return self.epochs * (num_batches or 0) if is_known else None
        if num_batches is None:
            return self.max_steps * groups[0] if len(groups) == 1 else None
        done, steps_left = 0, self.max_steps
        for num_epochs, group in self._spans(groups):
            steps_of_epoch = math.ceil(num_batches / group)
            whole = min(num_epochs, steps_left // steps_of_epoch if steps_of_epoch else num_epochs)
            done += whole * num_batches
            steps_left -= whole * steps_of_epoch
            if whole < num_epochs:
                return done + steps_left * group
        return done

    def _spans(self, groups: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Yield how many epochs have the same number of batches in a step, and that number."""
        starts = sorted(groups)
        for start, end in zip(starts, [*starts[1:], self.epochs], strict=True):
            yield max(0, min(end, self.epochs) - start), groups[start]

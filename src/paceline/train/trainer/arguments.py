"""Read the Trainer's arguments: Lightning's spellings, and arguments that stand for others."""

from __future__ import annotations

import dataclasses
import sys
from datetime import timedelta
from typing import Any

from paceline.errors import closest, option_contradicted
from paceline.train.model.strategy import DDP
from paceline.train.trainer.options import count, invalid, part

PRECISIONS = {
    "None": "32-true",
    "32": "32-true",
    "64": "64-true",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
    "single": "32-true",
    "double": "64-true",
}
ACCELERATORS = {"auto": "", "None": "", "cpu": "cpu", "gpu": "gpu", "cuda": "cuda"}
STRATEGIES = {
    "auto": "ddp",
    "ddp_find_unused_parameters_false": "ddp",
    "ddp_find_unused_parameters_true": DDP(find_unused_parameters=True),
}
SPAWNS = ("ddp_fork", "ddp_notebook", "ddp_spawn")
# Defaults of arguments for which Lightning takes None.
DEFAULTS: dict[str, Any] = {
    "accumulate_grad_batches": 1,
    "callbacks": (),
    "enable_checkpointing": True,
    "enable_model_summary": False,
    "enable_progress_bar": True,
    "gradient_clip_algorithm": "norm",
    "inference_mode": False,
    "log_every_n_steps": 50,
    "logger": True,
    "max_steps": -1,
    "num_sanity_val_steps": 0,
    "overfit_batches": 0,
    "reload_dataloaders_every_n_epochs": 0,
    "use_distributed_sampler": True,
}


def normalized(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the Trainer's arguments with those filled in that stand for others.

    Raises UsageError if a value is invalid or has no effect.
    """
    values = {
        name: DEFAULTS.get(name) if value is None else value for name, value in arguments.items()
    }
    values["max_time"] = read_duration(values["max_time"], where="Trainer")
    if not values["gradient_clip_val"]:
        values["gradient_clip_val"] = None  # Lightning's 0
    if values["num_sanity_val_steps"] == -1:
        values["num_sanity_val_steps"] = sys.maxsize
    if not values["use_distributed_sampler"]:
        raise option_contradicted(
            "samples are always shared out among the ranks, each of them once",
            where="Trainer(use_distributed_sampler=False)",
            fix="leave it out, and the DistributedSampler too",
        )
    return _for_trial(_overfitting(values))


def _for_trial(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a trial of a few batches without traces: ``fast_dev_run``."""
    requested = values["fast_dev_run"]
    if not requested:
        return values
    number = 1 if requested is True else count("fast_dev_run", requested)
    limits = ("limit_train_batches", "limit_val_batches", "limit_test_batches")
    return {
        **values,
        **dict.fromkeys((*limits, "limit_predict_batches"), number),
        "max_steps": number,
        "max_epochs": 1,
        "min_epochs": None,
        "min_steps": None,
        "val_check_interval": None,
        "check_val_every_n_epoch": 1,
        "num_sanity_val_steps": 0,
        "logger": False,
        "enable_checkpointing": False,
        "monitor": None,
        "patience": None,
    }


def _overfitting(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for the same few batches in every epoch: ``overfit_batches``."""
    limit = part("overfit_batches", values["overfit_batches"])
    if not limit:
        return values
    for name in ("limit_train_batches", "limit_val_batches", "limit_test_batches"):
        if values[name] is not None:
            raise option_contradicted(
                f"overfit_batches is given, and it is {name} too",
                where=f"Trainer(overfit_batches=..., {name}=...)",
                fix="Trainer(overfit_batches=...) alone",
            )
    return {**values, "limit_train_batches": limit, "limit_val_batches": limit}


def read_precision(precision: str | int | None) -> str:
    """Return Session's name of a precision, given in any of Lightning's spellings."""
    return PRECISIONS.get(str(precision), str(precision))


def read_accelerator(accelerator: str | None) -> str:
    """Return the requested type of device; empty if any is accepted."""
    name = str(accelerator)
    if name not in ACCELERATORS:
        near = closest(name, ACCELERATORS) or "auto"
        raise invalid(
            "accelerator",
            accelerator,
            "one of auto, cpu, gpu, cuda",
            fix=f'Trainer(accelerator="{near}")',
        )
    return ACCELERATORS[name]


def read_devices(devices: int | str | list[int] | None) -> int | None:
    """Return the requested number of ranks on a node; None if it follows the launcher.

    ``devices`` is a number, ``"auto"``, or numbers of devices in a list or a text with commas.
    Ranks take the first devices that they see, so the numbers must count up from 0; else UsageError
    is raised.
    """
    if devices is None or str(devices) in ("auto", "-1"):
        return None
    numbers = _numbers(devices)
    if numbers is not None and numbers == list(range(len(numbers))):
        return len(numbers)
    text = str(devices)
    if not text.isdecimal() or int(text) < 1:
        fix = "CUDA_VISIBLE_DEVICES=0,1 chooses GPUs; Trainer(devices=2) sets their number"
        raise invalid("devices", devices, 'a number of ranks or "auto"', fix=fix)
    return int(text)


def _numbers(devices: Any) -> list[int] | None:
    """Return the numbers of devices in a list or a text with commas; None for other values."""
    if isinstance(devices, str) and "," in devices:
        parts = [part.strip() for part in devices.split(",") if part.strip()]
        return [int(part) for part in parts] if all(map(str.isdecimal, parts)) else None
    is_list = isinstance(devices, list | tuple) and len(devices) > 0
    return list(devices) if is_list else None


def read_strategy(strategy: Any, *, sync_batchnorm: bool = False) -> Any:
    """Return Session's strategy, given in any of Lightning's spellings.

    Raises UsageError if the strategy starts processes, or cannot synchronise batch norm.
    """
    if strategy in SPAWNS:
        raise invalid(
            "strategy",
            strategy,
            "a strategy here: ranks are started by a launcher",
            fix='Trainer(strategy="ddp"); in a notebook: paceline.launch(train, nproc_per_node=2)',
        )
    is_name = isinstance(strategy, str | None)
    of_session = STRATEGIES.get(strategy or "auto", strategy) if is_name else strategy
    if not sync_batchnorm:
        return of_session
    if of_session == "ddp":
        return DDP(sync_batchnorm=True)
    if isinstance(of_session, DDP):
        return dataclasses.replace(of_session, sync_batchnorm=True)
    raise option_contradicted(
        f"batch norm is synchronised with ddp only, and strategy={strategy!r}",
        where="Trainer(sync_batchnorm=True)",
        fix='Trainer(strategy="ddp", sync_batchnorm=True), on GPUs',
    )


def for_manual(strategy: Any) -> Any:
    """Return the strategy for manual optimization, whose backwards leave parameters out."""
    if strategy == "ddp":
        return DDP(find_unused_parameters=True)
    if isinstance(strategy, DDP) and not strategy.static_graph:
        return dataclasses.replace(strategy, find_unused_parameters=True)
    raise option_contradicted(
        f"manual optimization needs gradients that ddp averages, and strategy={strategy!r}",
        where="automatic_optimization=False",
        fix='Trainer(strategy="ddp"), or write the loop with paceline.Session',
    )


def read_duration(value: str | timedelta | dict[str, int] | None, *, where: str) -> float | None:
    """Return a duration in seconds; None without one.

    It is ``"DD:HH:MM:SS"``, a timedelta, or its arguments in a dict; ``where`` names the class that
    got it, for the UsageError.
    """
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        try:
            return timedelta(**value).total_seconds()
        except TypeError:
            pass
    fields = str(value).split(":")
    if isinstance(value, str) and len(fields) == 4 and all(map(str.isdecimal, fields)):
        days, hours, minutes, seconds = map(int, fields)
        return timedelta(days, seconds, hours=hours, minutes=minutes).total_seconds()
    name = "max_time" if where == "Trainer" else "duration"
    raise invalid(
        name,
        value,
        'a duration, such as "00:12:00:00"',
        where=where,
        fix=f'{where}({name}="00:03:00:00") ends after three hours',
    )

"""Save checkpoints under names with metrics, and keep the best of them."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from paceline.errors import option_contradicted
from paceline.train.trainer.arguments import read_duration
from paceline.train.trainer.callback import Callback
from paceline.train.trainer.optimizers import never_logged
from paceline.train.trainer.options import count, invalid, one_of
from paceline.train.trainer.saving import SUFFIX

LAST = "last"
_FIELD = re.compile(r"\{([^{}:!]+)(:[^{}]*)?\}")


class ModelCheckpoint(Callback):
    """Saves checkpoints by epoch, step or time, under names with metrics, and keeps the best.

    A checkpoint is a folder that ``fit``, ``validate``, ``test`` and ``predict`` take as
    ``ckpt_path``, and ``load_from_checkpoint`` reads; with ``save_weights_only`` it is one file.
    The checkpoints of the run folder, from which a stopped training resumes, are saved beside them,
    and share their files where the file system can link them.

    Args:
        dirpath: Folder; None means ``checkpoints`` in the logger's folder, or
            ``model_checkpoints`` in the run folder.
        filename: Name with fields in braces: ``epoch``, ``step`` and logged metrics, with a format
            such as ``"{epoch:02d}-{val_loss:.2f}"``. None means ``"{epoch}-{step}"``.
        monitor: Metric by which the best are kept; None keeps the last.
        verbose: Whether to print each save.
        save_last: Whether to save ``last.ckpt`` too; ``"link"`` is the same as True.
        save_top_k: How many of the best to keep; -1 for all, 0 for none.
        save_on_exception: Must be False.
        save_weights_only: Whether to save only weights and hyperparameters.
        mode: ``"min"`` if smaller values of the metric are better, ``"max"`` if greater ones are.
        auto_insert_metric_name: Whether ``{val_loss}`` becomes ``val_loss=0.12``.
        every_n_train_steps: Save after so many optimizer steps.
        train_time_interval: Save after such a time, at the end of a batch.
        every_n_epochs: Save after so many epochs; 1 if the two before are not given.
        save_on_train_epoch_end: Whether to save after the epoch rather than after each validation.
            None means after the epoch if there is one validation in each.
        enable_version_counter: Whether a name that exists gets ``-v1``; otherwise it is replaced.

    Raises:
        UsageError: An argument is invalid or has no effect.

    Attributes:
        best_model_path: The best checkpoint so far, or the last without a metric; empty before.
        best_model_score: Its metric, a tensor; None without one.
        last_model_path: ``last.ckpt``; empty without one.
        best_k_models: Metrics of the kept checkpoints, by path.
        kth_best_model_path: The worst of them; empty as long as there are fewer.
        current_score: The metric of the last check; None before.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | str | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
    ) -> None:
        name = type(self).__name__
        self.dirpath = None if dirpath is None else os.fspath(dirpath)
        self.filename = filename or "{epoch}-{step}"
        self.monitor, self.verbose = monitor, verbose
        self.save_last, self.save_weights_only = bool(save_last), save_weights_only
        self.save_top_k = count("save_top_k", save_top_k, least=-1, where=name)
        self.mode = one_of("mode", mode, ("min", "max"), where=name)
        self.auto_insert_metric_name = auto_insert_metric_name
        self._every_s = read_duration(train_time_interval, where=name)
        self._every_n_steps = count(
            "every_n_train_steps", every_n_train_steps or 0, least=0, where=name
        )
        is_default = not self._every_n_steps and self._every_s is None and every_n_epochs is None
        self._every_n_epochs = 1 if is_default else every_n_epochs or 0
        count("every_n_epochs", self._every_n_epochs, least=0, where=name)
        self._after_epoch = save_on_train_epoch_end
        self._counts_versions = enable_version_counter
        self._check(save_on_exception, every_n_epochs)
        self.best_model_path = self.last_model_path = self.kth_best_model_path = ""
        self.best_model_score: torch.Tensor | None = None
        self.current_score: torch.Tensor | None = None
        self.best_k_models: dict[str, torch.Tensor] = {}
        self._saved_at_step = 0
        self._checked_s = 0.0

    def _check(self, save_on_exception: bool, every_n_epochs: int | None) -> None:
        name = type(self).__name__
        if save_on_exception:
            raise invalid(
                "save_on_exception",
                True,
                "possible here: after an exception ranks are not at the same step",
                where=name,
                fix="leave it out: the run folder holds the last checkpoint",
            )
        triggers = [self._every_n_steps, self._every_s, every_n_epochs]
        if sum(bool(trigger) for trigger in triggers) > 1:
            raise option_contradicted(
                "every_n_train_steps, train_time_interval and every_n_epochs exclude each other",
                where=name,
                fix=f"two callbacks: {name}(every_n_epochs=1), {name}(every_n_train_steps=100)",
            )
        if self.monitor is None and self.save_top_k not in (-1, 0, 1):
            raise option_contradicted(
                f"save_top_k={self.save_top_k} has no metric to compare by",
                where=name,
                fix=f'{name}(monitor="val_loss", save_top_k={self.save_top_k})',
            )

    # State

    @property
    def state_key(self) -> str:
        """Name of its state in a checkpoint."""
        parts = {
            "monitor": self.monitor,
            "mode": self.mode,
            "filename": self.filename,
            "every_n_train_steps": self._every_n_steps,
            "every_n_epochs": self._every_n_epochs,
            "train_time_interval": self._every_s,
        }
        return f"{type(self).__qualname__}{parts}"

    @property
    def every_n_epochs(self) -> int:
        """Epochs between checkpoints; 0 if it saves by step or time."""
        return self._every_n_epochs

    def state_dict(self) -> dict[str, Any]:
        """Return the paths and metrics so far."""
        best = self.best_model_score
        return {
            "best_model_path": self.best_model_path,
            "best_model_score": None if best is None else float(best),
            "last_model_path": self.last_model_path,
            "kth_best_model_path": self.kth_best_model_path,
            "best_k_models": {path: float(score) for path, score in self.best_k_models.items()},
            "saved_at_step": self._saved_at_step,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state."""
        best = state_dict["best_model_score"]
        self.best_model_path = state_dict["best_model_path"]
        self.best_model_score = None if best is None else torch.tensor(best)
        self.last_model_path = state_dict["last_model_path"]
        self.kth_best_model_path = state_dict["kth_best_model_path"]
        self.best_k_models = {
            path: torch.tensor(value) for path, value in state_dict["best_k_models"].items()
        }
        self._saved_at_step = state_dict["saved_at_step"]

    # When

    def setup(self, trainer: Any, task: Any, stage: str) -> None:
        """Decide on the folder, and when to save."""
        if self.dirpath is None:
            logger = trainer.logger
            is_named = getattr(logger, "log_dir", None) not in (None, trainer.default_root_dir)
            root = trainer.default_root_dir
            folder = "checkpoints" if is_named else "model_checkpoints"
            self.dirpath = os.path.join(trainer.log_dir if is_named else root, folder)
        if self._after_epoch is None:
            is_once = trainer.val_check_interval in (None, 1.0)
            self._after_epoch = is_once and trainer.check_val_every_n_epoch == 1

    def on_train_start(self, trainer: Any, task: Any) -> None:
        """Begin to measure the time between checkpoints."""
        self._checked_s = time.monotonic()

    def on_train_batch_end(
        self, trainer: Any, task: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save by step or by time."""
        if trainer.global_step == self._saved_at_step:
            return
        if self._every_n_steps:
            if trainer.global_step % self._every_n_steps == 0:
                self._save(trainer)
        elif self._every_s is not None and self._is_time(trainer):
            self._save(trainer)

    def _is_time(self, trainer: Any) -> bool:
        """Return whether the time has come, by rank 0's clock; a collective."""
        is_due = time.monotonic() - self._checked_s >= (self._every_s or 0.0)
        agreed = trainer.session.reduce(int(is_due and trainer.is_global_zero)) > 0
        if agreed:
            self._checked_s = time.monotonic()
        return bool(agreed)

    def on_validation_end(self, trainer: Any, task: Any) -> None:
        """Save after a validation, unless it saves after the epoch."""
        if not self._after_epoch:
            self._save_of_epoch(trainer)

    def on_train_epoch_end(self, trainer: Any, task: Any) -> None:
        """Save after the epoch."""
        if self._after_epoch:
            self._save_of_epoch(trainer)

    def _save_of_epoch(self, trainer: Any) -> None:
        is_due = self._every_n_epochs and (trainer.current_epoch + 1) % self._every_n_epochs == 0
        if trainer.state.fn == "fit" and not trainer.sanity_checking and is_due:
            self._save(trainer)

    # What

    def _save(self, trainer: Any) -> None:
        """Save where the metric is among the best."""
        if trainer.fast_dev_run or trainer.global_step == self._saved_at_step:
            return
        metrics = {**trainer.callback_metrics}
        metrics.setdefault("epoch", torch.tensor(trainer.current_epoch))
        metrics.setdefault("step", torch.tensor(trainer.global_step))
        self._saved_at_step = trainer.global_step
        if self.save_top_k != 0:
            self._save_best(trainer, metrics)
        if self.save_last:
            self._save_last(trainer, metrics)

    def _save_best(self, trainer: Any, metrics: Mapping[str, torch.Tensor]) -> None:
        if self.monitor is None:
            self._save_any(trainer, metrics)
            return
        score = metrics.get(self.monitor)
        if score is None:
            where = f"ModelCheckpoint(monitor={self.monitor!r})"
            raise never_logged(self.monitor, metrics, where=where)
        self.current_score = score
        if math.isnan(float(score)):
            score = torch.tensor(math.inf if self.mode == "min" else -math.inf)
        if not self._is_among_best(float(score)):
            self._say(trainer, f"{self.monitor} = {float(score):.4g} is not among the best")
            return
        dropped = self._worst() if self._is_full() else ""
        self.best_k_models.pop(dropped, None)
        path = self._path(trainer, self.format_checkpoint_name(metrics), dropped)
        self.best_k_models[path] = score
        pick = min if self.mode == "min" else max
        self.best_model_path = pick(self.best_k_models, key=self._score_of)
        self.best_model_score = self.best_k_models[self.best_model_path]
        self.kth_best_model_path = self._worst() if self._is_full() else ""
        self._write(trainer, path, dropped)
        self._say(trainer, f"{self.monitor} = {float(score):.4g}: saved {path}")

    def _save_any(self, trainer: Any, metrics: Mapping[str, torch.Tensor]) -> None:
        """Save without a metric; the one before goes unless all are kept."""
        dropped = self.best_model_path if self.save_top_k == 1 else ""
        self.best_model_path = self._path(trainer, self.format_checkpoint_name(metrics), dropped)
        self._write(trainer, self.best_model_path, dropped)
        self._say(trainer, f"saved {self.best_model_path}")

    def _save_last(self, trainer: Any, metrics: Mapping[str, torch.Tensor]) -> None:
        before = self.last_model_path
        path = self.format_checkpoint_name(metrics, filename=LAST)
        self.last_model_path = self._path(trainer, path, before)
        self._write(trainer, self.last_model_path, before)

    def _write(self, trainer: Any, path: str, dropped: str) -> None:
        trainer.save_checkpoint(path, weights_only=self.save_weights_only)
        in_folder = Path(dropped).parent == Path(path).parent
        if dropped and dropped != path and in_folder and dropped != trainer.ckpt_path:
            trainer.remove_checkpoint(dropped)

    def _is_among_best(self, score: float) -> bool:
        if not self._is_full():
            return True
        worst = float(self.best_k_models[self._worst()])
        return score < worst if self.mode == "min" else score > worst

    def _is_full(self) -> bool:
        return 0 <= self.save_top_k <= len(self.best_k_models)

    def _worst(self) -> str:
        pick = max if self.mode == "min" else min
        return pick(self.best_k_models, key=self._score_of)

    def _score_of(self, path: str) -> float:
        return float(self.best_k_models[path])

    def _path(self, trainer: Any, path: str, dropped: str) -> str:
        """Return a path that does not exist, as rank 0 sees it, or the one to be replaced."""
        if not self._counts_versions:
            return path
        pending = trainer.pending_checkpoints
        unused = trainer.session.once(lambda: _free(path, replaced=dropped, pending=pending))
        return str(unused)

    def _say(self, trainer: Any, line: str) -> None:
        if self.verbose:
            trainer.print(f"epoch {trainer.current_epoch}, step {trainer.global_step}: {line}")

    # Names

    def format_checkpoint_name(
        self,
        metrics: Mapping[str, Any],
        filename: str | None = None,
        ver: int | None = None,
        prefix: str | None = None,
    ) -> str:
        """Return the path of a checkpoint.

        Args:
            metrics: Values of the fields; a missing one counts as 0.
            filename: Name with fields; the argument ``filename`` if None.
            ver: Number for ``-v1``; None for none.
            prefix: Put before the name, with a ``-`` in between; None for none.
        """
        name = _filled(filename or self.filename, metrics, names=self.auto_insert_metric_name)
        parts = [prefix, name, None if ver is None else f"v{ver}"]
        whole = "-".join(part for part in parts if part is not None) + SUFFIX
        return os.path.join(self.dirpath, whole) if self.dirpath else whole


def _filled(template: str, metrics: Mapping[str, Any], *, names: bool) -> str:
    """Return a name with its fields filled in; with ``names``, as ``val_loss=0.12``."""

    def fill(match: re.Match[str]) -> str:
        name, spec = match.group(1), (match.group(2) or "")[1:]
        value = metrics.get(name, 0)
        number = value.item() if isinstance(value, torch.Tensor) else value
        is_whole = isinstance(number, float) and number.is_integer()
        if spec.endswith("d") or (not spec and is_whole and name in ("epoch", "step")):
            number = int(number)
        text = format(number, spec)
        return f"{name}={text}" if names else text

    return _FIELD.sub(fill, template)


def _free(path: str, *, replaced: str, pending: Sequence[str]) -> str:
    """Return a path under which nothing exists or waits to be saved, or the replaced one."""
    base, number, candidate = path.removesuffix(SUFFIX), 1, path
    while candidate != replaced and (os.path.exists(candidate) or candidate in pending):
        candidate = f"{base}-v{number}{SUFFIX}"
        number += 1
    return candidate

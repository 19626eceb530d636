"""Save the checkpoints of a fit: in the run folder, and where the script asks for them."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.errors import RunError, UsageError, option_contradicted
from paceline.rundir import owned
from paceline.rundir.committed import last_committed
from paceline.train.checkpoint import folder as checkpoint_folder
from paceline.train.trainer.callback import Callback
from paceline.train.trainer.hooks import has_own
from paceline.train.trainer.loading import DATA_HPARAMS, HPARAMS, STATE
from paceline.train.trainer.module import DataModule, Module
from paceline.train.trainer.options import TrainingPlan

if TYPE_CHECKING:
    from paceline.train.trainer.attributes import Attributes

SUFFIX = ".ckpt"
_FORMAT = {"pytorch-lightning_version": "2.0.0"}  # without it Lightning takes a file for older


class Saving:
    """Saves the checkpoints of a fit, with the state of callbacks and of what hooks add."""

    def __init__(
        self,
        trainer: Attributes,
        plan: TrainingPlan,
        *,
        task: Any,
        owners: Sequence[Any],
        callbacks: Sequence[Any],
    ) -> None:
        self._trainer, self._plan, self._task = trainer, plan, task
        self._owners, self._callbacks = owners, callbacks
        self._with_state = _by_key(callbacks)
        # whether an epoch is ending: a checkpoint is then saved when its schedulers have stepped,
        # so that a training run that resumes from it continues exactly
        self.defers = False
        self._deferred: list[Path] = []
        self._dropped: list[Path] = []

    @property
    def pending(self) -> list[str]:
        """Paths that wait for the end of the epoch."""
        return [str(path) for path in self._deferred]

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return the state of callbacks and data, and what hooks add."""
        return {
            "callbacks": {key: callback.state_dict() for key, callback in self._with_state.items()},
            "data": [owner.state_dict() for owner in self._data_with_state()],
            "checkpoint": self._described(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of callbacks and data, and call the hooks."""
        for key, value in state.get("callbacks", {}).items():
            if key in self._with_state:
                self._with_state[key].load_state_dict(value)
        for owner, value in zip(self._data_with_state(), state.get("data", []), strict=False):
            owner.load_state_dict(value)
        if "checkpoint" not in state:
            return
        checkpoint = dict(state["checkpoint"])
        if has_own(self._task, "on_load_checkpoint", base=Module):
            self._task.on_load_checkpoint(checkpoint)
        for callback in self._callbacks:
            if has_own(callback, "on_load_checkpoint", base=Callback):
                callback.on_load_checkpoint(self._trainer, self._task, checkpoint)

    def _described(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside weights, under Lightning's keys."""
        values = describe(self._trainer, self._owners)
        of_task = has_own(self._task, "on_save_checkpoint", base=Module)
        of_callbacks = [
            callback
            for callback in self._callbacks
            if has_own(callback, "on_save_checkpoint", base=Callback)
        ]
        if not of_task and not of_callbacks:
            return values
        module = self._task if isinstance(self._task, nn.Module) else None
        weights = {} if module is None else module.state_dict()
        checkpoint = {**values, STATE: dict(weights)}
        if of_task:
            self._task.on_save_checkpoint(checkpoint)
        for callback in of_callbacks:
            callback.on_save_checkpoint(self._trainer, self._task, checkpoint)
        saved = checkpoint.pop(STATE, None)
        # By identity: to compare the values of all weights would take as long as to save them.
        is_unchanged = saved is not None and saved.keys() == weights.keys()
        if is_unchanged and all(saved[key] is weights[key] for key in weights):
            return checkpoint
        raise _weights_changed()

    def _data_with_state(self) -> list[Any]:
        return [
            owner
            for owner in self._owners
            if not isinstance(owner, nn.Module) and has_own(owner, "state_dict", base=DataModule)
        ]

    # Checkpoints

    def save(self, path: Path, *, weights_only: bool) -> None:
        """Save to a path; a collective.

        With ``weights_only`` it is a file of only weights and hyperparameters, else a new folder.
        """
        if weights_only:
            write_weights(self._trainer, self._task, self._owners, path)
        elif self.defers:
            self._deferred.append(path)
        else:
            self._write(None, [path], wait=True)

    def drop(self, path: Path) -> None:
        """Delete a checkpoint, after those that wait for the end of the epoch; a collective."""
        if self.defers:
            self._dropped.append(path)
        else:
            self._trainer.session.once(lambda: remove(path))

    def end_epoch(self, metric: float | None, *, wait: bool) -> None:
        """Save the epoch's checkpoint, and those that were asked for while it ended.

        The monitored metric is None without one. ``wait`` returns only after the commit.
        """
        paths, self._deferred, self.defers = self._deferred, [], False
        if self._plan.enable_checkpointing or paths:
            self._write(metric, paths, wait=wait or bool(paths))
        dropped, self._dropped = self._dropped, []
        for path in dropped:
            self.drop(path)

    def _write(self, metric: float | None, paths: Sequence[Path], *, wait: bool) -> None:
        session = self._trainer.session
        session.save(metric, mode=self._plan.mode, keep_best=self._plan.save_top_k, wait=wait)
        if paths:
            session.once(lambda: _copy_last(session.run_dir.checkpoints, paths))


def describe(trainer: Attributes, owners: Sequence[Any]) -> dict[str, Any]:
    """Return epoch, step and hyperparameters of a fit, under Lightning's keys."""
    values: dict[str, Any] = {"epoch": trainer.current_epoch, "global_step": trainer.global_step}
    for owner in owners:
        key = HPARAMS if isinstance(owner, nn.Module) else DATA_HPARAMS
        hparams = getattr(owner, "hparams", None)
        if isinstance(hparams, dict) and hparams:
            values[key] = dict(hparams)
    return values


def write_weights(trainer: Attributes, task: Any, owners: Sequence[Any], path: Path) -> None:
    """Write weights and hyperparameters to one file, of the form of Lightning's; a collective."""
    if not isinstance(task, nn.Module):
        raise option_contradicted(
            f"{type(task).__name__} is not a module, and weights_only saves its state_dict",
            where="trainer.save_checkpoint(..., weights_only=True)",
            fix=f"class {type(task).__name__}(paceline.Module), or torch.save of its parts",
        )
    weights = {key: _whole(value) for key, value in task.state_dict().items()}
    values = {**_FORMAT, **describe(trainer, owners), STATE: weights}
    trainer.session.once(lambda: _write_file(values, path))


def _whole(value: Any) -> Any:
    """Return an entry of a state_dict; a sharded tensor as a whole, which is a collective."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _write_file(values: dict[str, Any], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with owned.whole(path) as file:
            torch.save(values, file)
    except OSError as error:
        raise _not_written(path, error) from error


def _copy_last(checkpoints: Path, paths: Sequence[Path]) -> None:
    """Copy the latest checkpoint, which takes no space where files can be linked."""
    last = last_committed(checkpoints)
    assert last is not None  # it was just committed
    for path in paths:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            temporary.mkdir(parents=True)
            for file in last.path.iterdir():
                if file.is_file():
                    _link(file, temporary / file.name)
            remove(path)
            temporary.rename(path)
        except OSError as error:
            checkpoint_folder.remove(temporary)
            raise _not_written(path, error) from error


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def remove(path: Path) -> None:
    """Delete a checkpoint, a folder or a file; nothing if there is none.

    A folder that is not a checkpoint stays.
    """
    if path.is_dir() and not path.is_symlink():
        checkpoint_folder.remove(path)
    else:
        owned.delete(path)


def _by_key(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return the callbacks with state by the name of their state; refuse two of the same name."""
    by_key: dict[str, Any] = {}
    for callback in callbacks:
        if not has_own(callback, "state_dict", base=Callback):
            continue
        key = getattr(callback, "state_key", type(callback).__qualname__)
        if key in by_key:
            raise option_contradicted(
                f"two callbacks have the state_key {key!r}, and a checkpoint would hold the state"
                " of one only",
                where="Trainer(callbacks=...)",
                fix="a property state_key with another text for each of them",
            )
        by_key[key] = callback
    return by_key


def _weights_changed() -> UsageError:
    return option_contradicted(
        'on_save_checkpoint changed checkpoint["state_dict"], and weights are saved by all'
        " ranks beside it",
        where="on_save_checkpoint",
        why="the change would be lost",
        fix="override state_dict() of the module, or register buffers with persistent=False",
    )


def _not_written(path: Path, error: OSError) -> RunError:
    return RunError.of(
        "folder-not-writable",
        f"{path} cannot be written",
        where=str(path.parent),
        evidence=(str(error),),
        fix="a path that this user may write to",
    )

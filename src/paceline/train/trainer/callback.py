"""The hooks of a training run: the base class of callbacks, and the names of all hooks."""

from __future__ import annotations

from typing import Any


class Callback:
    """Base class of callbacks; deriving from it is not needed.

    Any object with some of these methods is a callback. A task may have the same ``on_`` methods
    without the first two arguments; they are called before the callbacks' methods. Methods are
    looked up once, when ``fit``, ``validate``, ``test`` or ``predict`` begins, and a missing one
    costs nothing.

    The state of a callback (``state_dict`` and ``load_state_dict``) is part of every checkpoint.
    """

    @property
    def state_key(self) -> str:
        """Name of its state in a checkpoint; callbacks of one class need different ones."""
        return type(self).__qualname__

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores; it must be the same on all ranks."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state."""

    def setup(self, trainer: Any, task: Any, stage: str) -> None:
        """Called at the beginning; ``stage`` is "fit", "validate", "test" or "predict"."""

    def teardown(self, trainer: Any, task: Any, stage: str) -> None:
        """Called at the end, also after an exception."""

    def on_exception(self, trainer: Any, task: Any, exception: BaseException) -> None:
        """Called on the rank that raises, before the exception leaves the Trainer."""

    def on_save_checkpoint(self, trainer: Any, task: Any, checkpoint: dict[str, Any]) -> None:
        """Called with what is saved beside weights and optimizers; add picklable values to it."""

    def on_load_checkpoint(self, trainer: Any, task: Any, checkpoint: dict[str, Any]) -> None:
        """Called with what ``on_save_checkpoint`` saved, after the weights were loaded."""

    def on_fit_start(self, trainer: Any, task: Any) -> None:
        """Called before a checkpoint is restored."""

    def on_fit_end(self, trainer: Any, task: Any) -> None:
        """Called at the end of ``fit``."""

    def on_sanity_check_start(self, trainer: Any, task: Any) -> None:
        """Called before the validation with ``num_sanity_val_steps`` batches."""

    def on_sanity_check_end(self, trainer: Any, task: Any) -> None:
        """Called after the validation with ``num_sanity_val_steps`` batches."""

    def on_train_start(self, trainer: Any, task: Any) -> None:
        """Called before the first epoch of this process, after a checkpoint was restored."""

    def on_train_end(self, trainer: Any, task: Any) -> None:
        """Called after the last epoch."""

    def on_train_epoch_start(self, trainer: Any, task: Any) -> None:
        """Called before the first batch of an epoch."""

    def on_train_epoch_end(self, trainer: Any, task: Any) -> None:
        """Called after an epoch and its validation; numbers logged here belong to it."""

    def on_train_batch_start(self, trainer: Any, task: Any, batch: Any, batch_idx: int) -> None:
        """Called before each batch."""

    def on_train_batch_end(
        self, trainer: Any, task: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after each batch; ``outputs`` is the result of ``training_step``."""

    def on_before_backward(self, trainer: Any, task: Any, loss: Any) -> None:
        """Called before each backward."""

    def on_after_backward(self, trainer: Any, task: Any) -> None:
        """Called after each backward; gradients are unscaled, and reduced if the group ends."""

    def on_before_optimizer_step(self, trainer: Any, task: Any, optimizer: Any) -> None:
        """Called before each step of each optimizer, before gradients are clipped."""

    def on_before_zero_grad(self, trainer: Any, task: Any, optimizer: Any) -> None:
        """Called before the gradients of an optimizer are cleared, which is after its step."""

    def on_validation_start(self, trainer: Any, task: Any) -> None:
        """Called before a validation."""

    def on_validation_epoch_start(self, trainer: Any, task: Any) -> None:
        """Called before a validation, after ``on_validation_start``."""

    def on_validation_batch_start(
        self, trainer: Any, task: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before each batch of a validation in which this rank has a row."""

    def on_validation_batch_end(
        self,
        trainer: Any,
        task: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called after each batch of a validation in which this rank has a row."""

    def on_validation_epoch_end(self, trainer: Any, task: Any) -> None:
        """Called after the last batch of a validation; numbers logged here belong to it."""

    def on_validation_end(self, trainer: Any, task: Any) -> None:
        """Called after a validation, when its means are in ``trainer.callback_metrics``."""

    def on_test_start(self, trainer: Any, task: Any) -> None:
        """Called before a test."""

    def on_test_epoch_start(self, trainer: Any, task: Any) -> None:
        """Called before a test, after ``on_test_start``."""

    def on_test_batch_start(
        self, trainer: Any, task: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before each batch of a test in which this rank has a row."""

    def on_test_batch_end(
        self,
        trainer: Any,
        task: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called after each batch of a test in which this rank has a row."""

    def on_test_epoch_end(self, trainer: Any, task: Any) -> None:
        """Called after the last batch of a test; numbers logged here belong to it."""

    def on_test_end(self, trainer: Any, task: Any) -> None:
        """Called after a test, when its means are in ``trainer.callback_metrics``."""

    def on_predict_start(self, trainer: Any, task: Any) -> None:
        """Called before a prediction."""

    def on_predict_epoch_start(self, trainer: Any, task: Any) -> None:
        """Called before a prediction, after ``on_predict_start``."""

    def on_predict_batch_start(
        self, trainer: Any, task: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before each batch of a prediction in which this rank has a row."""

    def on_predict_batch_end(
        self,
        trainer: Any,
        task: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called after each batch; ``outputs`` is this rank's share of the predictions."""

    def on_predict_epoch_end(self, trainer: Any, task: Any) -> None:
        """Called after the last batch of a prediction."""

    def on_predict_end(self, trainer: Any, task: Any) -> None:
        """Called after a prediction."""


# Hooks of a task alone.
OF_TASK = (
    "on_after_batch_transfer",
    "on_before_batch_transfer",
    "on_predict_model_eval",
    "on_test_model_eval",
    "on_test_model_train",
    "on_validation_model_eval",
    "on_validation_model_train",
    "on_validation_model_zero_grad",
)
HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
STAGE_HOOKS = ("setup", "teardown")  # with the stage as their last argument

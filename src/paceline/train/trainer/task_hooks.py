"""The hooks of a module with nothing in them, so that overriding methods may call ``super()``."""

from __future__ import annotations

from typing import Any

from torch import nn

from paceline.train.trainer.transfer import BatchHooks


class TaskHooks(BatchHooks, nn.Module):
    """A module whose hooks do nothing; ``paceline.trainer.Callback`` says when each is called."""

    def setup(self, stage: str) -> None:
        """Called on every rank before the loaders are made, with the same random numbers."""

    def teardown(self, stage: str) -> None:
        """Called at the end of ``fit``, ``validate``, ``test`` or ``predict``."""

    def prepare_data(self) -> None:
        """Called once on each node: download and convert, and store nothing in ``self``."""

    def configure_model(self) -> None:
        """Called before the optimizers are made, in each ``fit``: make layers that are missing."""

    def configure_callbacks(self) -> Any:
        """Return callbacks, or one of them, that take part beside the Trainer's."""
        return []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called with what is saved beside weights and optimizers; add picklable values to it."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called with what ``on_save_checkpoint`` saved, after the weights were loaded."""

    def on_fit_start(self) -> None:
        """Called before a checkpoint is restored."""

    def on_fit_end(self) -> None:
        """Called at the end of ``fit``."""

    def on_train_start(self) -> None:
        """Called before the first epoch of this process."""

    def on_train_end(self) -> None:
        """Called after the last epoch."""

    def on_train_epoch_start(self) -> None:
        """Called before the first batch of an epoch."""

    def on_train_epoch_end(self) -> None:
        """Called after an epoch and its validation."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Called before each batch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after each batch."""

    def on_before_backward(self, loss: Any) -> None:
        """Called before each backward."""

    def on_after_backward(self) -> None:
        """Called after each backward."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Called before each step of each optimizer."""

    def on_before_zero_grad(self, optimizer: Any) -> None:
        """Called before the gradients of an optimizer are cleared."""

    def on_validation_model_eval(self) -> None:
        """Called when a validation switches modules to evaluation mode, which it does itself."""

    def on_validation_model_train(self) -> None:
        """Called when modules get the modes back that they had before a validation."""

    def on_validation_start(self) -> None:
        """Called before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Called before a validation, after ``on_validation_start``."""

    def on_validation_batch_start(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before each batch of a validation."""

    def on_validation_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after each batch of a validation."""

    def on_validation_epoch_end(self) -> None:
        """Called after the last batch of a validation."""

    def on_validation_end(self) -> None:
        """Called after a validation."""

    def on_test_model_eval(self) -> None:
        """Called when a test switches modules to evaluation mode."""

    def on_test_model_train(self) -> None:
        """Called when modules get the modes back that they had before a test."""

    def on_test_start(self) -> None:
        """Called before a test."""

    def on_test_epoch_start(self) -> None:
        """Called before a test, after ``on_test_start``."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before each batch of a test."""

    def on_test_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after each batch of a test."""

    def on_test_epoch_end(self) -> None:
        """Called after the last batch of a test."""

    def on_test_end(self) -> None:
        """Called after a test."""

    def on_predict_model_eval(self) -> None:
        """Called when a prediction switches modules to evaluation mode."""

    def on_predict_start(self) -> None:
        """Called before a prediction."""

    def on_predict_epoch_start(self) -> None:
        """Called before a prediction, after ``on_predict_start``."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before each batch of a prediction."""

    def on_predict_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after each batch of a prediction."""

    def on_predict_epoch_end(self) -> None:
        """Called after the last batch of a prediction."""

    def on_predict_end(self) -> None:
        """Called after a prediction."""

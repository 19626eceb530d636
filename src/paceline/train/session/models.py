"""The part of a Session that acts on models as a whole: weights of others, averages, exports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from paceline.train.checkpoint import Checkpoints
from paceline.train.model import activations
from paceline.train.session import exporting, weights
from paceline.train.session.printing import MainPrinter
from paceline.train.session.progress import Progress
from paceline.train.session.ranks import SessionRanks


class SessionModels(SessionRanks):
    """The models of a session."""

    _checkpoints: Checkpoints
    _printer: MainPrinter
    _progress: Progress

    def recompute(
        self, model: nn.Module, layers: tuple[type[nn.Module], ...] | None = None
    ) -> None:
        """Recompute activations in backward: less memory, about a third more time.

        Args:
            model: The user's module, or the result of ``setup``.
            layers: Classes of these layers; None means the entries of every ``nn.ModuleList``.

        Raises:
            UsageError: The model has no such layers.
        """
        count = activations.recompute(self.unwrap(model), layers)
        self._printer.say(f"{count} layers of {type(model).__name__} recompute their activations")

    def average(self, model: nn.Module, decay: float) -> AveragedModel:
        """Return a moving average of a model's parameters, which each optimizer step updates.

        It is the same on any number of ranks, and part of checkpoints. Evaluate with it instead of
        the model: ``average(x)``; ``average.module`` is the module with the averaged parameters.
        Buffers are those of the model.

        Args:
            model: The result of ``setup``, which got the model's optimizer too.
            decay: Weight of the average so far, such as 0.999; the first step replaces it.

        Raises:
            UsageError: ``decay`` is not between 0 and 1, the model or its optimizer was not set up,
                or ranks do not hold the whole model (fsdp).
        """
        averaged = self._gradients.average(self.unwrap(model), decay)
        self._progress.register_average(averaged)
        return averaged

    def load(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any],
        model: nn.Module | None = None,
        *,
        prefix: str | None = None,
        strict: bool = True,
        trust: bool = False,
    ) -> None:
        """Load a model's weights from a file of torch, Lightning or Hugging Face, on all ranks.

        Only weights, unlike ``restore``. Keys may have a prefix, such as ``model.`` in a Lightning
        checkpoint, or those of wrappers; a line says how they were changed.

        Args:
            source: A ``.safetensors`` file, one of ``torch.save``, a folder of ``save_pretrained``,
                a checkpoint of paceline, or a dict of tensors.
            model: The result of ``setup``; None means the only one.
            prefix: What the right keys begin with, if several fit; None to find out.
            strict: Whether every key must be on both sides. Otherwise what fits is loaded, and a
                line says what is left.
            trust: Whether the file may hold objects of any class, which can run code.

        Raises:
            UsageError: The source holds no weights, they are of another model, or several fit.
        """
        self._gradients.begin_collective()
        module = self._gradients.module_of(None if model is None else self.unwrap(model))
        state, line = self._checkpoints.agree(
            lambda: weights.read(source, module, prefix=prefix, strict=strict, trust=trust)
        )
        self._gradients.load(module, state)
        self._printer.say(line)

    def export(self, model: nn.Module, folder: str | os.PathLike[str]) -> None:
        """Write a model with ``save_pretrained``, once for all ranks; also a sharded one.

        Args:
            model: The result of ``setup``, or an average of it.
            folder: Where to write; on a shared disk, or read it on rank 0's node.

        Raises:
            UsageError: The model has no ``save_pretrained``.
            SetupError: The folder cannot be written.
        """
        self._gradients.begin_collective()
        module = exporting.inside(model)
        state = exporting.whole_state(module)
        self._checkpoints.ask_main(lambda: exporting.save(module, state, folder))

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the user's module inside one that ``setup`` returned."""
        is_parallel = isinstance(model, DistributedDataParallel)
        return cast(nn.Module, model.module) if is_parallel else model

"""The part of a Session that acts on models as a whole: weights of others, averages, exports."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from paceline.errors import SetupError, UsageError, option_contradicted, option_invalid
from paceline.train.checkpoint import Checkpoints
from paceline.train.model import blocks
from paceline.train.model.sharded import is_dtensor
from paceline.train.session import weights
from paceline.train.session.progress import SessionProgress
from paceline.train.session.ranks import MainPrinter, SessionRanks


class SessionModels(SessionRanks):
    """The models of a session."""

    _checkpoints: Checkpoints
    _printer: MainPrinter
    _progress: SessionProgress

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
        count = blocks.recompute(self.unwrap(model), layers)
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
        module = inside(model)
        state = whole_state(module)
        self._checkpoints.ask_main(lambda: save(module, state, folder))

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the user's module inside one that ``setup`` returned."""
        is_parallel = isinstance(model, DistributedDataParallel)
        return cast(nn.Module, model.module) if is_parallel else model


_WHERE = "session.export(model, FOLDER)"


def inside(model: nn.Module) -> Any:
    """Return the user's module inside wrappers: DDP, ``torch.compile``, a moving average."""
    module: Any = model
    while not hasattr(module, "save_pretrained"):
        inner = getattr(module, "_orig_mod", getattr(module, "module", None))
        if not isinstance(inner, nn.Module):
            raise _cannot(model)
        module = inner
    return module


def whole_state(module: nn.Module) -> dict[str, Any] | None:
    """Return the whole state of a sharded module, on rank 0; None for one that is not sharded."""
    if not any(map(is_dtensor, module.parameters())):
        return None
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(module, options=options)
    return state


def save(module: Any, state: dict[str, Any] | None, folder: str | os.PathLike[str]) -> None:
    """Call ``save_pretrained``; ``state`` is the module's whole one, if it is sharded.

    Raises UsageError if the module is sharded, and its method takes no state, SetupError if the
    folder cannot be written.
    """
    options: dict[str, Any] = {}
    if state is not None:
        if "state_dict" not in inspect.signature(module.save_pretrained).parameters:
            raise _takes_no_state(module)
        options["state_dict"] = state
    try:
        os.makedirs(folder, exist_ok=True)
        with torch.no_grad():
            module.save_pretrained(os.fspath(folder), **options)
    except OSError as error:
        raise SetupError.of(
            "folder-not-writable",
            f"{os.fspath(folder)} cannot be written",
            where=_WHERE,
            evidence=(str(error),),
            fix="a folder that this user may write",
        ) from error


def _cannot(model: nn.Module) -> UsageError:
    return option_invalid(
        f"{type(model).__name__} has no save_pretrained",
        where=_WHERE,
        fix="paceline checkpoint export CHECKPOINT model.safetensors",
    )


def _takes_no_state(module: nn.Module) -> UsageError:
    return option_contradicted(
        f"save_pretrained of {type(module).__name__} takes no state_dict, and the module holds"
        " this rank's shards only",
        where=_WHERE,
        fix='Session(strategy="ddp"), or paceline checkpoint export CHECKPOINT FILE',
    )

"""Where the proof of a loss takes part in a script: in its loops, backwards and steps."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from paceline.launch.probe import trial_end
from paceline.launch.probe.loader_maker import Makers
from paceline.launch.probe.loader_trials import ServedLoop
from paceline.launch.probe.loss_proof import LossProof
from paceline.rundir import proofs
from paceline.rundir.proofs import Proof
from paceline.train import runtime
from paceline.train.data import ArrayBatches, Loader
from paceline.train.session import Gradients

# Loops that know the length of their loader must not end within the passes.
_LEAST_LENGTH = 16


def install(file: Path, slot: memoryview[int], is_users: Callable[[str], bool]) -> None:
    """Prove the loss of this rank's script.

    Args:
        file: Takes what is found. If it exists, float64 has failed.
        slot: The rank's counters.
        is_users: Returns whether a file is the user's.
    """
    makers = Makers(is_users)

    def end(proof: Proof) -> NoReturn:
        proofs.write(file, proof)
        trial_end.leave(slot)

    proof = LossProof(
        is_double=proofs.read_at(file) is None,
        place=lambda: makers.line_of(sys._getframe(1)),
        note=functools.partial(proofs.write, file),
        end=end,
    )
    watch(proof, Patches())


class Patches:
    """Attributes that were replaced, to set them back."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute by what ``make`` returns for it."""
        original = getattr(owner, name)
        self._originals.append((owner, name, original))
        setattr(owner, name, functools.wraps(original)(make(original)))

    def undo(self) -> None:
        """Set all attributes back, the last one first."""
        while self._originals:
            setattr(*self._originals.pop())


def watch(proof: LossProof, patches: Patches) -> None:
    """Let a proof serve the loops of this process, and see its backwards and steps."""
    for kind in (DataLoader, Loader, ArrayBatches):
        patches.replace(kind, "__iter__", functools.partial(_served, proof))
    for kind in (DataLoader, Loader):
        patches.replace(kind, "__len__", _at_least)
    patches.replace(torch.autograd, "backward", functools.partial(_seen, proof))
    patches.replace(Optimizer, "__init__", functools.partial(_without_steps, proof, patches))
    patches.replace(torch.autocast, "__enter__", functools.partial(_switched_off, proof))
    patches.replace(torch, "compile", _eager)
    patches.replace(functional, "batch_norm", functools.partial(_with_running_statistics, proof))
    patches.replace(Gradients, "backward", functools.partial(_weighted, proof))
    patches.replace(runtime, "all_rows", functools.partial(_noted, proof))


def _served(proof: LossProof, iterate: Any) -> Any:
    return lambda loader: ServedLoop(loader, functools.partial(iterate, loader), proof)


def _at_least(length: Any) -> Any:
    return lambda loader: max(_LEAST_LENGTH, length(loader))


def _seen(proof: LossProof, backward: Any) -> Any:
    return functools.partial(proof.backward, backward)


def _without_steps(proof: LossProof, patches: Patches, construct: Any) -> Any:
    """Make an optimizer's steps compute their closure, and nothing else."""
    replaced = set()

    def constructed(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        construct(optimizer, *args, **kwargs)
        proof.optimizers.add(optimizer)
        kind = type(optimizer)
        if kind.step not in replaced:
            patches.replace(kind, "step", _no_step)
            replaced.add(kind.step)

    return constructed


def _no_step(_step: Any) -> Any:
    def stepped(_optimizer: Any, closure: Any = None, **_: Any) -> Any:
        with torch.enable_grad():
            return closure() if callable(closure) else None

    return stepped


def _switched_off(proof: LossProof, enter: Any) -> Any:
    """Make autocast convert nothing where float64 is computed, and note it elsewhere."""

    def entered(context: Any) -> Any:
        entered_context = enter(context)
        if proof.random.is_double:
            torch.set_autocast_enabled(context.device, False)
        elif torch.is_autocast_enabled(context.device):
            proof.random.coarsest = torch.bfloat16
        return entered_context

    return entered


def _eager(compile_: Any) -> Any:
    """Make what is compiled run as it was written: a compiled step hides its operations."""

    def compiled(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.set_stance("force_eager")
        return compile_(*args, **kwargs)

    return compiled


def _with_running_statistics(proof: LossProof, batch_norm: Any) -> Any:
    """Make batch norm use its running statistics in the passes; without any, none."""

    signature = inspect.signature(batch_norm)

    def normalized(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if given.get("training") and proof.current is not None:
            given["training"], num_channels = False, given["input"].shape[1]
            if given["running_mean"] is None:
                given["running_mean"] = given["input"].new_zeros(num_channels)
                given["running_var"] = given["input"].new_ones(num_channels)
        return batch_norm(**given)

    return normalized


def _weighted(proof: LossProof, backward: Any) -> Any:
    """Note the weight of a Session's loss, which counts alone in a pass."""

    def weighted(gradients: Gradients, loss: Any, weight: float | None) -> Any:
        proof.has_session, proof.weight = True, weight
        if proof.current is not None:
            gradients.drop_group()
        return backward(gradients, loss, weight)

    return weighted


def _noted(proof: LossProof, all_rows: Any) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        proof.random.collective = f"session.gather in {proof.random.last_place}"
        return all_rows(*args, **kwargs)

    return noted

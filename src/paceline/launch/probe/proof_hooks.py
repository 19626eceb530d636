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


def install(
    file: Path,  # takes what is found; if it exists, float64 has failed
    slot: memoryview[int],
    is_users: Callable[[str], bool],
) -> None:
    """Prove the loss of this rank's script."""
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
    """Functions that were replaced, to set them back."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Replace a function by one that gets it, and then its arguments."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        self._originals.append((owner, name, original))
        setattr(owner, name, replaced)

    def undo(self) -> None:
        """Set all functions back, the last one first."""
        while self._originals:
            setattr(*self._originals.pop())


def watch(proof: LossProof, patches: Patches) -> None:
    """Let a proof serve the loops of this process, and see its backwards and steps."""
    hooks = _Hooks(proof, patches)
    for kind in (DataLoader, Loader, ArrayBatches):
        patches.replace(kind, "__iter__", hooks.iterate)
    for kind in (DataLoader, Loader):
        patches.replace(kind, "__len__", hooks.length)
    patches.replace(torch.autograd, "backward", proof.backward)
    patches.replace(Optimizer, "__init__", hooks.construct)
    patches.replace(torch.autocast, "__enter__", hooks.enter_autocast)
    patches.replace(torch, "compile", hooks.compile)
    patches.replace(functional, "batch_norm", hooks.batch_norm)
    patches.replace(Gradients, "backward", hooks.session_backward)
    patches.replace(runtime, "all_rows", hooks.all_rows)


class _Hooks:
    """What functions do instead, each of which is the first argument."""

    def __init__(self, proof: LossProof, patches: Patches) -> None:
        self._proof, self._patches = proof, patches
        self._kinds: set[type] = set()  # of optimizers, whose step was replaced

    def iterate(self, original: Any, loader: Any) -> Any:
        return ServedLoop(loader, functools.partial(original, loader), self._proof)

    def length(self, original: Any, loader: Any) -> Any:
        return max(_LEAST_LENGTH, original(loader))

    def construct(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._proof.optimizers.add(optimizer)
        kind = next(kind for kind in type(optimizer).__mro__ if "step" in vars(kind))
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._patches.replace(kind, "step", self.step)

    def step(self, _: Any, optimizer: Any, closure: Any = None, **others: Any) -> Any:
        """Compute the closure, and take no step."""
        with torch.enable_grad():
            return closure() if callable(closure) else None

    def enter_autocast(self, original: Any, context: Any) -> Any:
        """Convert nothing where float64 is computed, and note it elsewhere."""
        entered = original(context)
        if self._proof.random.is_double:
            torch.set_autocast_enabled(context.device, False)
        elif torch.is_autocast_enabled(context.device):
            self._proof.random.coarsest = torch.bfloat16
        return entered

    def compile(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Run what is compiled as it was written: a compiled step hides its operations."""
        torch.compiler.set_stance("force_eager")
        return original(*args, **kwargs)

    def batch_norm(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Use the running statistics in the passes; without any, none."""
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        if given.get("training") and self._proof.current is not None:
            given["training"], rows = False, given["input"]
            if given["running_mean"] is None:
                given["running_mean"] = rows.new_zeros(rows.shape[1])
                given["running_var"] = rows.new_ones(rows.shape[1])
        return original(**given)

    def session_backward(
        self, original: Any, gradients: Gradients, loss: Any, weight: float | None
    ) -> Any:
        """Note the weight of a Session's loss, which counts alone in a pass."""
        self._proof.has_session, self._proof.weight = True, weight
        if self._proof.current is not None:
            gradients.drop_group()
        return original(gradients, loss, weight)

    def all_rows(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._proof.random.collective = f"session.gather in {self._proof.random.last_place}"
        return original(*args, **kwargs)

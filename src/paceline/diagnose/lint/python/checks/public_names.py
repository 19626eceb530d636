"""Public attributes of well-known classes, and names that were removed, from ``public_names.txt``.

Lightning's Trainer is in ``signatures/lightning.txt``. Names of older releases are listed as
removed, so that the finding for an older script names the release instead of a misspelling.
"""

from __future__ import annotations

from pathlib import Path

from paceline.signatures.lightning_names import REFUSED, tables

_NAMES = tables(Path(__file__).with_suffix(".txt"))
_TRAINER = tables()["trainer"]


def _instead(names: str) -> dict[str, str]:
    """Return what replaces each name of a section."""
    return {name: what.instead for name, what in (tables() | _NAMES)[names].items()}


FABRIC = frozenset(_NAMES["Fabric"])
ACCELERATOR = frozenset(_NAMES["Accelerator"])
SESSION = frozenset(_NAMES["Session"])
TRAINER = frozenset(_TRAINER)
PACELINE_TRAINER = frozenset(_NAMES["paceline.Trainer, beside what Lightning has"]) | {
    name for name, what in _TRAINER.items() if what.kind != REFUSED
}
# Methods of Hugging Face's PreTrainedModel that no nn.Module, nor LightningModule has.
PRETRAINED_ONLY = frozenset(_NAMES["PreTrainedModel alone"])
REMOVED_TRAINER = _instead("removed attributes")
REMOVED_ACCELERATOR_ARGUMENTS = _instead("removed arguments of Accelerator")
GONE_FROM_TORCH = _instead("removed from torch")

"""The kinds of projects that ``paceline new`` writes, each from one of the examples. Pure.

A further kind is one more entry of ``KINDS``. Its script must name itself ``examples/SCRIPT`` in
its docstring, promise "At least N %" there, and print "accuracy N %".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of project."""

    script: str  # file of ``examples/`` that becomes ``train.py``
    trains_with: str  # what the script trains with, as it is called in a sentence
    packages: tuple[str, ...]  # distributions that it imports besides paceline and torch
    # further files of ``examples/`` that the script imports; they keep their names
    parts: tuple[str, ...] = ()


_DIGITS = "scikit-learn"

KINDS: Mapping[str, Kind] = {
    "session": Kind("digits.py", "paceline's Session", (_DIGITS,)),
    "trainer": Kind("digits_trainer.py", "paceline's Trainer", (_DIGITS,)),
    "ddp": Kind("digits_ddp.py", "PyTorch's DistributedDataParallel", (_DIGITS,)),
    "fabric": Kind("digits_fabric.py", "Lightning Fabric", ("lightning", _DIGITS)),
    "lightning": Kind("digits_lightning.py", "Lightning's Trainer", ("lightning", _DIGITS)),
    "accelerate": Kind("digits_accelerate.py", "Hugging Face Accelerate", ("accelerate", _DIGITS)),
    "transformers": Kind(
        "text_transformers.py", "the Trainer of transformers", ("transformers", "accelerate")
    ),
}


def promised_percent(script: str) -> int:
    """Return the accuracy that an example promises in its docstring, in percent.

    Raises:
        ValueError: The docstring promises none.
    """
    promise = re.search(r"^At least (\d+) %", script, re.MULTILINE)
    if promise is None:
        raise ValueError("the example promises no accuracy")
    return int(promise[1])

"""The examples: what each needs to be installed, and the accuracy that its header promises."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
_RESULT = re.compile(r"(\d+) samples, accuracy (\S+) %")


@dataclass(frozen=True)
class Example:
    """A program of ``examples/`` that prints how many samples it has evaluated, and its
    accuracy.
    """

    script: str  # its file's name
    package: str  # the module without which it does not run

    @property
    def path(self) -> Path:
        return FOLDER / self.script

    @property
    def promised_percent(self) -> float:
        """The accuracy of its header."""
        return float(re.search(r"At least (\d+) %", self.path.read_text())[1])

    def skip_without_package(self) -> None:
        if importlib.util.find_spec(self.package) is None:
            pytest.skip(f"{self.package} is not installed")

    def check(self, printed: str) -> None:
        """Check that it was evaluated on the same samples as by one rank, and the last accuracy."""
        results = _RESULT.findall(printed)
        assert results, printed
        samples, percent = results[-1]
        assert float(percent) >= self.promised_percent
        if self.script.startswith("digits"):
            assert int(samples) == 360  # each fifth of 1,797, on any number of ranks


EXAMPLES = {
    example.script.removesuffix(".py"): example
    for example in (
        Example("digits.py", "sklearn"),
        Example("digits_trainer.py", "sklearn"),
        Example("digits_ddp.py", "sklearn"),
        Example("digits_fabric.py", "lightning"),
        Example("digits_lightning.py", "lightning"),
        Example("digits_accelerate.py", "accelerate"),
        Example("text_transformers.py", "transformers"),
    )
}

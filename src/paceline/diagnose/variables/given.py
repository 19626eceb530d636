"""All settings together, for checks that compare several of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paceline.diagnose.variables.setting import Setting, leading_number, number
from paceline.diagnose.variables.versions import at_least
from paceline.errors import Finding

TORCH_TRUE = ("1", "y", "yes", "t", "true")


@dataclass(frozen=True)
class Settings:
    """The settings of a script, a shell or a machine."""

    by_name: Mapping[str, Setting]  # the settings
    versions: Mapping[str, str]  # the known versions of libraries
    num_nodes: int | None = None  # the number of nodes of the job, None if unknown

    def has(self, name: str) -> bool:
        """Whether a variable has a value."""
        return name in self.by_name and bool(self.by_name[name].text)

    def text(self, name: str) -> str:
        """Return the value, empty if there is none or a shell has yet to fill it in."""
        return self.by_name[name].text if self.has(name) and self.by_name[name].is_plain else ""

    def number(self, name: str) -> int | None:
        """Return the value if it is a number."""
        return number(self.text(name))

    def is_one(self, name: str) -> bool:
        """Return whether NCCL reads a flag as set."""
        return leading_number(self.text(name)) == 1

    def is_zero(self, name: str) -> bool:
        """Return whether NCCL reads a flag as off: set to 0 or to a word."""
        return bool(self.text(name)) and leading_number(self.text(name)) == 0

    def is_true(self, *names: str) -> bool:
        """Return whether torch reads one of these as true."""
        return any(self.text(name).lower() in TORCH_TRUE for name in names)

    def is_false(self, *names: str) -> bool:
        """Return whether torch reads one of these as false."""
        return any(
            self.has(name) and bool(self.text(name)) and not self.is_true(name) for name in names
        )

    def at_least(self, library: str, minimum: str) -> bool | None:
        """Return whether the library is that new, None if its version is unknown."""
        return at_least(self.versions, library, minimum)

    def contradicted(
        self, names: Iterable[str], what: str, *, why: str, fix: str, severity: str = "warning"
    ) -> Finding:
        """Return the finding that one setting overrides the others."""
        where, evidence = self._present(names)
        return Finding("variable-contradicted", what, where, evidence, why, fix, severity)

    def harmful(
        self, names: Iterable[str], what: str, *, why: str, fix: str, severity: str = "hint"
    ) -> Finding:
        """Return the finding that settings do more harm than good."""
        where, evidence = self._present(names)
        return Finding("variable-harmful", what, where, evidence, why, fix, severity)

    def _present(self, names: Iterable[str]) -> tuple[str, tuple[str, ...]]:
        """Return the places and the lines of those variables that have a value."""
        present = [self.by_name[name] for name in names if self.has(name)]
        places = dict.fromkeys(setting.where for setting in present)
        return ", ".join(places), tuple(setting.line for setting in present)

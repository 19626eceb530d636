"""Environments as mpirun, batch systems and operators leave them: ``tests/environments/NAME.env``."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "environments"


def environment(name: str, **changes: str | None) -> dict[str, str]:
    """The variables of a recording, with some of them changed, or removed by None."""
    lines = (FOLDER / f"{name}.env").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# "), f"{name}.env does not say where it comes from"
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    values = {key: value for key, _, value in pairs}
    values.update({key: value for key, value in changes.items() if value is not None})
    return {key: value for key, value in values.items() if changes.get(key, "") is not None}

"""Start paceline's own processes, without the current folder on ``sys.path``.

``python -m`` searches the current folder first: a ``paceline.py`` or ``torch.py`` there is run in
place of the real one, whoever wrote it. Python 3.10 has neither ``-P`` nor ``PYTHONSAFEPATH``, and
the variable would reach the user's script. So this file is started by its path: its own folder
comes first, and that of the interpreter takes its place, as for the installed command.
"""

from __future__ import annotations

import os
import sys


def command(*words: str, module: str = "paceline", python: str = "") -> list[str]:
    """Return the command that runs a module of paceline."""
    return [python or sys.executable, __file__, module, *words]


def _main() -> None:
    """Run the module that the command line names, as ``python -m`` does."""
    if not getattr(sys.flags, "safe_path", False):
        # replaced and not removed: a rank replaces the first entry with the folder of its script
        sys.path[0] = os.path.dirname(sys.executable)
    import runpy

    runpy._run_module_as_main(sys.argv.pop(1))  # type: ignore[attr-defined]  # what python -m calls


if __name__ == "__main__":
    _main()

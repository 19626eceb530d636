"""Checks of job arrays: what their elements must not share."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launches import Launch, argument
from paceline.errors import Finding

# A program's own option; others, as --output-dir, may well be shared: each element writes files of its own there.
_FOLDERS = (r"run[-_]dir",)
_VARIABLE = "PACELINE_RUN_DIR"
_SAME_FOR_ALL = frozenset(
    ["HOME", "USER", "LOGNAME", "PWD", "SCRATCH", "WORK", "SLURM_SUBMIT_DIR", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID"]
)


def fixed_run_folder(case: Case) -> Iterator[Finding]:
    """All elements of an array train in one run folder: they load and overwrite each other's checkpoints."""
    array = case.job.directives.last("array")
    if array is None or not _at_once(array.value):
        return
    for launch in case.training:
        folder = _folder(case, launch)
        if folder and not _differs(case, folder):
            yield case.finding(
                "array-with-fixed-run-folder",
                f"all elements of the array use the run folder {case.show(folder)}",
                line=case.line_of(launch, folder, _VARIABLE),
                more=[array.line],
                why="each loads and overwrites the checkpoints of the others; paceline refuses the second element",
                fix=f"{case.show(folder).rstrip('/')}-$SLURM_ARRAY_TASK_ID, or none: each then has its own",
                severity="warning",
            )


def _at_once(value: str) -> bool:
    """Whether several elements may run at one time; ``1-9%1`` is a chain in which each continues the one before it."""
    elements, _, most = value.partition("%")
    return any(letter in elements for letter in "-,") and most.strip() != "1"


def _folder(case: Case, launch: Launch) -> str:
    """Return the folder that a training is told to use, by its launcher, by the program or by our variable."""
    if launch.kind == "paceline run" and launch.options.get("run_dir"):
        return launch.options["run_dir"]
    match = argument(launch, _FOLDERS)
    if match:
        return match[0]
    setting = case.exported(_VARIABLE)
    return setting.value if setting is not None and isinstance(setting.value, str) else ""


def _differs(case: Case, folder: str) -> bool:
    """Whether a folder may differ between elements."""
    return any(symbol.name not in _SAME_FOR_ALL for symbol in case.symbols.of(folder))


CHECKS = (fixed_run_folder,)

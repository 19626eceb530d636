"""Check job arrays: elements that share one run folder."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launches import Launch, argument
from paceline.diagnose.lint.job.sbatch_options import names
from paceline.errors import Finding

# Other options such as --output-dir may be shared: each element writes other files there.
_FOLDERS = (r"run[-_]dir",)
_VARIABLE = "PACELINE_RUN_DIR"
# SLURM_JOB_ID is not among them: each element is a job with a number of its own.
_SAME_FOR_ALL = names(
    "HOME USER LOGNAME PWD SCRATCH WORK SLURM_SUBMIT_DIR SLURM_JOB_NAME SLURM_ARRAY_JOB_ID"
)


def fixed_run_folder(case: Case) -> Iterator[Finding]:
    """Find arrays whose elements use one run folder and so overwrite each other's checkpoints."""
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
                why=(
                    "each loads and overwrites the checkpoints of the others; paceline refuses the"
                    " second element"
                ),
                fix=(
                    f"{case.show(folder).rstrip('/')}-$SLURM_ARRAY_TASK_ID, or none: each then has"
                    " its own"
                ),
                severity="warning",
            )


def _at_once(value: str) -> bool:
    """Return whether elements may run at the same time."""
    # An array of `%1` is the usual chain of jobs: each element continues what the last one saved.
    elements, _, most = value.partition("%")
    return any(letter in elements for letter in "-,") and most.strip() != "1"


def _folder(case: Case, launch: Launch) -> str:
    """Return the run folder by the launcher's option, the program's or PACELINE_RUN_DIR."""
    if launch.kind == "paceline run" and launch.options.get("run_dir"):
        return launch.options["run_dir"]
    match = argument(launch, _FOLDERS)
    if match:
        return match[0]
    setting = case.exported(_VARIABLE)
    return setting.value if setting is not None and isinstance(setting.value, str) else ""


def _differs(case: Case, folder: str) -> bool:
    """Return whether a folder may differ between elements."""
    # A variable that this file does not know may differ: silence is right where it cannot be told.
    return any(symbol.name not in _SAME_FOR_ALL for symbol in case.symbols.of(folder))


CHECKS = (fixed_run_folder,)

"""Names of log files: in the run folder, or as torch's own options and plug-ins say."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, Std

from paceline import env
from paceline.errors import Finding, UsageError
from paceline.launcher.options import Options
from paceline.rundir import RunDir


class RunFolderLogs(LogsSpecs):
    """Names of log files in the run folder: one file a rank for both streams."""

    def __init__(self, run_dir: RunDir, first_attempt: int) -> None:
        super().__init__(log_dir=str(run_dir.root))
        self._run_dir = run_dir
        self._first_attempt = first_attempt

    @property
    def root_log_dir(self) -> str:
        return str(self._run_dir.root)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        attempt = self._first_attempt + int(envs[0][env.RESTART_COUNT])
        ranks = {local: int(values[env.RANK]) for local, values in envs.items()}
        logs = {local: str(self._run_dir.log(rank, attempt)) for local, rank in ranks.items()}
        errors = {local: str(self._run_dir.error(rank, attempt)) for local, rank in ranks.items()}
        for local, path in errors.items():
            envs[local][env.ERROR_FILE] = path
            Path(path).unlink(missing_ok=True)
        return LogsDest(
            stdouts=logs,
            stderrs=dict(logs),
            error_files=errors,
            filtered_stdout=str(self._run_dir.filtered("stdout", attempt)),
            filtered_stderr=str(self._run_dir.filtered("stderr", attempt)),
        )


def make_logs(options: Options, run_dir: RunDir, *, first_attempt: int = 0) -> LogsSpecs:
    """Return who names the log files: torch's classes where their options were given, else the run folder.

    Args:
        options: What was asked for.
        run_dir: The run folder.
        first_attempt: Number that the first attempt of this start has in it.

    Raises:
        UsageError: ``--logs-specs`` names no entry point.
    """
    if options.logs_specs is not None:
        return _plugin_logs(options)
    if options.log_dir is not None:
        return DefaultLogsSpecs(log_dir=options.log_dir, redirects=Std.ALL)
    return RunFolderLogs(run_dir, first_attempt)


def _plugin_logs(options: Options) -> LogsSpecs:
    found = entry_points(group="torchrun.logs_specs", name=str(options.logs_specs))
    if not found:
        raise UsageError(
            Finding(
                "option-invalid",
                f"--logs-specs {options.logs_specs}: no entry point of that name in torchrun.logs_specs",
                where="command line",
                fix="install the package that brings it, or leave the option out",
            )
        )
    made: LogsSpecs = next(iter(found)).load()(
        log_dir=options.log_dir,
        redirects=Std.from_str(options.redirects),
        tee=Std.from_str(options.tee),
        local_ranks_filter=set(options.local_ranks_filter) or None,
    )
    return made

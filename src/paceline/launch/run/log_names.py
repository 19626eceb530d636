"""Choose the names of log files: in the run folder, or from torch's options and plug-ins."""

from __future__ import annotations

import contextlib
import os
from importlib.metadata import entry_points
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, Std

from paceline import env
from paceline.errors import SetupError, option_invalid
from paceline.launch.plan import folder_errors
from paceline.launch.plan.options import Options
from paceline.rundir import owned
from paceline.rundir.files import RunDir, require_space


class RunFolderLogs(LogsSpecs):
    """Names of log files in the run folder, with one file per rank for both streams."""

    def __init__(self, run_dir: RunDir, first_attempt: int) -> None:
        super().__init__(log_dir=str(run_dir.root))
        self._run_dir = run_dir
        self._first_attempt = first_attempt

    @property
    def root_log_dir(self) -> str:
        return str(self._run_dir.root)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        with contextlib.suppress(OSError):  # the folder may have been deleted
            self._run_dir.create()
        attempt = self._first_attempt + int(envs[0][env.RESTART_COUNT])
        ranks = {local: int(values[env.RANK]) for local, values in envs.items()}
        logs = {local: str(self._run_dir.log(rank, attempt)) for local, rank in ranks.items()}
        errors = {local: str(self._run_dir.error(rank, attempt)) for local, rank in ranks.items()}
        for local, path in errors.items():
            envs[local][env.ERROR_FILE] = path
            with contextlib.suppress(OSError):
                owned.delete(Path(path))
        return LogsDest(stdouts=logs, stderrs=dict(logs), error_files=errors)


class TorchLogs(DefaultLogsSpecs):
    """torch's layout of log files; falls back to the run folder if it cannot be created."""

    def __init__(self, log_dir: str, spare: RunFolderLogs) -> None:
        super().__init__(log_dir=log_dir, redirects=Std.ALL)
        self._spare = spare

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        try:
            return super().reify(envs)
        except OSError:
            return self._spare.reify(envs)


def make_logs(options: Options, run_dir: RunDir, *, first_attempt: int = 0) -> LogsSpecs:
    """Return the provider of log file names: torch's if its options are given, else ours.

    Raises UsageError if ``--logs-specs`` does not name an entry point. Raises SetupError if the
    folder of ``--log-dir`` is not writable.
    """
    if options.logs_specs is not None:
        return _plugin_logs(options)
    usual = RunFolderLogs(run_dir, first_attempt)
    if options.log_dir is None:
        return usual
    log_dir = os.path.abspath(options.log_dir)  # ranks may change their working directory
    try:
        if log_dir != os.devnull:
            require_space(Path(log_dir))
        return TorchLogs(log_dir, usual)
    except OSError as error:
        raise SetupError(folder_errors.unusable(Path(log_dir), error, option="--log-dir")) from None


def _plugin_logs(options: Options) -> LogsSpecs:
    plugins = entry_points(group="torchrun.logs_specs", name=str(options.logs_specs))
    if not plugins:
        raise option_invalid(
            f"--logs-specs {options.logs_specs}: no entry point of that name in"
            " torchrun.logs_specs",
            fix="install the package that brings it, or leave the option out",
        )
    specs: LogsSpecs = next(iter(plugins)).load()(
        log_dir=options.log_dir and os.path.abspath(options.log_dir),
        redirects=Std.from_str(options.redirects),
        tee=Std.from_str(options.tee),
        local_ranks_filter=set(options.local_ranks_filter) or None,
    )
    return specs

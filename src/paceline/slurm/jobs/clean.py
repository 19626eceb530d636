"""``paceline clean``: show what no run needs any more, and delete it if that is confirmed.

``judge`` decides what of a run may go.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from paceline.errors import EXIT_OK
from paceline.rundir import lease, lease_file, manifest, owned
from paceline.rundir.files import RunDir, discard, display_path, is_run_file
from paceline.slurm import job_states, profile_files
from paceline.slurm.jobs import listing, run_rows
from paceline.slurm.jobs.run_rows import RunRow
from paceline.slurm.sweep import sweep_rows
from paceline.text import terminal
from paceline.text.quoting import printable
from paceline.text.wording import aligned
from paceline.train import checkpoint

ALL, CHECKPOINTS, NOTHING = "all", "checkpoints", "nothing"  # what of a run may go
_OLD_S = 7 * 86400.0


def clean(folder: Path | None, *, is_confirmed: bool) -> int:
    """Print what no run needs, delete it if that is confirmed, and return the exit status."""
    entries = listing.gather(*(profile_files.run_folders() if folder is None else [folder]))
    states, silent = job_states.states(job for entry in entries for job in entry.jobs)
    sweep_rows.say_silent(silent)
    elements = [
        listing.JobEntry(one.run_dir, one.job) for entry in entries for one in entry.members
    ]
    cells, total_bytes = [("MB", "folder", "why")], 0
    for entry in [*(entry for entry in entries if entry.sweep is None), *elements]:
        table_row = listing.row_of(entry, states)
        is_known = entry.job is None or entry.job.cluster not in silent
        try:
            unneeded = _unneeded(entry.run_dir, table_row.row) if table_row and is_known else {}
        except OSError as error:  # such as a link, or a file that is not ours
            place = printable(display_path(entry.run_dir.root))
            terminal.say(f"left alone: {place}: {error.strerror}: {error.filename or ''}")
            continue
        for path, (why, num_bytes) in unneeded.items():
            total_bytes += num_bytes
            cells.append((f"{num_bytes / 1e6:,.1f}", printable(display_path(path)), why))
        if is_confirmed and unneeded:
            _delete(entry.run_dir.root, unneeded)
    if len(cells) == 1:
        terminal.say("nothing to clean")
        return EXIT_OK
    print("\n".join(aligned(cells[0], cells[1:], right={"MB"})))
    how = "deleted" if is_confirmed else "to delete them: paceline clean --yes"
    terminal.say(f"{len(cells) - 1} folders, {total_bytes / 1e6:,.1f} MB; {how}")
    return EXIT_OK


def _unneeded(run_dir: RunDir, row: RunRow) -> dict[Path, tuple[str, int]]:
    """Return the folders of a run that may go, with the reasons and their bytes.

    Raises OSError if any is not ours to delete.
    """
    saved = (run_dir.checkpoints, run_dir.metrics, run_dir.bench)
    owner = lease_file.read(run_dir.root)
    verdict = judge(
        row,
        # one on another host is not seen
        is_held=run_dir.keep.exists() or bool(owner and lease_file.is_alive(owner) is not False),
        is_empty=not any(path.exists() for path in saved),
        now_s=time.time(),
    )
    if verdict == ALL:
        num_bytes = owned.delete_folder(run_dir.root, is_run_file, is_dry=True)
        return {run_dir.root: (f"{row.state}, has saved and logged nothing", num_bytes)}
    unneeded = checkpoint.unneeded(run_dir.checkpoints) if verdict == CHECKPOINTS else {}
    return {
        path: (why, owned.delete_folder(path, manifest.is_ours, is_dry=True))
        for path, why in unneeded.items()
    }


def judge(row: RunRow, *, is_held: bool, is_empty: bool, now_s: float) -> str:
    """Return what of a run may go: ``ALL``, ``CHECKPOINTS`` that none needs, or ``NOTHING``. Pure.

    A folder is held by a run, or kept by the user; it is empty if nothing was saved or logged.
    """
    if row.is_alive or is_held:
        return NOTHING
    has_failed = row.state not in (run_rows.SUCCEEDED, "unfinished", "unknown")
    is_old = row.since_s is not None and now_s - row.since_s > _OLD_S
    return ALL if has_failed and is_empty and is_old else CHECKPOINTS


def _delete(run: Path, paths: Iterable[Path]) -> None:
    """Delete folders while this process owns their run, so that none begins there meanwhile."""
    owned_run = lease.take(run, lease_file.this_process(), say=terminal.say)
    for path in paths:
        if path == run:
            discard(path)
        else:
            checkpoint.remove(path)
    owned_run.release()

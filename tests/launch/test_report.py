"""``paceline report`` of runs that were started for real, by a script that knows nothing of paceline."""

from __future__ import annotations

from pathlib import Path

RAW_DDP = Path(__file__).parent / "scripts" / "raw_ddp.py"


def test_a_run_is_reported_as_it_was(command):
    ended = command.run("--nproc-per-node", "2", RAW_DDP)
    assert ended.status == 0, ended.err
    reported = command.run("-m", "paceline", "report", "--text", program="python")
    lines = reported.out.splitlines()
    assert lines[0].endswith("raw_ddp.py")
    assert "succeeded · 2 ranks · 24 steps" in " ".join(lines[1:3])
    assert "  rank  host                       own work a step    of it data" in lines
    assert "note: no metrics: session.log and a Trainer write metrics.csv" in lines
    # Whether 8 of 24 short steps are timed depends on how long they take.
    is_split = any(line.startswith("step ") for line in lines)
    note = "note: no split of a step: fewer than 8 steps were timed"
    assert is_split != (note in lines)

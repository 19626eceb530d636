"""What tasks of one start all find in their command line is printed by the first of them."""

from __future__ import annotations

import pytest

from paceline.cli import command_errors
from paceline.errors import Finding, UsageError

MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}


@pytest.mark.parametrize(
    ("task", "name", "prints"),
    [
        ({}, "option-unknown", True),
        (
            {**MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            "option-unknown",
            True,
        ),
        (
            {**MPI, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            "option-unknown",
            False,
        ),
        (
            {**MPI, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            "script-missing",
            True,
        ),
        ({**SLURM, "SLURM_NODEID": "0", "SLURM_PROCID": "0"}, "option-contradicted", True),
        ({**SLURM, "SLURM_NODEID": "1", "SLURM_PROCID": "1"}, "option-contradicted", False),
        ({**SLURM, "SLURM_NODEID": "1", "SLURM_PROCID": "1"}, "double-launch", False),
    ],
)
def test_an_error_of_the_command_line_is_printed_by_the_first_task(
    task, name, prints, monkeypatch, capfd
):
    for variable, value in task.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(command_errors, "_TOGETHER_S", 0)
    monkeypatch.setattr(command_errors.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        command_errors.refuse_line(UsageError(Finding(name, "it cannot be")))
    assert ended.value.code == 2
    assert (name in capfd.readouterr().err) == prints

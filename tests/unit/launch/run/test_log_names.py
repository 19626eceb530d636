"""Who names the log files: the run folder, unless torch's own options or a plug-in were asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from paceline.errors import UsageError
from paceline.launch.plan.parsing import parse
from paceline.launch.run import log_names
from paceline.rundir.files import RunDir


@pytest.fixture
def folder(tmp_path):
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def make(folder, *, first_attempt=0, **typed):
    return log_names.make_logs(
        parse("train.py", (), typed=typed, inherited={}), folder, first_attempt=first_attempt
    )


def environments(attempt="0"):
    return {
        local: {"RANK": str(4 + local), "TORCHELASTIC_RESTART_COUNT": attempt} for local in range(2)
    }


def test_the_run_folder_has_one_file_a_rank_for_both_streams(folder):
    found = make(folder).reify(environments())
    assert found.stdouts == {0: str(folder.log(4)), 1: str(folder.log(5))}
    assert found.stderrs == found.stdouts
    assert found.error_files == {0: str(folder.error(4)), 1: str(folder.error(5))}


def test_a_later_start_counts_on(folder):
    found = make(folder, first_attempt=3).reify(environments("2"))
    assert found.stdouts[0] == str(folder.log(4, 5))
    assert found.error_files[0] == str(folder.error(4, 5))


def test_every_attempt_has_files_of_its_own(folder):
    found = make(folder).reify(environments("2"))
    assert found.stdouts[0] == str(folder.log(4, 2))
    assert found.error_files[1] == str(folder.error(5, 2))


def test_a_rank_learns_where_to_leave_its_exception_and_finds_no_old_one(folder):
    folder.error(5).write_text("from another run in the same folder")
    envs = environments()
    make(folder).reify(envs)
    assert envs[1]["TORCHELASTIC_ERROR_FILE"] == str(folder.error(5))
    assert not folder.error(5).exists()


def test_a_log_folder_is_laid_out_as_torchrun_does(folder, tmp_path):
    made = make(folder, log_dir=str(tmp_path / "logs"))
    assert isinstance(made, DefaultLogsSpecs)
    envs = {
        local: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0", "RANK": str(local)}
        for local in range(2)
    }
    found = made.reify(envs)
    assert found.stdouts[1].startswith(str(tmp_path / "logs"))
    assert found.stdouts[1].endswith("attempt_0/1/stdout.log")
    assert found.stderrs[1].endswith("attempt_0/1/stderr.log")


def test_a_plug_in_is_made_with_torchruns_arguments(folder, monkeypatch):
    got = {}

    def plug_in(**arguments):
        got.update(arguments)
        return "made"

    monkeypatch.setattr(
        log_names,
        "entry_points",
        lambda *, group, name: [SimpleNamespace(load=lambda: plug_in)] if name == "mine" else [],
    )
    assert (
        make(folder, logs_specs="mine", tee="1:3", local_ranks_filter="1", log_dir="/x") == "made"
    )
    assert (got["log_dir"], got["local_ranks_filter"], sorted(got["tee"])) == ("/x", {1}, [1])


def test_a_plug_in_that_is_not_there_is_a_finding(folder):
    with pytest.raises(UsageError) as caught:
        make(folder, logs_specs="no-such-plug-in-anywhere")
    assert "no-such-plug-in-anywhere" in caught.value.finding.what
    assert caught.value.finding.fix

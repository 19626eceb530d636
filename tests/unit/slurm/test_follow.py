"""Following a job: its output to stdout, its state to stderr, and the end that it really had."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

import canned
import commits
import run_events
from paceline.errors import EXIT_UNFINISHED, Finding, UsageError
from paceline.launch.outcome import root_cause
from paceline.rundir.files import RunDir
from paceline.slurm import job_states, record
from paceline.slurm.job_states import JobState
from paceline.slurm.jobs import follow as module
from paceline.slurm.jobs.follow import Follower
from paceline.slurm.record import JobRecord, Requeue
from refusals import refusal

JOB = JobRecord("12", name="digits", nodes="2", submitted_ns=1)
PENDING = "12|PENDING||N/A|Resources\n"
RUNS = "12|RUNNING|node[1-2]|2026-11-21T12:00:00|None\n"
ENDING = "12|COMPLETING|node[1-2]|2026-11-21T12:00:00|None\n"
HELD_BACK = "12|PENDING||N/A|BeginTime\n"
DONE = "12|COMPLETED|node[1-2]|2026-11-21T12:00:00|None\n"
FELL = "12|FAILED|node[1-2]|2026-11-21T12:00:00|NonZeroExitCode\n"
PLAN = "paceline: 2 nodes x 1 rank · gloo · runs/digits\n"
BLOCK = (
    "── paceline ────\nit broke   [RUN001 user-exception]\nexit status 1 · run folder runs/digits\n"
)
UNKNOWN = "slurm_load_jobs error: Invalid job id specified"
FAILED = Finding("user-exception", "rank 0 raised ValueError")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    return canned.slurm(tmp_path / "bin", monkeypatch)


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = RunDir(tmp_path / "runs" / "digits")
    made.create()
    record.write(made, JOB)
    return made


class Time:
    """A clock that goes by sleeping, and deeds that are done at their time."""

    def __init__(self, *deeds):
        self.now_s = 0.0
        self.deeds = list(deeds)

    def sleep(self, seconds):
        self.now_s += seconds
        assert self.now_s < 1000, "it follows for ever"
        while self.deeds and self.deeds[0][0] <= self.now_s:
            self.deeds.pop(0)[1]()


def followed(run_dir, *deeds):
    passes = Time(*deeds)
    status = Follower(run_dir, JOB, clock=lambda: passes.now_s, sleep=passes.sleep).run()
    return status, passes.now_s


def prints(run_dir, text):
    with run_dir.job_output.open("a") as file:
        file.write(text)


def ends(run_dir, *findings, status, node=0, attempt=0):
    path = run_dir.events(node)
    run_events.start(path, node=node, attempt=attempt)
    run_events.outcome(path, status, *findings, node=node)


def scontrol(state, **more):
    fields = {
        "Reason": "None",
        "Restarts": "0",
        "NodeList": "node[1-2]",
        "StartTime": "2026-11-21T12:00:00",
        **more,
    }
    pairs = " ".join(f"{key}={value}" for key, value in fields.items())
    return f"JobId=12 JobName=digits UserId=me(1) JobState={state} {pairs} "


def test_the_output_goes_to_stdout_and_the_states_to_stderr(run_dir, slurm, capfd):
    slurm.answers("squeue", PENDING, RUNS, DONE)
    ends(run_dir, status=0)
    prints(run_dir, PLAN)
    status, _ = followed(
        run_dir,
        (3, lambda: prints(run_dir, "step 1\n")),
        (3.5, lambda: prints(run_dir, "paceline: run folder x\n")),
    )
    out, err = capfd.readouterr()
    assert status == 0
    assert out == PLAN + "step 1\npaceline: run folder x\n"
    assert err == "paceline: job 12 is pending (Resources)\npaceline: job 12 runs on node[1-2]\n"


def test_a_block_that_was_shown_is_not_printed_twice(run_dir, slurm, capfd):
    slurm.answers("squeue", FELL)
    prints(run_dir, PLAN + BLOCK + "srun: error: node1: task 0: Exited with exit code 1\n")
    ends(run_dir, FAILED, status=1)
    assert followed(run_dir)[0] == 1
    out, err = capfd.readouterr()
    assert out.count("── paceline") == 1
    assert err == ""


def test_a_block_that_cannot_be_read_is_told_from_the_events(run_dir, slurm, capfd):
    slurm.answers("squeue", FELL)
    ends(run_dir, FAILED, status=1)
    assert followed(run_dir)[0] == 1
    assert "rank 0 raised ValueError" in capfd.readouterr().err


def test_the_block_of_an_earlier_start_is_not_that_of_the_last(run_dir, slurm, capfd):
    slurm.answers("squeue", FELL)
    prints(run_dir, PLAN + BLOCK + PLAN + "step 5\n")
    ends(run_dir, FAILED, status=1)
    followed(run_dir)
    assert "rank 0 raised ValueError" in capfd.readouterr().err


def test_last_lines_that_come_late_are_waited_for(run_dir, slurm, capfd):
    slurm.answers("squeue", FELL)
    prints(run_dir, PLAN)
    ends(run_dir, FAILED, status=1)
    followed(run_dir, (3.6, lambda: prints(run_dir, BLOCK)))
    out, err = capfd.readouterr()
    assert out.endswith(BLOCK)
    assert err == ""


def test_it_goes_on_through_a_requeue(run_dir, slurm, capfd):
    slurm.answers("squeue", RUNS, ENDING, HELD_BACK, HELD_BACK, RUNS, DONE)
    ends(run_dir, status=EXIT_UNFINISHED)
    time.sleep(0.001)
    again = Requeue(340, time.time_ns(), "unfinished")

    def queued_again():
        record.write(run_dir, JobRecord("12", requeues=(again,)))

    status, _ = followed(
        run_dir, (3, queued_again), (9, lambda: ends(run_dir, status=0, attempt=1))
    )
    assert status == 0
    err = capfd.readouterr().err
    assert (
        "paceline: job 12 is queued again after 340 steps (BeginTime): a job that was queued again"
        in err
    )
    assert err.count("queued again after") == 1
    assert err.count("runs on node[1-2]") == 2


def test_it_goes_on_under_another_number(run_dir, slurm, capfd):
    slurm.does(
        "squeue",
        "case $* in *15*) echo '15|COMPLETED|node1|N/A|None';; *) echo '"
        + FELL.strip()
        + "';; esac",
    )
    ends(run_dir, status=EXIT_UNFINISHED)
    again = Requeue(340, time.time_ns() + 10**9, "unfinished")
    later = JobRecord("15", earlier_ids=("12",), requeues=(again,))
    status, _ = followed(run_dir, (1, lambda: record.write(run_dir, later)))
    assert status == 0
    err = capfd.readouterr().err
    assert "job 12 was submitted again as job 15 after 340 steps" in err
    assert "job 15 has succeeded" in err


def test_an_unfinished_run_that_nobody_queues_again_ends_so(run_dir, slurm):
    slurm.answers("squeue", "12|TIMEOUT|node1|2026-11-21T12:00:00|TimeLimit\n")
    ends(run_dir, status=EXIT_UNFINISHED)
    assert followed(run_dir)[0] == EXIT_UNFINISHED


def test_a_finished_run_is_never_a_failure_whatever_slurm_calls_it(run_dir, slurm):
    slurm.answers("squeue", FELL)
    ends(run_dir, status=0)
    assert followed(run_dir)[0] == 0


def test_a_failed_run_is_never_a_success_whatever_slurm_calls_it(run_dir, slurm):
    slurm.answers("squeue", DONE)
    ends(run_dir, FAILED, status=1)
    assert followed(run_dir)[0] == 1


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ("TIMEOUT", "slurm-time-limit"),
        ("OUT_OF_MEMORY", "rank-died-oom-killer"),
        ("CANCELLED", "slurm-job-ended"),
        ("NODE_FAIL", "slurm-job-ended"),
        ("FAILED", "slurm-job-ended"),
    ],
)
def test_where_the_run_could_not_tell_slurm_is_asked(run_dir, slurm, capfd, state, name):
    slurm.answers("squeue", f"12|{state}|node[1-2]|2026-11-21T12:00:00|None\n")
    slurm.answers("scontrol", scontrol(state, ExitCode="9:0"))
    prints(run_dir, "the last words\n")
    assert followed(run_dir)[0] == 1
    err = capfd.readouterr().err
    assert err.startswith("── paceline ")
    assert name in err
    assert f"Slurm: {state}, exit code 9" in err
    assert "the last words" in err


def test_a_run_that_was_told_to_stop_does_not_know_that_its_node_failed(run_dir, slurm, capfd):
    slurm.answers("squeue", "12|NODE_FAIL|node[1-2]|2026-11-21T12:00:00|None\n")
    prints(run_dir, PLAN + "srun: error: Node failure on node2\n" + BLOCK)
    ends(
        run_dir,
        Finding("run-unfinished", "stopped by SIGTERM", severity="warning"),
        status=EXIT_UNFINISHED,
    )
    assert followed(run_dir)[0] == 1
    err = capfd.readouterr().err
    assert "job 12 (digits) ended because node2 failed   [JOB043 slurm-job-ended]" in err
    assert "sinfo -R" in err


def test_an_account_of_an_earlier_start_does_not_count(run_dir, slurm, capfd):
    ends(run_dir, status=EXIT_UNFINISHED)
    later = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 60))
    slurm.answers("squeue", f"12|NODE_FAIL|node1|{later}|None\n")
    slurm.answers("scontrol", scontrol("NODE_FAIL", Restarts="1", StartTime=later))
    assert followed(run_dir)[0] == 1
    assert "a node failed" in capfd.readouterr().err


def test_a_job_that_slurm_has_forgotten_is_told_by_its_folder(run_dir, slurm):
    slurm.fails("squeue", UNKNOWN)
    ends(run_dir, FAILED, status=1)
    prints(run_dir, BLOCK)
    assert followed(run_dir)[0] == 1


def test_a_job_that_nobody_remembers_is_no_success(run_dir, slurm, capfd):
    slurm.fails("squeue", UNKNOWN)
    assert followed(run_dir)[0] == 1
    assert "Slurm no longer knows job 12 (digits)" in capfd.readouterr().err


def test_accounting_remembers_what_slurm_has_forgotten(run_dir, slurm, capfd):
    slurm.fails("squeue", UNKNOWN)
    slurm.answers("sacct", "12|TIMEOUT|node1|2026-11-21T12:00:00|0:0|None\n")
    assert followed(run_dir)[0] == 1
    assert "slurm-time-limit" in capfd.readouterr().err


def test_without_slurm_the_folder_is_followed_to_its_outcome(run_dir, slurm, capfd):
    prints(run_dir, "step 1\n")
    status, _ = followed(run_dir, (5, lambda: ends(run_dir, status=0)))
    out, err = capfd.readouterr()
    assert status == 0
    assert out == "step 1\n"
    assert err.count("squeue does not answer here") == 1


def test_output_that_is_not_to_be_seen_is_waited_for_aloud(run_dir, slurm, capfd):
    slurm.answers("squeue", *[RUNS] * 8, DONE)
    ends(run_dir, status=0)
    followed(run_dir)
    assert (
        capfd.readouterr().err.count(
            f"waiting for {run_dir.job_output}, which job 12 on node[1-2] writes"
        )
        == 1
    )


def test_slurm_is_asked_seldom(run_dir, slurm):
    slurm.answers("squeue", *[PENDING] * 50, DONE)
    ends(run_dir, status=0)
    _, seconds = followed(run_dir)
    asked = len([words for words in slurm.calls if words.startswith("squeue")])
    assert asked <= 30 + (seconds - 60) / 5 + 3


@pytest.mark.parametrize(("state", "pause_s"), [("RUNNING", 30), ("PENDING", 5)])
def test_a_job_that_runs_for_long_is_asked_after_more_seldom(run_dir, monkeypatch, state, pause_s):
    passes, asked_s = Time(), []

    def answer(job):
        asked_s.append(passes.now_s)
        return job_states.StateAnswer(
            True, JobState("12", state if passes.now_s < 900 else "COMPLETED")
        )

    monkeypatch.setattr(job_states, "state", answer)
    ends(run_dir, status=0)
    follower = Follower(run_dir, JOB, clock=lambda: passes.now_s, sleep=passes.sleep)
    assert follower.run() == 0
    pauses = {int(at): round(later - at) for at, later in pairwise(asked_s)}
    assert {seconds for at, seconds in pauses.items() if at < 58} == {2}
    assert {seconds for at, seconds in pauses.items() if 62 <= at < 590} == {5}
    assert {seconds for at, seconds in pauses.items() if 610 <= at < 870} == {pause_s}


def test_an_end_that_leaves_nothing_to_wait_for_is_told_while_nodes_are_cleaned(run_dir, slurm):
    slurm.answers("squeue", RUNS, ENDING)
    prints(run_dir, PLAN + "paceline: run folder x\n")
    assert followed(run_dir, (1, lambda: ends(run_dir, status=0)))[0] == 0


def test_a_node_that_was_lost_may_yet_be_made_up_for(run_dir, slurm, capfd):
    lost = root_cause.judge([], lost=["node 1 (node2)"]).finding
    slurm.answers("squeue", RUNS, ENDING, HELD_BACK, RUNS, DONE)
    ends(run_dir, lost, status=1)
    commits.commit(run_dir.checkpoints, 7)
    assert followed(run_dir, (7, lambda: ends(run_dir, status=0, attempt=1)))[0] == 0
    assert "queued again after 7 steps" in capfd.readouterr().err


def test_ctrl_c_ends_the_watching_and_not_the_job(run_dir, slurm, capfd, monkeypatch):
    def stops(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "run", stops)
    assert module.follow("12") == 130
    err = capfd.readouterr().err
    assert "job 12 continues" in err
    assert "scancel 12" in err
    assert "paceline follow" in err


def test_a_run_is_found_by_folder_name_or_any_of_its_numbers(run_dir):
    record.write(run_dir, JobRecord("15", earlier_ids=("12",)))
    for subject in (str(run_dir.root), "runs/digits", "digits", "15", "12"):
        found, job = record.find(subject)
        assert found.root.resolve() == run_dir.root
        assert job.job_id == "15"


@pytest.mark.parametrize(
    ("subject", "what", "fix"),
    [
        ("99", "no run in paceline-runs has had job 99", "paceline jobs"),
        ("digit", "'digit' is not a run folder", "paceline follow digits"),
        ("local", "has no Slurm job", "paceline explain"),
        ("", "is not a run folder", "paceline jobs"),
    ],
)
def test_what_is_no_job_is_refused(run_dir, subject, what, fix):
    (run_dir.root.parent / "local").mkdir()
    finding = refusal(UsageError, record.find, subject)
    assert finding.name == "slurm-job-unknown"
    assert what in finding.what
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "job_id": "1"}', '{"version": 1}'])
def test_a_record_of_another_kind_is_none(run_dir, text):
    run_dir.job.write_text(text)
    assert record.read(run_dir) is None


def test_a_record_comes_back_as_it_was_written(run_dir):
    job = JobRecord(
        "15", ("12",), "big", "ü", "train.py", "1-2", 5, "fail", (Requeue(1, 2, "unfinished"),)
    )
    record.write(run_dir, job)
    assert record.read(run_dir) == job


NOON_S = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            JobState("12", "PENDING", start_s=NOON_S + 60),
            "job 12 is pending, expected to start 12:01",
        ),
        (
            JobState("12", "PENDING", start_s=NOON_S + 86400),
            "job 12 is pending, expected to start 2026-11-22 12:00",
        ),
        (
            JobState("12", "PENDING", reason="PartitionNodeLimit"),
            "job 12 is pending (PartitionNodeLimit): it requests more nodes than its partition gives to a job: "
            "fewer --nodes",
        ),
        (JobState("12", "CONFIGURING", nodes="node1"), "job 12 is configuring on node1"),
        (JobState("12", "COMPLETING"), ""),
    ],
)
def test_what_a_job_does_in_one_line(state, words):
    assert module.describe(state, again=None, now_s=NOON_S) == words


AGAIN = "12|RUNNING|node[1-2]|2026-11-21T12:30:00|None\n"


def test_that_slurm_queued_it_again_between_two_looks_is_said(run_dir, slurm, capfd):
    slurm.answers("squeue", RUNS)
    deeds = [
        (5, lambda: slurm.answers("squeue", AGAIN)),
        (20, lambda: slurm.answers("squeue", DONE)),
    ]
    followed(run_dir, *deeds)
    err = capfd.readouterr().err
    assert err.count("job 12 was queued again\n") == 1
    assert err.count("job 12 runs on node[1-2]") == 2


def test_that_slurm_queued_it_again_before_anybody_watched_is_said(run_dir, slurm, capfd):
    slurm.answers("squeue", HELD_BACK)
    slurm.answers(
        "scontrol", "JobId=12 JobName=x UserId=me(1) JobState=PENDING Restarts=1 Requeue=1"
    )
    done = [
        (20, lambda: slurm.answers("squeue", DONE)),
        (20, lambda: slurm.answers("scontrol", "")),
    ]
    followed(run_dir, *done)
    assert "job 12 is queued again (BeginTime)" in capfd.readouterr().err


def test_what_a_run_folder_says_is_quoted_and_printable(tmp_path, capfd):
    folder = tmp_path / "x; touch broken-out\x1b[31m"
    Follower(RunDir(folder), JOB).say_goodbye()
    err = capfd.readouterr().err
    assert "\x1b" not in err
    assert f"paceline follow $'{tmp_path}/x; touch broken-out\\033[31m'" in err


def test_the_output_of_a_later_job_is_shown_where_the_name_leads_to_it(run_dir, capfd):
    output = module.JobOutput(run_dir)
    for number in ("12", "13"):
        (run_dir.root / f"slurm-{number}.out").write_text(f"of job {number}\n")
        run_dir.job_output.unlink(missing_ok=True)
        run_dir.job_output.symlink_to(run_dir.root / f"slurm-{number}.out")
        output.show()
    output.close()
    assert capfd.readouterr().out == "of job 12\nof job 13\n"

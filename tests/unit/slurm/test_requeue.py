"""What a job script's last line does: queue the job again where its run can go on, and nothing where it cannot."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

import canned
import commits
import run_events
from paceline import env
from paceline.cli import main as cli
from paceline.errors import Finding
from paceline.launch.outcome import root_cause
from paceline.rundir import events
from paceline.rundir.events import History, Outcome
from paceline.rundir.files import RunDir
from paceline.slurm import record
from paceline.slurm.jobs import requeue
from paceline.slurm.record import JobRecord, Requeue

LOST = root_cause.judge([], lost=["node 1 (node2)"]).finding
FAILED = Finding("user-exception", "rank 0 raised ValueError")
JOB = JobRecord("12", name="digits", nodes="2", submitted_ns=1)
RUNS_NOW = "JobId=12 JobName=digits UserId=me(1) JobState=RUNNING Reason=None Requeue={requeue} Restarts=0 ExcNodeList={out} "


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.setenv(env.JOB_ID, "12")
    monkeypatch.setenv(env.JOB_NODELIST, "node[1-2]")
    commands = canned.slurm(tmp_path / "bin", monkeypatch)
    allows(commands)
    return commands


@pytest.fixture
def run_dir(tmp_path):
    made = RunDir(tmp_path / "runs" / "digits")
    made.create()
    record.write(made, JOB)
    made.job_script.write_text("#!/bin/bash\n")
    return made


def allows(slurm, *, may_requeue="1", out="(null)"):
    slurm.does(
        "scontrol", f"[ $1 != show ] || echo '{RUNS_NOW.format(requeue=may_requeue, out=out)}'"
    )


def refuses(slurm, text):
    slurm.does(
        "scontrol",
        f"case $1 in show) echo '{RUNS_NOW.format(requeue=1, out='')}';; *) echo '{text}' >&2; exit 1;; esac",
    )


def checkpoint(run_dir, step, number=1):
    commits.commit(run_dir.checkpoints, step, serial=number)


def ends(run_dir, *findings, status=1):
    run_events.start(run_dir.events(0))
    events.append(run_dir.events(0), node=0, kind="end", attempt=0, ends=[{"steps": 30}])
    run_events.outcome(run_dir.events(0), status, *findings)


def call(run_dir, status):
    words = ["requeue", str(run_dir.root), "--status", str(status)]
    return cli.cli.main(words, prog_name="paceline", standalone_mode=False)()


def test_an_unfinished_run_is_queued_again_and_the_step_is_recorded(run_dir, slurm, capsys):
    checkpoint(run_dir, 340)
    assert call(run_dir, 75) == 0
    assert slurm.calls == ["scontrol show job -o 12", "scontrol requeue 12"]
    (entry,) = record.read(run_dir).requeues
    assert (entry.step, entry.why) == (340, "unfinished")
    assert (
        capsys.readouterr().err == "paceline: job 12 is queued again, to continue from step 340\n"
    )


def test_the_record_is_written_before_the_script_is_ended(run_dir, slurm):
    checkpoint(run_dir, 340)
    slurm.does("scontrol", "true", f"cp {run_dir.job} {slurm.folder}/then")
    call(run_dir, 75)
    assert json.loads((slurm.folder / "then").read_text())["requeues"][0]["step"] == 340


@pytest.mark.parametrize("status", [143, 138, 140])
def test_a_run_that_was_told_to_stop_and_has_not_saved_says_so(run_dir, slurm, capsys, status):
    ends(run_dir, status=status)
    assert call(run_dir, status) == 0
    assert not any("requeue" in words or "sbatch" in words for words in slurm.calls)
    assert (
        f"received a stop signal and has not saved (status {status}): the job is not queued"
        in capsys.readouterr().err
    )


def test_a_job_that_lightning_has_queued_again_is_left_alone(run_dir, slurm, capsys):
    ends(run_dir, status=138)
    state = RUNS_NOW.format(requeue=1, out="").replace("RUNNING", "COMPLETING")
    slurm.does("scontrol", f"[ $1 != show ] || echo '{state}'")
    assert call(run_dir, 138) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("status", [0, 1, 2, 137])
def test_any_other_end_is_left_alone_in_silence(run_dir, slurm, capsys, status):
    checkpoint(run_dir, 340)
    ends(run_dir, FAILED, status=status)
    before = run_dir.job.read_text()
    assert call(run_dir, status) == 0
    assert not any("requeue" in words or "sbatch" in words for words in slurm.calls)
    assert run_dir.job.read_text() == before
    assert capsys.readouterr() == ("", "")


def test_where_the_site_forbids_it_the_job_is_submitted_again(run_dir, slurm, capsys):
    checkpoint(run_dir, 340)
    refuses(slurm, "Requested operation is presently disabled for job 12")
    slurm.answers("sbatch", "15;big\n")
    assert call(run_dir, 75) == 0
    assert slurm.calls[-1] == f"sbatch --parsable {run_dir.job_script}"
    job = record.read(run_dir)
    assert (job.job_id, job.earlier_ids, job.cluster) == ("15", ("12",), "big")
    assert [each.step for each in job.requeues] == [340]
    err = capsys.readouterr().err
    assert "presently disabled" in err
    assert "submitted as job 15, to continue from step 340" in err


def test_a_job_that_may_not_be_requeued_is_submitted_at_once(run_dir, slurm):
    checkpoint(run_dir, 340)
    allows(slurm, may_requeue="0")
    slurm.answers("sbatch", "15\n")
    call(run_dir, 75)
    assert "scontrol requeue 12" not in slurm.calls
    assert record.read(run_dir).job_id == "15"


def test_where_both_are_refused_it_says_so_and_records_nothing(run_dir, slurm, capsys):
    checkpoint(run_dir, 340)
    refuses(slurm, "Access denied")
    slurm.fails("sbatch", "sbatch: error: QOSMaxSubmitJobPerUserLimit")
    assert call(run_dir, 75) == 0
    assert record.read(run_dir) == JOB
    err = capsys.readouterr().err
    assert "Access denied" in err
    assert "QOSMaxSubmit" in err


def test_what_slurm_says_of_this_job_is_not_handed_on_to_the_next(run_dir, slurm, monkeypatch):
    checkpoint(run_dir, 340)
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "4000")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    allows(slurm, may_requeue="0")
    slurm.does("sbatch", "env > environ; echo 15")
    call(run_dir, 75)
    handed = (slurm.folder / "environ").read_text().splitlines()
    assert [line for line in handed if line.startswith("SLURM_")] == ["SLURM_CONF=/etc/slurm.conf"]


def test_a_script_that_was_submitted_by_hand_is_known_by_its_new_number(
    run_dir, slurm, monkeypatch
):
    checkpoint(run_dir, 340)
    monkeypatch.setenv(env.JOB_ID, "20")
    call(run_dir, 75)
    job = record.read(run_dir)
    assert (job.job_id, job.earlier_ids) == ("20", ("12",))
    assert slurm.calls[-1] == "scontrol requeue 20"


def test_a_job_that_is_being_cancelled_is_not_queued_again(run_dir, slurm):
    checkpoint(run_dir, 340)
    slurm.answers("scontrol", RUNS_NOW.format(requeue=1, out="").replace("RUNNING", "CANCELLED"))
    call(run_dir, 75)
    assert slurm.calls == ["scontrol show job -o 12"]


def test_after_a_lost_node_the_job_goes_on_without_it(run_dir, slurm, capsys):
    checkpoint(run_dir, 340)
    ends(run_dir, LOST)
    allows(slurm, out="node7")
    slurm.answers("sbatch", "")
    assert call(run_dir, 1) == 0
    assert slurm.calls == [
        "scontrol show job -o 12",
        f"sbatch --parsable --exclude=node7,node2 --test-only {run_dir.job_script}",
        "scontrol requeue 12",
        "scontrol update JobId=12 ExcNodeList=node7,node2",
    ]
    assert record.read(run_dir).requeues[0].why == "node-lost"
    assert "from step 340, without node7, node2" in capsys.readouterr().err


def test_a_lost_node_is_kept_where_the_others_would_not_do(run_dir, slurm):
    checkpoint(run_dir, 340)
    ends(run_dir, LOST)
    slurm.fails("sbatch", "allocation failure: Requested node configuration is not available")
    call(run_dir, 1)
    assert slurm.calls[-1] == "scontrol requeue 12"


def test_a_job_that_is_submitted_again_leaves_the_lost_node_out(run_dir, slurm):
    checkpoint(run_dir, 340)
    ends(run_dir, LOST)
    refuses(slurm, "disabled")
    slurm.answers("sbatch", "", "15\n")
    call(run_dir, 1)
    assert slurm.calls[-1] == f"sbatch --parsable --exclude=node2 {run_dir.job_script}"


def test_on_node_loss_fail_leaves_it_alone(run_dir, slurm, capsys):
    checkpoint(run_dir, 340)
    ends(run_dir, LOST)
    record.write(run_dir, replace(JOB, on_node_loss="fail"))
    call(run_dir, 1)
    assert not any("requeue" in words for words in slurm.calls)
    assert capsys.readouterr().err == ""


def test_a_second_start_without_a_later_checkpoint_is_the_last(run_dir, slurm, capsys):
    checkpoint(run_dir, 340)
    record.write(run_dir, replace(JOB, requeues=(Requeue(340, 5, "unfinished"),) * 2))
    assert call(run_dir, 75) == 0
    assert not any("requeue" in words for words in slurm.calls)
    err = capsys.readouterr().err
    assert (
        "the last 2 starts have saved nothing new: the job is not queued again, it would go round for ever"
        in err
    )
    assert "3 starts, last checkpoint: step 340" in err
    assert "--time" in err
    assert "--grace-s" in err


UNFINISHED, NODE_LOST = "unfinished", "node-lost"


@pytest.mark.parametrize(
    ("status", "earlier", "last_step", "goes_on"),
    [
        (75, [], 10, True),
        (75, [(10, UNFINISHED)], 20, True),
        (75, [(10, UNFINISHED), (20, UNFINISHED)], 20, True),  # preempted early, once
        (75, [(10, UNFINISHED), (20, UNFINISHED), (20, UNFINISHED)], 20, False),
        (75, [(20, NODE_LOST)], 20, True),
        (75, [(20, NODE_LOST), (20, NODE_LOST)], 20, False),
        (1, [(20, NODE_LOST)], 20, True),
        (1, [(20, NODE_LOST), (20, NODE_LOST)], 20, False),
        (1, [(10, NODE_LOST), (20, NODE_LOST)], 20, True),
        (1, [(20, NODE_LOST), (20, NODE_LOST)], 30, True),
    ],
)
def test_what_counts_as_progress(status, earlier, last_step, goes_on):
    job = replace(JOB, requeues=tuple(Requeue(step, 1, why) for step, why in earlier))
    history = History(outcome=Outcome(status, (LOST,) if status == 1 else ()), steps=5)
    decision = requeue.decide(
        status, job=job, history=history, last_step=last_step, nodelist="node[1-2]"
    )
    assert bool(decision.why) is goes_on
    assert (decision.finding is None) is goes_on


@pytest.mark.parametrize(
    ("steps", "earlier", "goes_on"),
    [
        (12, [False, False], True),
        (None, [False, False], True),
        (0, [False], True),
        (0, [False, False], False),
        (0, [False, True], True),  # the start before had trained
        (0, [True, True, False], False),
    ],
)
def test_a_script_that_keeps_its_checkpoints_elsewhere_is_taken_at_its_word_if_it_trained(
    steps, earlier, goes_on
):
    job = replace(JOB, requeues=tuple(Requeue(0, 1, UNFINISHED, trained) for trained in earlier))
    decision = requeue.decide(
        75, job=job, history=History(steps=steps), last_step=None, nodelist=""
    )
    assert bool(decision.why) is goes_on
    assert decision.elsewhere is (steps != 0)


@pytest.mark.parametrize(
    ("earlier", "last_step", "words"),
    [
        ([0, 0], None, "all 3 starts have saved nothing new"),
        ([10, 20, 20], 20, "the last 2 starts have saved nothing new"),
    ],
)
def test_it_is_told_how_many_starts_made_no_progress(earlier, last_step, words):
    job = replace(JOB, requeues=tuple(Requeue(step, 1, UNFINISHED) for step in earlier))
    decision = requeue.decide(
        75, job=job, history=History(steps=0), last_step=last_step, nodelist=""
    )
    assert words in decision.finding.what


STOPPED, BROKE = Outcome(143), Outcome(1, (FAILED,))


@pytest.mark.parametrize(
    ("status", "history", "earlier", "why"),
    [
        (143, History(), 0, UNFINISHED),
        (143, History(steps=0, outcome=STOPPED), 0, UNFINISHED),
        (143, History(steps=0, outcome=STOPPED), 1, UNFINISHED),
        (143, History(steps=0, outcome=STOPPED), 2, ""),
        (143, History(), 2, ""),
        (143, History(steps=3, outcome=STOPPED), 0, ""),
        (143, History(steps=0, outcome=BROKE), 0, ""),
        (137, History(steps=0), 0, ""),
        (1, History(steps=0), 0, ""),
    ],
)
@pytest.mark.parametrize("last_step", [None, 20])
def test_a_stop_before_the_first_step_is_not_the_end(status, history, earlier, why, last_step):
    job = replace(JOB, requeues=(Requeue(last_step or 0, 1, UNFINISHED),) * earlier)
    decision = requeue.decide(status, job=job, history=history, last_step=last_step, nodelist="")
    assert decision.why == why
    assert not decision.elsewhere


def test_a_job_that_was_preempted_while_it_started_is_queued_again(run_dir, slurm):
    run_events.start(run_dir.events(0))
    run_events.outcome(run_dir.events(0), 143)
    assert call(run_dir, 143) == 0
    assert slurm.calls[-1] == "scontrol requeue 12"


UNSURE = "slurm_requeue error: Socket timed out on send/recv operation"


def silent(slurm, monkeypatch, *, then, text=UNSURE):
    monkeypatch.setattr(requeue, "_PAUSE_S", 0.01)
    show = RUNS_NOW.format(requeue=1, out="")
    slurm.does(
        "scontrol", f"case $1 in show) echo '{show}';; requeue) echo '{text}' >&2; exit 1;; esac"
    )
    slurm.answers("squeue", *then)
    slurm.answers("sbatch", "15\n")


@pytest.mark.parametrize(
    "state", ["PENDING", "COMPLETING"]
)  # the latter while this script has not ended yet
def test_a_time_out_may_hide_that_the_job_is_queued_already(
    run_dir, slurm, monkeypatch, capsys, state
):
    checkpoint(run_dir, 340)
    silent(slurm, monkeypatch, then=[f"12|{state}||N/A|BeginTime\n"])
    assert call(run_dir, 75) == 0
    assert slurm.calls.count("scontrol requeue 12") == 1
    assert not any(words.startswith("sbatch") for words in slurm.calls)
    assert (
        capsys.readouterr().err == "paceline: job 12 is queued again, to continue from step 340\n"
    )
    assert len(record.read(run_dir).requeues) == 1


@pytest.mark.parametrize("text", [UNSURE, "Unable to contact slurm controller (connect failure)"])
def test_without_an_answer_no_second_job_is_submitted(run_dir, slurm, monkeypatch, capsys, text):
    checkpoint(run_dir, 340)
    silent(slurm, monkeypatch, then=["12|RUNNING|node1|N/A|None\n"], text=text)
    assert call(run_dir, 75) == 0
    assert slurm.calls.count("scontrol requeue 12") == 3
    assert not any(words.startswith("sbatch") for words in slurm.calls)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "does not say whether job 12 is queued again" in err
    assert text in err
    assert f"sbatch {run_dir.job_script}" in err
    assert record.read(run_dir) == JOB


@pytest.mark.parametrize(
    ("states", "calls"),
    [
        (
            ["12|RUNNING|node1|N/A|None\n", "12|PENDING||N/A|BeginTime\n"],
            [],
        ),  # queued by the first question
        (["12|RUNNING|node1|N/A|None\n", "12|CANCELLED|node1|N/A|None\n"], []),
        (["12|RUNNING|node1|N/A|None\n"], ["sbatch"]),
    ],
)
def test_a_refusal_after_a_time_out_counts_only_while_the_job_runs(
    run_dir, slurm, monkeypatch, states, calls
):
    checkpoint(run_dir, 340)
    silent(slurm, monkeypatch, then=states)
    show = RUNS_NOW.format(requeue=1, out="").replace("RUNNING", "CANCELLED")
    first = f"case $1 in show) echo '{RUNS_NOW.format(requeue=1, out='')}';; esac"
    slurm.does(
        "scontrol",
        first,
        f"echo '{UNSURE}' >&2; exit 1",
        f"case $1 in show) echo '{show}';; *) echo 'Invalid job state' >&2; exit 1;; esac",
    )
    call(run_dir, 75)
    assert [words.split()[0] for words in slurm.calls if words.startswith("sbatch")] == calls


def test_a_command_that_hangs_is_no_refusal(run_dir, slurm, monkeypatch):
    checkpoint(run_dir, 340)
    monkeypatch.setattr(requeue, "_ANSWER_S", 0.3)
    silent(slurm, monkeypatch, then=["12|RUNNING|node1|N/A|None\n"])
    show = RUNS_NOW.format(requeue=1, out="")
    slurm.does("scontrol", f"case $1 in show) echo '{show}';; requeue) sleep 5;; esac")
    call(run_dir, 75)
    assert not any(words.startswith("sbatch") for words in slurm.calls)


@pytest.mark.parametrize(("steps", "why"), [(0, NODE_LOST), (None, NODE_LOST), (30, "")])
def test_a_node_that_is_lost_before_the_first_step_costs_nothing(steps, why):
    history = History(outcome=Outcome(1, (LOST,)), steps=steps)
    decision = requeue.decide(1, job=JOB, history=history, last_step=None, nodelist="node[1-2]")
    assert decision.why == why
    assert (decision.finding is None) == bool(why)


@pytest.mark.parametrize(
    ("where", "nodelist", "names"),
    [
        ("node 1 (node2)", "node[1-2]", ("node2",)),
        (
            "node 0 (rack7n3.site.org)",
            "rack[1,7]n[3-4]",
            ("rack7n3",),
        ),  # by its name, whatever the ranks' order
        ("node 1 (vm)", "node[1-2]", ("node2",)),  # names that Slurm does not use: by the place
        ("node 1", "node[1-2]", ("node2",)),
        ("node 0 (node1), node 2 (node3)", "node[1-3]", ("node1", "node3")),
        ("node1 (the host of the run's store)", "node[1-2]", ()),
        ("node 9 (vm)", "node[1-2]", ()),
        ("node 1 (vm)", "node[1-", ()),
    ],
)
def test_slurms_name_of_a_lost_node(where, nodelist, names):
    lost = Outcome(1, (replace(LOST, where=where),)).lost
    assert requeue._names(lost, nodelist) == names


def test_the_launchers_words_for_a_lost_node_are_understood():
    assert Outcome(1, (LOST,)).lost == ((1, "node2"),)
    both = root_cause.judge([], lost=["node 1 (node2)", "node 2"]).finding
    assert Outcome(1, (both,)).lost == ((1, "node2"), (2, ""))


def test_what_an_earlier_start_told_does_not_count(run_dir, slurm):
    checkpoint(run_dir, 340)
    ends(run_dir, LOST)
    later = events.read_history(run_dir.root).outcome.time_ns + 1
    record.write(run_dir, replace(JOB, requeues=(Requeue(340, later, "node-lost"),)))
    call(run_dir, 1)
    assert "scontrol requeue 12" not in slurm.calls


def test_outside_of_a_job_it_says_what_it_is_for(run_dir, slurm, monkeypatch, capsys):
    monkeypatch.delenv(env.JOB_ID)
    assert call(run_dir, 75) == 0
    assert "for job scripts" in capsys.readouterr().err
    assert slurm.calls == []


def test_a_fault_of_its_own_costs_a_line_and_not_the_job(run_dir, slurm, monkeypatch, capsys):
    def breaks(*_, **__):
        raise RuntimeError("odd")

    monkeypatch.setattr(requeue, "decide", breaks)
    assert call(run_dir, 75) == 0
    assert (
        capsys.readouterr().err == "paceline: the job cannot be queued again: RuntimeError: odd\n"
    )


def test_without_slurms_commands_it_says_so(run_dir, slurm, capsys, monkeypatch):
    checkpoint(run_dir, 340)
    for name in canned.SLURM:
        (slurm.folder / name).unlink()
    monkeypatch.setenv("PATH", str(slurm.folder))
    assert call(run_dir, 75) == 0
    assert "command not found" in capsys.readouterr().err


def test_a_run_without_a_record_is_queued_again_too(tmp_path, slurm):
    run_dir = RunDir(tmp_path / "own")
    run_dir.create()
    checkpoint(run_dir, 7)
    call(run_dir, 75)
    assert record.read(run_dir).job_id == "12"
    assert slurm.calls[-1] == "scontrol requeue 12"


def test_a_time_limit_that_is_shorter_than_the_start_is_named(run_dir, slurm, capsys):
    entries = tuple(Requeue(0, 1, "unfinished") for _ in range(2))
    record.write(run_dir, replace(JOB, requeues=entries))
    ends(run_dir, status=75)
    started = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 65))
    state = RUNS_NOW.format(requeue=1, out="") + f"StartTime={started} TimeLimit=00:02:00 "
    slurm.does("scontrol", f"[ $1 != show ] || echo '{state}'")
    run_dir.events(0).write_text(run_dir.events(0).read_text().replace('"steps": 30', '"steps": 0'))
    assert call(run_dir, 75) == 0
    err = capsys.readouterr().err
    assert "saved nothing new: the job is not queued again" in err
    assert "of its time limit, --time 00:02:00" in err
    assert "this start ran for 00:01:0" in err

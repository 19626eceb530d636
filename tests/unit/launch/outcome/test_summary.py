"""The summary of a run that succeeded: counters in, figures and three lines out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.errors import Finding
from paceline.launch.monitor.stage_times import StepTime, Suspect
from paceline.launch.outcome.report import render, summarise


def pulse(
    rank, *, steps=101, seconds=10.0, data_s=1.0, own_s=5.0, host="node-a", never_grouped=False
):
    return {
        "rank": rank,
        "host": host,
        "steps": steps,
        "seconds": seconds,
        "data_s": data_s,
        "own_s": own_s,
        "never_grouped": never_grouped,
    }


def test_figures_of_equal_ranks():
    assert summarise([pulse(0), pulse(1)], seconds=12.345) == {
        "ranks": 2,
        "seconds": 12.35,
        "steps": 101,
        "steps_per_s": 10.0,
        "data_share": 0.1,
        "slowest_rank": 0,
        "slowest_host": "node-a",
        "slowest_ratio": 1.0,
        "step": None,
        "ungrouped": False,
        "checks": 0,
        "checked_step": 0,
    }


def test_the_slowest_is_the_one_that_works_longest_outside_backward():
    """All ranks step at the same pace, because they wait for each other inside backward."""
    ranks = [pulse(0), pulse(1), pulse(2, own_s=9.0, host="node-b"), pulse(3)]
    found = summarise(ranks, seconds=11)
    assert (found["slowest_rank"], found["slowest_host"]) == (2, "node-b")
    assert found["slowest_ratio"] == pytest.approx(1.8)


def test_a_rank_that_waits_for_data_does_not_move_the_median():
    found = summarise([pulse(0, data_s=9.0), pulse(1), pulse(2)], seconds=11)
    assert found["data_share"] == 0.1


@pytest.mark.parametrize(
    ("grouped", "is_said"),
    [((False, False), True), ((False, True), False), ((True, True), False), ((False,), False)],
)
def test_ranks_that_trained_apart_are_said_to_have_done_so(grouped, is_said):
    ranks = [pulse(rank, never_grouped=not value) for rank, value in enumerate(grouped)]
    lines = render(summarise(ranks, seconds=11), run_dir="runs/x")
    assert any("each trained a model of its own" in line for line in lines) == is_said


@pytest.mark.parametrize(
    "counters",
    [
        [],
        [pulse(0, steps=0, seconds=0.0)],
        [pulse(0, steps=1, seconds=0.0), pulse(1, steps=1, seconds=0.0)],
        [pulse(0, steps=2, seconds=0.0)],
    ],
)
def test_without_two_steps_there_are_no_rates(counters):
    assert summarise(counters, seconds=1.0) == {"ranks": len(counters), "seconds": 1.0, "steps": 0}


def test_ranks_that_do_not_train_are_left_out_of_the_rates():
    found = summarise([pulse(0), pulse(1, steps=0, seconds=0.0, data_s=0.0, own_s=0.0)], seconds=11)
    assert (found["ranks"], found["steps"], found["steps_per_s"], found["slowest_rank"]) == (
        2,
        101,
        10.0,
        0,
    )


def test_ranks_without_time_of_their_own_are_equally_slow():
    assert summarise([pulse(0, own_s=0.0), pulse(1, own_s=0.0)], seconds=11)["slowest_ratio"] == 1.0


STEP = StepTime(
    seconds=0.2,
    stages={"optimizer": 0.01, "other": 0.0005, "data": 0.04, "forward": 0.03, "backward": 0.06},
    exchange=0.02,
    waiting=0.0395,
    waited_for={1: 0.9, 0: 0.1},
    suspects=[Suspect(rank=1, stage="data", seconds=0.039, errors=50.0)],
    steps=64,
    ranks=2,
)


def test_a_step_is_divided_and_the_late_rank_is_named():
    figures = summarise([pulse(0), pulse(1, host="node-b")], seconds=12.3, step_time=STEP)
    assert render(figures, run_dir="runs/x")[1:3] == [
        "step 200 ms: data 20%, compute 50%, exposed communication 10%, waiting for rank 1 (node-b) 20%",
        "rank 1 on node-b takes 39 ms longer a step than the others: waiting for its DataLoader",
    ]
    assert figures["step"]["named"]["rank"] == 1


def test_without_proof_nobody_is_named():
    weak = replace(STEP, suspects=[replace(STEP.suspects[0], errors=2.0)])
    figures = summarise([pulse(0), pulse(1)], seconds=12.3, step_time=weak)
    lines = render(figures, run_dir="runs/x")
    assert lines[1].endswith("waiting for the last rank 20%")
    assert len(lines) == 3
    assert figures["step"]["named"] is None


def stages(**values):
    return {"optimizer": 0.0, "other": 0.0, "forward": 0.01, "backward": 0.02, **values}


def test_a_run_that_waits_for_data_is_pointed_to_tune():
    alone = replace(
        STEP, stages=stages(data=0.07), seconds=0.1, exchange=0.0, waiting=0.0, suspects=(), ranks=1
    )
    figures = summarise([pulse(0)], seconds=12.3, step_time=alone)
    assert render(figures, run_dir="x", script="train.py --lr 1")[1:3] == [
        "step 100 ms: data 70%, compute 30%",
        "waiting for data 70% of a step: paceline tune train.py --lr 1",
    ]


@pytest.mark.parametrize(
    ("data_s", "scale"),
    [(0.029, 1.0), (0.0, 1.0), (0.09, 0.01)],  # less than it computes; none; below a millisecond
)
def test_a_run_that_does_not_wait_for_data_is_not(data_s, scale):
    parts = {stage: scale * seconds for stage, seconds in stages(data=data_s).items()}
    alone = replace(
        STEP,
        stages=parts,
        seconds=sum(parts.values()),
        exchange=0.0,
        waiting=0.0,
        suspects=(),
        ranks=1,
    )
    figures = summarise([pulse(0)], seconds=12.3, step_time=alone)
    assert "tune" not in " ".join(render(figures, run_dir="x"))


def test_a_hint_takes_the_place_of_the_short_advice():
    alone = replace(
        STEP, stages=stages(data=0.07), seconds=0.1, exchange=0.0, waiting=0.0, suspects=(), ranks=1
    )
    figures = summarise([pulse(0)], seconds=12.3, step_time=alone)
    hint = Finding("data-bound", "waiting for data 70% of a step", severity="hint")
    lines = render(figures, run_dir="x", script="train.py", hint=hint)
    assert lines[2:] == [hint.render(), "run folder x"]


def test_a_single_rank_communicates_with_nobody():
    alone = replace(STEP, waiting=0.0, waited_for={}, suspects=(), ranks=1, seconds=0.1605)
    figures = summarise([pulse(0)], seconds=12.3, step_time=alone)
    assert render(figures, run_dir="x")[1] == "step 160 ms: data 25%, compute 75%"


@pytest.mark.parametrize(
    ("counters", "lines"),
    [
        (
            [pulse(0), pulse(1, own_s=6.0, host="node-b")],
            [
                "done: 2 ranks, 101 steps in 12.3 s, 10.0 steps/s a rank",
                "waiting for data: 10.0% of the time · slowest rank: 1 on node-b, 1.09x the median outside backward",
                "run folder runs/x",
            ],
        ),
        (
            [pulse(0)],
            [
                "done: 1 rank, 101 steps in 12.3 s, 10.0 steps/s a rank",
                "waiting for data: 10.0% of the time",
                "run folder runs/x",
            ],
        ),
        (
            [pulse(0, steps=0), pulse(1, steps=0)],
            ["done: 2 ranks in 12.3 s, no optimizer steps seen", "run folder runs/x"],
        ),
    ],
    ids=["two ranks", "one rank", "no steps"],
)
def test_three_lines_at_the_end(counters, lines):
    assert render(summarise(counters, seconds=12.3), run_dir="runs/x") == lines


def test_what_no_dataloader_shows_counts_as_forward_and_is_said():
    stages = {"optimizer": 0.01, "other": 0.0, "data": 0.0, "forward": 0.5, "backward": 0.2}
    late = Suspect(1, "forward", 0.1, 50.0)
    unseen = replace(STEP, stages=stages, seconds=0.9, suspects=(late,))
    lines = render(
        summarise([pulse(0), pulse(1, host="node-b")], seconds=12.3, step_time=unseen),
        run_dir="runs/x",
    )
    assert (
        "rank 1 on node-b takes 100 ms longer a step than the others: loading its batches or its forward"
        in lines
    )
    assert (
        "no DataLoader was seen: loading batches, and what follows a step, counts as forward"
        in lines
    )

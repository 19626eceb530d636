"""What ``paceline top`` shows of the speed that a launcher has written."""

import pytest

from paceline.measure import speed, top

STEP = {
    "seconds": 0.2,
    "stages": {"optimizer": 0.01, "other": 0.0, "data": 0.04, "forward": 0.03, "backward": 0.06},
    "exchange": 0.02,
    "waiting": 0.04,
    "waited_for": {"1": 1.0},
    "named": {"rank": 1, "host": "node-b", "stage": "data", "seconds": 0.04, "errors": 50.0},
    "suspects": [],
    "timed_steps": 64,
}


def rank(number, *, own_s=10.0, host="node-a", **values):
    counts = {"steps": 101, "batches": 101, "seconds": 20.0, "data_s": 2.0, "own_s": own_s}
    loop = {"loops": 2, "open_batches": 100, "loop_length": 500}
    return {"rank": number, "host": host, **counts, **loop, "loss": 0.5, **values}


def description(**values):
    return {
        "version": 1,
        "time_s": 1000.0,
        "attempt": 0,
        "steps": 101,
        "steps_per_s": 5.0,
        "loss": 0.5,
        "samples_per_batch": 64,
        "tokens_per_batch": 0,
        "batches_per_step": 1.0,
        "step": STEP,
        "ranks": [rank(0), rank(1, own_s=14.0, host="node-b")],
        "gpus": [],
        **values,
    }


def figures(*, now_s=1003.0, outcome="", **values):
    return {**speed.with_rates(description(**values), now_s=now_s), "outcome": outcome}


def lines(**values):
    return top.render(figures(**values), name="run-1")


def test_progress_rates_and_the_rest_of_the_loop():
    assert lines()[:3] == [
        "run-1 · 2 ranks",
        "101 steps · 5 steps/s · 320 samples/s · loss 0.5",
        "epoch: 100 of 500 batches, 80 s left",
    ]


def test_gradient_accumulation_counts_all_micro_batches():
    rates = figures(batches_per_step=4.0, tokens_per_batch=1024)
    assert rates["samples_per_s"] == 64 * 20
    assert rates["tokens_per_s"] == 1024 * 20
    assert rates["loop_left_s"] == pytest.approx(20)


def test_a_step_is_shown_in_parts_with_the_late_rank():
    text = "\n".join(lines())
    assert "step 200 ms" in text
    assert "  data            20%  ████" in text
    assert "  waiting         20%  ████" in text
    assert "rank 1 on node-b takes 40 ms longer a step than the others: waiting for its" in text
    assert max(map(len, lines())) <= 80


def test_the_rank_with_most_work_of_its_own_is_first():
    table = [line.split()[:2] for line in lines() if line.endswith(" ms") and "node-" in line]
    assert table == [["1", "node-b"], ["0", "node-a"]]


def test_of_many_ranks_ten_are_shown():
    text = "\n".join(lines(ranks=[rank(number) for number in range(64)]))
    assert "and 54 more, which need less" in text


@pytest.mark.parametrize(
    ("values", "first"),
    [
        ({}, "run-1 · 2 ranks"),
        ({"attempt": 2}, "run-1 · 2 ranks · attempt 2"),
        (
            {"now_s": 1300.0},
            "run-1 · 2 ranks · written 5 min ago: the launcher does not write any more",
        ),
        ({"now_s": 1300.0, "outcome": "failed"}, "run-1 · 2 ranks · failed 5 min ago"),
    ],
)
def test_the_first_line_says_whether_the_run_lives(values, first):
    assert lines(**values)[0] == first


def test_gpus_are_listed():
    gpu = {"host": "node-a", "index": 3, "utilization": 0.97}
    text = "\n".join(lines(gpus=[{**gpu, "memory_used": 61.2e9, "memory_total": 80e9}]))
    assert "97%" in text
    assert "57 GiB of 74.5 GiB" in text


def test_of_many_gpus_the_idlest_are_listed():
    loads = [
        {"host": "node-a", "index": index, "utilization": 0.01 * index if index else None}
        | {"memory_used": None, "memory_total": None}
        for index in range(99, -1, -1)
    ]
    listed = [line.split()[0] for line in lines(gpus=loads) if " node-a " in line]
    assert listed[-16:] == [str(index) for index in range(1, 17)]


def test_lines_fit_into_80_columns():
    gpu = {"host": "node-a" * 5, "index": 15, "utilization": 1.0}
    large = lines(
        steps=12_345_678,
        samples_per_batch=10**9,
        tokens_per_batch=10**12,
        ranks=[rank(1023, host="node-a" * 5, steps=12_345_678)],
        gpus=[{**gpu, "memory_used": 180.2e9, "memory_total": 192e9}],
    )
    assert max(map(len, large)) <= 80


def test_what_steps_wait_for_is_shown_with_the_command_to_paste():
    slow = {**STEP, "stages": {**STEP["stages"], "data": 0.2}, "seconds": 0.36, "named": None}
    values = description(step=slow)
    shown = speed.with_rates(values, now_s=1003.0, script="train.py")
    assert [finding["name"] for finding in shown["findings"]] == ["data-bound"]
    rendered = top.render({**shown, "outcome": ""}, name="run-1")
    assert "hint RUN049 data-bound: waiting for data 56% of a step" in rendered
    assert "  fix: paceline tune train.py" in rendered
    assert figures()["findings"] == []

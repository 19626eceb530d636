"""What ``paceline tune`` prints: the figures, the best setting with its reason, the line to paste."""

from dataclasses import replace

import pytest

from paceline.launch.probe.loader_commands import LoaderFacts, LoaderSetting
from paceline.measure.tune import answer, search
from paceline.measure.tune.answer import TuningAnswer
from paceline.measure.tune.measured import Measured, TrialLimits

WRITTEN = LoaderSetting(0, 0, False, 2)
FACTS = LoaderFacts(WRITTEN, False, 32, 1 << 20, is_stream=False, on_gpu=False, place="train.py:14")
TWO = search.with_workers(WRITTEN, 2)


def steady(seconds):
    return [[seconds, 1.01 * seconds, 0.99 * seconds] * 2] * 3


def answered(settings, *, memory=0.01, facts=FACTS, **values):
    measured = Measured({2: steady(memory)} if memory else {}, settings)
    return TuningAnswer("train.py", facts, 1, TrialLimits(2), "CPU affinity", measured, **values)


FASTER = {WRITTEN: steady(0.1), TWO: steady(0.04)}


def test_the_whole_answer():
    text = answered(FASTER, worker_start_s=0.31).render()
    assert text.splitlines() == [
        "train.py on 1 rank: batches of 32 samples a rank, 2 CPUs a rank (CPU affinity)",
        "",
        "                                             samples/s   95 % interval",
        "one batch in memory, no loading                  3,200   3,168 to 3,232",
        "no workers, as written                             320   317 to 323",
        "2 workers                                          800   792 to 808  best",
        "",
        "waiting for data, as written: 90% (90% to 90%) of a step",
        "best: 2 workers, 2.50 times (2.48 to 2.53) as fast as the script's settings",
        "why: as many workers as CPUs allow (2 a rank)",
        "",
        "train.py:14: DataLoader(..., num_workers=2, persistent_workers=True)",
        "note: persistent_workers=True saves 0.3 s for each epoch, until new workers have read a batch",
        "note: with the best setting 75% (75% to 75%) of a step still waits for data: read cheaper samples, or give each rank more CPUs",
    ]


def test_figures_of_the_final_rounds_are_marked():
    given = answered({**FASTER, search.with_workers(WRITTEN, 1): steady(0.05)})
    given.measured.final.update({TWO: steady(0.04), WRITTEN: steady(0.1)})
    written, one, two = given.render().splitlines()[4:7]
    assert (written.split("  ")[-1], two.split("  ")[-1]) == ("side by side with the best", "best")
    assert one.endswith("646")


def test_a_script_that_does_not_wait_has_nothing_to_tune():
    text = answered({WRITTEN: steady(0.0102)}).render()
    assert "data is not what holds this script back: there is nothing to tune" in text
    assert "best" not in text
    assert answered({WRITTEN: steady(0.0102)}).to_json()["paste"] == []


def test_a_setting_that_is_not_proven_to_be_faster_is_not_named():
    noisy = {WRITTEN: [[0.05, 0.1, 0.2]] * 2, TWO: [[0.04, 0.098, 0.21]] * 3}
    text = answered(noisy).render()
    assert "best: the script's settings; no other setting is proven to be clearly faster" in text
    assert "intervals are wide" in text
    assert "DataLoader(" not in text


def test_threads_are_named_where_data_is_not_the_brake():
    one = replace(WRITTEN, threads=1)
    measured = answered({WRITTEN: steady(0.0101), one: steady(0.005)})
    assert measured.is_worth_tuning
    assert measured.to_json()["data_is_bottleneck"] is False
    assert "best: no workers, 1 thread, 2.02 times" in measured.render()
    assert "data is not what holds this script back, but fewer threads are" in measured.render()
    assert "\ntorch.set_num_threads(1)" in measured.render()


def test_a_batch_in_memory_that_is_slower_than_loading_decides_nothing():
    measured = answered({WRITTEN: steady(0.005)})
    assert measured.to_json()["data_is_bottleneck"] is None
    assert "that is uncertain after several tries" in measured.render()
    assert "nothing to tune" not in measured.render()


def test_a_dataset_without_a_script_has_no_steps():
    text = answered(FASTER, memory=None).render()
    assert "waiting" not in text
    assert "no workers, the defaults" in text
    assert answered(FASTER, memory=None).to_json()["data_is_bottleneck"] is None


def test_what_did_not_work_and_what_was_not_tried_is_said():
    measured = answered({WRITTEN: steady(0.1)}, cut_short="the time was up: --seconds 120")
    measured.measured.failures[TWO] = "RuntimeError: cannot be used in a worker"
    text = measured.render()
    assert "  2 workers: RuntimeError: cannot be used in a worker" in text
    assert "note: the time was up: --seconds 120" in text


def test_a_stream_without_workers_says_why_none_were_tried():
    facts = replace(FACTS, is_stream=True)
    assert (
        "workers would each read all of it"
        in answered({WRITTEN: steady(0.1)}, facts=facts).render()
    )


@pytest.mark.parametrize(
    ("maker", "changes", "lines"),
    [
        ("", {"num_workers": 4}, ["DataLoader(..., num_workers=4, persistent_workers=True)"]),
        (
            "",
            {"num_workers": 4, "prefetch_factor": 4, "pin_memory": True},
            [
                "DataLoader(..., num_workers=4, persistent_workers=True, prefetch_factor=4,"
                " pin_memory=True)"
            ],
        ),
        (
            "paceline",
            {"num_workers": 4},
            ["session.loader(..., num_workers=4, persistent_workers=True)"],
        ),
        (
            "transformers",
            {"num_workers": 4},
            [
                "TrainingArguments(..., dataloader_num_workers=4, dataloader_persistent_workers=True)"
            ],
        ),
        (
            "",
            {"num_workers": 1, "threads": 1},
            ["DataLoader(..., num_workers=1, persistent_workers=True)", "torch.set_num_threads(1)"],
        ),
        ("", {"pin_memory": True}, ["DataLoader(..., num_workers=0, pin_memory=True)"]),
        ("", {"threads": 1}, ["torch.set_num_threads(1)"]),
        ("", {}, []),
    ],
)
def test_the_lines_to_paste(maker, changes, lines):
    setting = replace(WRITTEN, **changes)
    if setting.num_workers and "prefetch_factor" not in changes:
        setting = replace(setting, prefetch_factor=2)
    facts = replace(FACTS, maker=maker)
    assert answer.paste(facts, setting) == lines


@pytest.mark.parametrize(
    ("written", "changes", "line"),
    [
        (
            {"num_workers": 4, "prefetch_factor": 4},
            {"num_workers": 0, "prefetch_factor": 0},
            "DataLoader(..., num_workers=0, persistent_workers=False, prefetch_factor=None)",
        ),
        (
            {"num_workers": 4, "prefetch_factor": 2},
            {"num_workers": 0, "prefetch_factor": 0},
            "DataLoader(..., num_workers=0, persistent_workers=False)",
        ),
        (
            {"num_workers": 1, "prefetch_factor": 4},
            {"num_workers": 2, "prefetch_factor": 2},
            "DataLoader(..., num_workers=2, persistent_workers=True, prefetch_factor=2)",
        ),
    ],
)
def test_what_torch_would_refuse_without_workers_is_taken_back(written, changes, line):
    setting = replace(WRITTEN, **written)
    facts = replace(FACTS, setting=setting, persistent_workers=True)
    assert answer.paste(facts, replace(setting, **changes)) == [line]


def test_memory_that_the_script_pins_itself_is_not_said_again():
    pinned = replace(WRITTEN, pin_memory=True)
    facts = replace(FACTS, setting=pinned)
    setting = search.with_workers(pinned, 2)
    assert answer.describe(setting, pinned) == "2 workers"
    assert answer.paste(facts, setting) == [
        "DataLoader(..., num_workers=2, persistent_workers=True)"
    ]


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({}, ["train.py:14: DataLoader(..., num_workers=2, persistent_workers=True)"]),
        ({"place": ""}, ["DataLoader(..., num_workers=2, persistent_workers=True)"]),
        (
            {"place": "recipes/image_classification.py:214"},
            [
                "recipes/image_classification.py:214:",
                "  DataLoader(..., num_workers=2, persistent_workers=True)",
            ],
        ),
        # Its line is the one that calls trainer.train().
        (
            {"maker": "transformers"},
            [
                "TrainingArguments(..., dataloader_num_workers=2, dataloader_persistent_workers=True)"
            ],
        ),
    ],
)
def test_the_place_of_the_lines_to_paste(values, lines):
    assert answer.placed(replace(FACTS, **values), TWO) == lines


def test_no_reason_is_given_that_was_not_measured():
    """One process on two CPUs leaves one idle; and nothing is known of workers that were not tried."""
    one_thread = replace(WRITTEN, threads=1)
    given = answered({WRITTEN: steady(0.1), one_thread: steady(0.05)})
    given.measured.busy.update({WRITTEN: 0.3, one_thread: 0.3})
    text = given.render()
    assert "why: other numbers of threads are not faster, and no workers were measured" in text
    assert "storage" not in text
    assert "no workers were measured" in answered({WRITTEN: steady(0.1)}).render()
    given.measured.settings[TWO] = steady(0.2)
    assert "neither workers nor" in answered(given.measured.settings).render()

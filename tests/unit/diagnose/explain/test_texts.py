"""Every known text is answered with its name, also with the labels of launchers before it and among other lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.diagnose.explain import judge
from unit.diagnose.explain.nccl_texts import ALIKE


def known():
    """The name of the finding, the text, and maybe the place, by the name of the case."""
    whole = (Path(__file__).parent / "known-texts.txt").read_text(encoding="utf-8")
    for part in whole.split("\n#### ")[1:]:
        head, _, text = part.partition("\n")
        name, key, *place = head.split(" | ")
        yield key, (name, text.partition("\n%% ")[0].rstrip("\n") + "\n", *place)


TEXTS = dict(known()) | {
    f"nccl {name} {number}": (name, text)
    for name, texts in ALIKE.items()
    for number, text in enumerate(texts)
}
FAULTS = {
    key: case
    for key, case in TEXTS.items()
    if case[0] != "no-error-in-log" and not key.startswith("own-")
}
LABELLED = ('{"log"', "[rank", "[default", "1: ", "[1,3]", "(Ray", "+ srun", "worker-3")
PLAIN = {
    key: case for key, case in FAULTS.items() if not any(label in case[1] for label in LABELLED)
}


def first(text):
    return judge([text]).findings[0]


@pytest.mark.parametrize("key", TEXTS)
def test_a_known_text_is_answered_with_its_name(key):
    name, text, *place = TEXTS[key]
    finding = first(text)
    assert finding.name == name
    assert not place or finding.where == place[0]
    assert finding.evidence or name in ("no-error-in-log", "straggler")


@pytest.mark.parametrize("key", PLAIN)
@pytest.mark.parametrize(
    "label",
    [
        "[default3]:",
        "3: ",
        "[1,3]<stderr>:",
        "node07: ",
        "2026-01-02T03:04:05.678Z ",
        "(Worker pid=77, ip=10.0.0.3) ",
        "\x1b[31m",
    ],
)
def test_a_label_before_each_line_changes_nothing(key, label):
    name, text, *_ = PLAIN[key]
    assert first("\n".join(label + line for line in text.strip("\n").splitlines())).name == name


@pytest.mark.parametrize("key", FAULTS)
def test_noise_around_it_changes_nothing(key):
    name, text, *_ = FAULTS[key]
    noise = "epoch 1: 10%|# | 12/99 [00:01<00:09, 9.1it/s]\rsome warning\nloading weights\n"
    after = "\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    assert first(noise + text + after).name == name


def test_there_are_more_than_a_hundred():
    assert len(TEXTS) >= 100

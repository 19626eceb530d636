"""Evaluations: whole, shared, padded, cut; and figures of a share."""

import pytest

from paceline.measure.verify import samples as evaluations
from verify_records import MIXED, epoch, evaluation, line, one, rank, shared, training, world

PADDED = (range(0, 33, 2), [*range(1, 33, 2), 0])  # 33 samples as 34


def both(shares, printed=(), trained_on=MIXED, **values):
    first, second = (
        rank([epoch(trained_on), evaluation(list(share), **values)], training(), lines)
        for share, lines in zip(shares, (printed, ()), strict=True)
    )
    return world(first, second)


@pytest.mark.parametrize(
    ("recorded", "state", "words"),
    [
        (shared(), "kept", "33 samples, each on one rank"),
        (both(PADDED, scored=True), "broken", "of 33 samples counts 34"),
        (both(PADDED), "not judged", "results may be cut"),
        (both(PADDED, scored=True, trimmed=True), "kept", "drops 1 repeated"),
        (both(PADDED, scored=True, is_session=True), "kept", "Session"),
        (both(PADDED, scored=True, has_ended=False), "not judged", "no whole evaluation"),
        (both((range(33), range(33)), scored=True), "kept", "itself"),
        (both((range(16), range(16, 32)), scored=True), "not judged", "1 samples are not read"),
        (both(PADDED, scored=True, place="train.py:99"), "not judged", "not seen on 1 rank"),
        (world(rank(), rank()), "not judged", "no whole evaluation"),
    ],
)
def test_count(recorded, state, words):
    verdict = evaluations.judge_count(recorded, one())
    assert (verdict.state, words in verdict.reason) == (state, True), verdict


def test_statistics_of_the_training_samples_are_no_score():
    same = {"dataset": "TensorDataset", "dataset_length": 64}
    alone = world(rank([epoch(MIXED), evaluation(range(33), **same)]))
    assert evaluations.judge_count(both(PADDED, scored=True, **same), alone).state == "not judged"


def test_an_evaluation_on_rank_0_alone_is_whole():
    recorded = world(rank([epoch(MIXED), evaluation(range(33))]), rank([epoch(MIXED)]))
    assert evaluations.judge_count(recorded, one()).state == "kept"


@pytest.mark.parametrize(
    ("recorded", "state"),
    [
        (shared(printed=[line()]), "broken"),
        (shared(printed=[line("epoch 1, val_loss: 0.31")]), "broken"),
        (shared(printed=[line("took 3.2 s")]), "not judged"),
        (shared(printed=[line("training loss 0.32")]), "not judged"),
        (shared(printed=[line(combined=True)]), "kept"),
        (both(PADDED, [line()], combined=True), "kept"),
        (both((range(33), range(33)), [line()]), "kept"),
        (shared(), "not judged"),
        (shared(printed=[line(loop=7)]), "not judged"),
    ],
)
def test_figure(recorded, state):
    verdict = evaluations.judge_figure(recorded, one())
    assert verdict.state == state, verdict


def test_the_figure_of_a_share_has_the_line_that_printed_it():
    finding = evaluations.judge_figure(shared(printed=[line()]), one()).finding
    assert finding.name == "evaluation-not-reduced"
    assert finding.where == "train.py:35"
    assert "printed: accuracy 0.91" in finding.evidence
    assert "17 of 33 samples" in finding.what


@pytest.mark.parametrize(
    "text",
    [
        "epoch 3: accuracy 0.9100",
        "val_loss=0.31",
        "Test set: Average loss: 0.0293, Accuracy: 9900/10000 (99%)",
        "[eval] top-1 76.13",
        "val/acc: 91.3%",
        "rmse .52",
    ],
)
def test_a_score_is_known(text):
    assert evaluations.is_score(text)


@pytest.mark.parametrize(
    "text",
    [
        "eval: 100%|##########| 4/4 [00:00<00:00, 311.25it/s]",
        "validation took 3.25 s",
        "evaluated in 12.5ms",
        "eval done, lr 0.1",
        "epoch 2, loss 0.31",
        "latest checkpoint: model-0.5.pt",
        "test data: 3.1 MB",
        "training loss 0.32",
    ],
)
def test_what_is_no_score_is_not_taken_for_one(text):
    assert not evaluations.is_score(text)

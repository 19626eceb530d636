"""What a loop over a loader is doing: idle, evaluating, resuming, training."""

import pytest

from paceline.train.data import BatchTracker, Iteration, Rows
from paceline.train.data.iteration import LoopState
from unit.train.data.loaders import make

CASES = [
    ({}, False, LoopState.TRAINING),
    ({}, True, LoopState.EVALUATING),
    ({"trained": True}, True, LoopState.TRAINING),
    ({"trained_before": True}, True, LoopState.TRAINING),
    ({"resumes": True}, True, LoopState.RESUMING),
    ({"resumes": True, "trained": True}, True, LoopState.TRAINING),
    ({"resumes": True, "with_grad": False}, False, LoopState.EVALUATING),
    ({"trained": True, "with_grad": False}, True, LoopState.EVALUATING),
    ({"trained": True, "live": False}, True, LoopState.IDLE),
]


@pytest.mark.parametrize(("facts", "others_trained", "state"), CASES)
def test_the_state_of_a_loop(facts, others_trained, state):
    tracker = BatchTracker()
    if others_trained:
        other = Iteration()
        tracker.open(other)
        tracker.yields(other, Rows(3, 3), with_grad=True)
        tracker.take()
        tracker.close(other)
    iteration = Iteration(**facts)
    tracker.open(iteration)
    assert tracker.state_of(iteration) is state
    assert state.trains is (state in (LoopState.TRAINING, LoopState.RESUMING))


def test_a_loop_that_resumes_trains_from_its_second_batch_on():
    tracker, seen = BatchTracker(), []
    loader = make(range(9), tracker=tracker, batch_size=3)
    loader.load_state_dict({"epoch": 1, "done": 3, "length": 9})
    for _ in loader:
        seen.append(tracker.state_of(loader.iteration))
    assert seen == [LoopState.RESUMING, LoopState.TRAINING]
    assert tracker.state_of(loader.iteration) is LoopState.IDLE
    assert loader.state_dict() == {"epoch": 2, "done": 0, "length": 9}


def test_a_look_at_the_first_batch_leaves_the_position_alone():
    tracker = BatchTracker()
    loader = make(range(9), tracker=tracker, batch_size=3)
    position = {"epoch": 1, "done": 3, "length": 9}
    loader.load_state_dict(position)
    for batch in loader:
        assert batch.tolist() == [3, 4, 5]
        break
    assert loader.state_dict() == position


def test_a_second_loader_that_resumes_keeps_its_position_before_its_first_backward():
    """Its position shows that it is one of training, whichever loader was trained on first."""
    tracker = BatchTracker()
    for _ in make(range(9), tracker=tracker, batch_size=3):
        tracker.take()
    second = make(range(9), tracker=tracker, batch_size=3)
    position = {"epoch": 1, "done": 3, "length": 9}
    second.load_state_dict(position)
    for _ in second:
        assert second.under_way
        assert second.state_dict() == position
        break

"""What the launcher's main thread and the thread of its node tell each other."""

from __future__ import annotations

import signal

from paceline.launch.monitor.attempt import Attempt
from paceline.launch.run.link import Link, NodeEnd
from paceline.launch.run.stop_request import StopRequest


def attempt():
    return Attempt(number=0, ranks={0: 0}, world_size=1)


def test_what_is_not_reported_stays_as_it_was():
    link = Link()
    link.advance(num_attempts=2)
    before = link.progress
    link.advance(end=NodeEnd(succeeded=True))
    assert (link.progress.num_attempts, link.progress.end) == (2, NodeEnd(succeeded=True))
    assert before.end is None, "a reader keeps the whole of what it has read"


def test_ranks_that_have_got_the_signal_are_those_of_one_attempt():
    first, second = attempt(), attempt()  # a restart for a new node keeps the number
    request = StopRequest(signal.SIGTERM, first)
    assert request.has_reached(first, signal.SIGTERM)
    assert not request.has_reached(first, signal.SIGKILL)
    assert not request.has_reached(second, signal.SIGTERM)
    assert not StopRequest(signal.SIGTERM).has_reached(first, signal.SIGTERM)

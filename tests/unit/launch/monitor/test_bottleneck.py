"""Whether steps wait for data or gradients longer than they compute, and what is advised then."""

from __future__ import annotations

import pytest

from paceline.launch.monitor import bottleneck
from paceline.launch.monitor.bottleneck import COMMUNICATION, DATA, RunFacts

TWO = RunFacts(num_ranks=2, num_hosts=1, num_steps=1000, script="train.py --lr 1")


def described(*, data=0.001, forward=0.01, backward=0.02, exchange=0.001, waiting=0.001):
    """A step as ``stage_times.describe`` describes it; times in seconds."""
    stages = {"optimizer": 0.0, "other": 0.0, "data": data, "forward": forward}
    stages["backward"] = backward
    seconds = sum(stages.values()) + exchange + waiting
    rest = {"exchange": exchange, "waiting": waiting, "waited_for": {}, "named": None}
    return {"seconds": seconds, "stages": stages, **rest, "suspects": [], "timed_steps": 64}


def name_of(step, facts=TWO):
    finding = bottleneck.finding_of(step, facts)
    return finding and finding.name


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (described(data=0.05), DATA),
        (described(exchange=0.05), COMMUNICATION),
        (described(data=0.05, exchange=0.06), COMMUNICATION),
        (described(data=0.06, exchange=0.05), DATA),
        (described(data=0.05, waiting=0.1), DATA),
        (described(), None),
        (described(data=0.029, exchange=0.029), None),  # as long as computing, or shorter
        (described(waiting=0.1), None),  # for a slower rank
        (described(data=0.05, forward=0.06), None),
        (described(exchange=0.05, waiting=0.0), COMMUNICATION),  # ranks that arrive together
        (None, None),
    ],
)
def test_the_longest_wait_is_named_if_it_is_longer_than_computing(step, name):
    assert name_of(step) == name


def test_the_end_of_backward_is_no_exchange_on_one_rank():
    alone = RunFacts(num_ranks=1, num_hosts=1, num_steps=1000)
    assert name_of(described(exchange=0.05, waiting=0.0), alone) is None
    assert name_of(described(data=0.09, exchange=0.05), alone) == DATA


def test_a_wait_of_less_than_a_millisecond_cannot_be_tuned_away():
    short = {"forward": 0.0001, "backward": 0.0002, "exchange": 0.0, "waiting": 0.0001}
    facts = RunFacts(num_ranks=2, num_hosts=1, num_steps=1_000_000)
    assert name_of(described(data=0.0009, **short), facts) is None
    assert name_of(described(data=0.0011, **short), facts) == DATA


@pytest.mark.parametrize(("num_steps", "name"), [(199, None), (201, DATA)])
def test_a_run_that_lost_less_than_ten_seconds_gets_no_hint(num_steps, name):
    facts = RunFacts(num_ranks=2, num_hosts=1, num_steps=num_steps)
    assert name_of(described(data=0.05), facts) == name


def test_the_hint_has_its_figures_and_a_command_to_paste():
    finding = bottleneck.finding_of(described(data=0.071, forward=0.01, backward=0.017), TWO)
    assert finding.severity == "hint"
    assert finding.what == "waiting for data 71% of a step"
    assert finding.evidence == (
        "a step of 100 ms: data 71 ms, compute 27 ms, communication 1 ms, waiting 1 ms",
        "1,000 steps: about 71 s of waiting for data",
    )
    assert finding.fix == "paceline tune train.py --lr 1"


@pytest.mark.parametrize(
    ("num_hosts", "script", "fix"),
    [
        (1, "train.py", "paceline bench train.py"),
        (1, "", "paceline bench SCRIPT"),
        (2, "train.py", "srun paceline bench network"),
    ],
)
def test_between_hosts_the_link_is_measured_first(num_hosts, script, fix):
    facts = RunFacts(num_ranks=2, num_hosts=num_hosts, num_steps=1000, script=script)
    assert bottleneck.finding_of(described(exchange=0.05), facts).fix.startswith(fix)


@pytest.mark.parametrize("step", [described(data=0.05), described(exchange=0.05)])
def test_lines_fit_into_80_columns(step):
    finding = bottleneck.finding_of(step, TWO)
    assert max(map(len, f"paceline: {finding.render()}".splitlines())) <= 80


def waited(*cpu_wait_s, seconds=100.0):
    """Ranks that waited for a CPU."""
    common = {"host": "node-a", "watched_s": seconds, "steps": 900}
    return [{**common, "rank": rank, "cpu_wait_s": wait} for rank, wait in enumerate(cpu_wait_s)]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (waited(1.0, 45.0), "rank 1 waits for a CPU 45% of the time"),
        (waited(150.0, 2.0), "rank 0 waits for a CPU 100% of the time"),
        (waited(1.0, 19.0), None),
        (waited(1.0, 9.0, seconds=10.0), None),  # too little to be worth a word
        (waited(0.0, 0.0, seconds=0.0), None),
    ],
)
def test_a_rank_that_waits_for_a_cpu_is_named(ranks, words):
    finding = bottleneck.starved(ranks)
    assert (finding and finding.what) == words
    if finding is not None:
        assert (finding.name, finding.severity) == ("cpu-starved", "hint")
        assert max(map(len, f"paceline: {finding.render()}".splitlines())) <= 80


def test_a_log_without_the_wait_for_a_cpu_names_nobody():
    assert bottleneck.starved([{"rank": 0, "host": "node-a", "steps": 9}]) is None

"""Each example is started by each launcher, trains, and is as accurate as its header promises."""

from __future__ import annotations

import sys

import pytest

from examples_list import EXAMPLES

pytestmark = pytest.mark.ci

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
LAUNCHERS = {
    "python": (sys.executable, ()),
    "paceline": ("paceline", ("--nproc-per-node", "2")),
    "torchrun": ("torchrun", ("--standalone", "--nproc-per-node", "2")),
}
# The others take two minutes together, or the time of another framework's imports.
QUICK = {("digits_trainer", "python"), ("digits_ddp", "paceline")}
# torch 2.13 frees gloo's process groups while the interpreter ends, and one of about twenty runs
# under torchrun is aborted then, after its last line (github.com/pytorch/pytorch/pull/179291).
ABORTED = pytest.mark.flaky(reruns=4, only_rerun="terminate called without an active exception")


def marks_of(name, launcher):
    """The marks of a pair of an example and a launcher."""
    marks = [] if (name, launcher) in QUICK else [pytest.mark.slow, pytest.mark.peers]
    return [*marks, ABORTED] if launcher == "torchrun" else marks


PAIRS = [
    pytest.param(name, launcher, id=f"{name}-{launcher}", marks=marks_of(name, launcher))
    for name in EXAMPLES
    for launcher in LAUNCHERS
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "launcher"), PAIRS)
def test_an_example_keeps_its_promise(command, name, launcher):
    example = EXAMPLES[name]
    example.skip_without_package()
    program, options = LAUNCHERS[launcher]
    ended = command.run(*options, example.path, program=program, env=ENVIRONMENT, timeout=220)
    assert ended.status == 0, ended.err
    example.check(ended.out)
    if launcher == "paceline":
        assert "2 ranks" in ended.err
        assert "steps/s a rank" in ended.err
        assert "paceline explain" not in ended.err, "a healthy run has no finding"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_says_how_it_is_started(name):
    example = EXAMPLES[name]
    text = example.path.read_text()
    assert len(text.splitlines()) <= 66
    for start in ("python", "torchrun --standalone --nproc-per-node 2", "paceline run"):
        assert f"    {start}" in text
    assert text.count(f"examples/{example.script}") == 4

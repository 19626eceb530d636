"""How long a node tries to reach the head: with a small factor on all deadlines, and a head that is played."""

from pathlib import Path

import pytest

from paceline import deadlines, env
from paceline.errors import RunError, SetupError
from paceline.launch.channel.connection_probe import ConnectionProbe
from paceline.launch.plan.options import Options
from paceline.launch.plan.starter_defaults import StarterDefaults
from paceline.launch.rendezvous import node_wait
from paceline.launch.rendezvous import store as stores
from paceline.launch.rendezvous.notes import Note, Notes
from refusals import refusal

STATIC = Options("train.py", nnodes=(2, 2), node_rank=1, master_addr="head")
C10D = Options("train.py", nnodes=(2, 2), rdzv_backend="c10d", rdzv_endpoint="head:29400")
NOTE = Note("train.py", "none", 1, "host-b", 1, name="head", address="", port=29500, listens=False)


def settings(options, **values):
    return Options(**{**options.__dict__, **values})


@pytest.mark.parametrize(
    ("options", "limit_s"),
    [
        (STATIC, deadlines.STATIC_START),
        (C10D, deadlines.C10D_START),
        (
            settings(
                STATIC,
                starter_defaults=StarterDefaults(
                    source="Slurm step 7.0: n[1-2], head n1", starter="slurm"
                ),
            ),
            deadlines.SLURM_START,
        ),
        (settings(STATIC, roll_call_timeout=33.0), 33),
        (settings(STATIC, rdzv_conf=(("join_timeout", "44"),)), 44),
    ],
)
def test_nodes_are_awaited_as_long_as_torchrun_does_or_as_long_as_the_user_says(options, limit_s):
    assert node_wait.join_limit_s(options) == limit_s


@pytest.fixture
def reaching(monkeypatch):
    """A node that tries to reach a head whose answers are given in turn, the last for ever."""
    monkeypatch.setenv(
        env.TEST_TIME_FACTOR, "0.005"
    )  # 4.5 s instead of 15 min, refused for 0.3 s instead of 60

    def build(answers, options=STATIC, inform=lambda notice: None):
        left = list(answers)

        def probe_port(name, port):
            kind = left.pop(0) if len(left) > 1 else left[0]
            return ConnectionProbe(kind, "" if kind == "unresolved" else "10.0.0.1")

        monkeypatch.setattr(stores, "probe_port", probe_port)
        monkeypatch.setattr(
            stores,
            "look_up",
            lambda name: "not known" if probe_port(name, 0).kind == "unresolved" else ("10.0.0.1",),
        )
        monkeypatch.setattr(stores, "open_client", lambda address, port: "the store")
        return stores._Reaching(
            options, "head", 29500, notes=Notes(Path("/proc/nowhere"), NOTE), inform=inform
        )

    return build


def test_a_refused_port_ends_the_wait_long_before_its_limit(reaching):
    node = reaching(["refused"])
    assert refusal(RunError, node.reach).name == "port-refused"
    assert node._waiting.waited_s < 2


def test_a_head_that_comes_after_it_was_silent_unknown_and_refused_is_reached(reaching):
    told = []
    assert reaching(
        ["unresolved", "silent", "refused", "dropped", "open"], inform=told.append
    ).reach() == ("the store", "10.0.0.1")
    assert (
        len({notice.what.rpartition(",")[0] for notice in told}) == len(told) == 3
    )  # one for each picture


def test_a_refused_port_is_awaited_as_long_as_the_user_says(reaching):
    node = reaching(["refused"], settings(STATIC, roll_call_timeout=1.5))
    with pytest.raises(RunError):
        node.reach()
    assert node._waiting.waited_s > 1.5


@pytest.mark.parametrize("options", [STATIC, C10D])
def test_a_name_that_resolves_late_is_awaited_on_the_head_too(reaching, options):
    assert reaching(["unresolved"] * 5 + ["open"], options).await_name() == "10.0.0.1"
    with pytest.raises(SetupError) as caught:
        reaching(["unresolved"], settings(options, roll_call_timeout=0.3)).await_name()
    assert caught.value.finding.name == "hostname-unresolvable"


def test_a_single_node_does_not_wait_for_a_name(reaching):
    node = reaching(["unresolved"], Options("train.py", master_addr="head"))
    with pytest.raises(SetupError):
        node.await_name()
    assert node._waiting.waited_s < 0.2

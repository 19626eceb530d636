"""A stranger at the port of a run: what launchers believe has to be signed, and the run continues beside him."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from starting import free_port

pytestmark = pytest.mark.ci

TRAIN = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
open("up-" + os.environ["RANK"], "w").write("here\\n")
value = torch.ones(1)
while not os.path.exists("go"):
    time.sleep(0.05)
for _ in range(20):
    dist.all_reduce(value)
    value /= 2
    time.sleep(0.02)
open("seen-" + os.environ["RANK"], "w").write(os.environ.get("PACELINE_RUN_SECRET", "no secret") + "\\n")
dist.destroy_process_group()
"""
SECRET = "0123456789abcdef0123456789abcdef"


def start(command, *options, kind="static", port=None, env=({}, {}), cwd=(None, None)):
    port = port or free_port()
    where = ["--master-addr", "127.0.0.1", "--master-port", port]
    if kind == "c10d":
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    return port, [
        command.start(
            *("--nnodes", 2, "--nproc-per-node", 1, *where),
            *(("--node-rank", node) if kind == "static" else ()),
            *options,
            command.folder / "train.py",
            env=env[node],
            cwd=cwd[node],
        )
        for node in range(2)
    ]


def disturb(port, *, seconds):
    """Write over, repeat and flood everything that launchers write for each other; hold connections half open."""
    client = TCPStore(
        "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=10)
    )
    keys = [key.removeprefix("/") for key in client.list_keys()]
    ours = [key for key in keys if "/paceline/" in key and "compare" not in key]
    (prefix,) = {key.partition("/paceline/")[0] for key in ours}
    ours += [
        f"{prefix}/paceline/{name}"
        for name in ("stop", "failed", "hurry", "look", "nodes", "done/0", "done/1")
    ]
    recorded = {key: client.get(key) for key in ours if client.check([key])}
    liveness = json.loads(client.get("paceline/liveness").rpartition(b"\n")[2])
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(
                contextlib.closing(socket.create_connection(("127.0.0.1", liveness)))
            )
        for _ in range(50):
            half = stack.enter_context(
                contextlib.closing(socket.create_connection(("127.0.0.1", port)))
            )
            half.sendall(b"\x00\x01")
        lost = json.dumps(
            {"silent": {}, "lost": {"0": ["h", "closed", 1.0], "1": ["h", "closed", 1.0]}}
        )
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for value in ("15", lost, b"x" * (64 << 10)):
                for key in ours:
                    client.set(key, value)
                time.sleep(0.05)
            for key, content in recorded.items():
                client.set(key, content)
        with contextlib.suppress(RuntimeError):  # the store closes the connection over so much
            client.clone().set("paceline/big", b"x" * (64 << 20))


@pytest.mark.parametrize("kind", ["static", pytest.param("c10d", marks=pytest.mark.slow)])
def test_a_stranger_at_the_port_ends_nothing_and_is_named(command, kind):
    command.script(TRAIN)
    port, started = start(command, kind=kind)
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    disturb(port, seconds=3)
    (command.folder / "go").touch()
    ended = [running.wait() for running in started]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    for end in ended:
        assert "unauthenticated store" not in end.err
        assert (
            "a message in the run's store is ignored: nobody of this run has signed paceline/stop"
            in end.err
        )
        assert end.err.count("has signed paceline/stop") == 1
    assert not (command.folder / "paceline-runs" / ".roll-call").exists(), (
        "the secret goes with the run"
    )


def test_nodes_that_share_no_folder_train_as_before_and_say_that_the_store_is_open(command):
    command.script(TRAIN)
    (command.folder / "a").mkdir()
    (command.folder / "b").mkdir()
    for name in ("a", "b"):
        (command.folder / name / "go").touch()
    _, started = start(command, cwd=(command.folder / "a", command.folder / "b"))
    ended = [running.wait() for running in started]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    for end in ended:
        assert "unauthenticated store" in end.err
        assert "is ignored" not in end.err


def test_a_secret_that_was_given_is_used_and_not_handed_to_ranks(command):
    command.script(TRAIN)
    (command.folder / "go").touch()
    secret = {"PACELINE_RUN_SECRET": SECRET}
    _, started = start(command, "--no-check", env=(secret, secret))
    ended = [running.wait() for running in started]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    assert not any("unauthenticated" in end.err for end in ended)
    assert [(command.folder / f"seen-{rank}").read_text() for rank in range(2)] == [
        "no secret\n"
    ] * 2


@pytest.mark.parametrize("who", [0, 1])
def test_one_node_alone_with_a_secret_is_refused_and_says_why(command, who):
    command.script(TRAIN)
    env = [{}, {}]
    env[who] = {"PACELINE_RUN_SECRET": SECRET}
    _, started = start(command, "--roll-call-timeout", "4", env=env)
    other = started[1].wait()
    assert other.status == 1
    assert "run-secret-differs" in other.err
    assert started[0].wait().status == 1

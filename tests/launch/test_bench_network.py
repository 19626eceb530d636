"""``paceline bench network`` with real ranks, under every launcher that can start it."""

from __future__ import annotations

import pytest

from printed_json import read_json
from starting import paceline

SHORT = ("--seconds", "1", "--rounds", "2")
WORKER = ("-m", "paceline.measure.network_worker")


def test_ranks_of_this_node_are_measured(tmp_path):
    for name in ("paceline", "torch", "argparse", "statistics"):
        (tmp_path / f"{name}.py").write_text("open(__file__ + '.was-run', 'w').close()")
    words = ("bench", "network", "--nproc-per-node", "3", *SHORT, "--json")
    ended = paceline(tmp_path, *words)
    assert list(tmp_path.glob("*.was-run")) == []
    result = read_json("bench network", ended.stdout)
    assert (result["kind"], result["backend"]) == ("network", "gloo")
    assert (result["world"], result["num_nodes"], len(result["hosts"])) == (3, 1, 3)
    sizes = [point["bytes"] for point in result["points"]]
    assert sizes == [1024 * 4**number for number in range(len(sizes))]
    assert all(0 < p["low"] <= p["seconds"] <= p["high"] for p in result["points"])
    assert "measuring all_reduce over 3 ranks" in ended.stderr


def test_any_launcher_starts_the_program_of_a_rank(command):
    ended = command.run("--nproc-per-node", "2", *WORKER, *SHORT)
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[0] == "all_reduce over 2 ranks on 1 node, gloo"
    assert max(map(len, ended.out.splitlines())) <= 80


def test_under_torchrun_the_command_is_a_rank(command):
    words = ("--nproc-per-node", "2", "-m", "paceline", "bench", "network", *SHORT, "--json")
    ended = command.run(*words, program="torchrun")
    assert ended.status == 0, ended.err
    assert read_json("bench network", ended.out)["world"] == 2  # printed once


@pytest.mark.parametrize(
    "words",
    [("-m", "paceline", "bench", "network", "--nproc-per-node", "1"), WORKER],
    ids=["command", "program"],
)
def test_one_rank_has_no_network(command, words):
    ended = command.run(*words, program="python")
    assert ended.status == 2
    assert "one rank has no network" in ended.err
    assert "Traceback" not in ended.err


def test_ranks_that_a_launcher_has_started_are_not_chosen_again(command):
    words = ("-m", "paceline", "bench", "network", "--nproc-per-node", "4")
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    ended = command.run(*words, program="python", env={**ranks, **store})
    assert ended.status == 2
    assert "torchrun has started 2 ranks" in ended.err

"""``paceline run --check-only``: the nodes meet, each is examined, and no script is run."""

from __future__ import annotations

from printed_json import read_json
from starting import free_port


def test_one_node_is_examined_without_a_script(command):
    ended = command.run("--check-only", "--nproc-per-node", 2)
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[-1] == "1 node examined, none with errors"
    assert "roll call: 1 node" in ended.err


def test_all_nodes_tell_what_was_found_on_each(command):
    port = free_port()
    rendezvous = ("--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", port)
    started = [
        command.start(
            "--check-only", "--json", *rendezvous, "--node-rank", node, "--nproc-per-node", 1
        )
        for node in range(2)
    ]
    ended = [running.wait() for running in started]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    told = [read_json("run", end.out) for end in ended]
    assert told[0] == told[1]
    assert len(told[0]["nodes"]) == 2
    assert all(node["facts"] for node in told[0]["nodes"])


def test_nodes_that_cannot_work_together_end_as_in_a_run(command):
    port = free_port()
    ended = command.run(
        *(
            "--check-only",
            "--json",
            "--nnodes",
            2,
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            port,
        ),
        *("--node-rank", 0, "--roll-call-timeout", 2),
    )
    assert ended.status == 1
    (finding,) = read_json("run", ended.out)["findings"]
    assert finding["name"] == "node-missing"


def test_the_script_is_compared_and_not_run(command):
    command.script("raise SystemExit('it ran')")
    ended = command.run("--check-only", "--nproc-per-node", 1, "train.py")
    assert ended.status == 0, ended.err
    assert "it ran" not in ended.out + ended.err

"""Are nodes alike, which interface each uses, how fast the link is: tables; and the exchange on a real store."""

import socket
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from torch.distributed import PrefixStore, TCPStore

from paceline import env
from paceline.errors import RunError
from paceline.launch.channel import connection_probe, reachability
from paceline.launch.preflight import bandwidth, comparison, consistency, facts, interfaces
from paceline.launch.preflight.bandwidth import Speed
from paceline.launch.preflight.facts import NodeFacts
from paceline.launch.rendezvous.notes import Note, Notes
from paceline.launch.rendezvous.presence import Arrived
from paceline.launch.rendezvous.roll_call import Roll
from paceline.machine.interfaces import Interface

SAME = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "NCCL": "2.27",
    "CUDA": "13.0",
    "script": "aa",
    "commit": "c1",
}
LO = Interface("lo", ("127.0.0.1",), loopback=True)


def node(rank, **likeness_):
    eth = Interface("eth0", (f"10.0.0.{rank + 1}",), mbit=10_000)
    return NodeFacts(
        rank,
        f"host-{rank}",
        f"machine-{rank}",
        {**SAME, **likeness_},
        address=eth.addresses[0],
        interfaces=(eth, LO),
    )


# ------------------------------------------------------------------------------------------------- likeness


@pytest.mark.parametrize(
    ("differs", "gpus", "severity", "name", "line"),
    [
        (
            {"torch": "2.12.1"},
            0,
            "error",
            "environment-differs",
            "torch 2.13.0 on node 0 (host-0), 2.12.1 on node 1",
        ),
        ({"python": "3.12.1"}, 0, "error", "environment-differs", "python 3.11.7 on node 0"),
        ({"python": "3.11.8"}, 0, "warning", "environment-differs", "python 3.11.7 on node 0"),
        ({"NCCL": "2.28"}, 8, "error", "environment-differs", "NCCL 2.27 on node 0"),
        ({"CUDA": "12.8"}, 0, "warning", "environment-differs", "CUDA 13.0 on node 0"),
        ({"GPUs": "8 x H100"}, 8, None, "", ""),  # not known of the other
        (
            {"script": "bb"},
            0,
            "error",
            "code-differs",
            "sha256 aa on node 0 (host-0), bb on node 1 (host-1)",
        ),
        ({"commit": "c2"}, 0, "warning", "code-differs", "commit c1 on node 0"),
        ({"NCCL": "2.28"}, 0, None, "", ""),  # nobody uses it
        ({}, 0, None, "", ""),
    ],
)
def test_what_differs_is_told_and_nothing_else(differs, gpus, severity, name, line):
    nodes = [replace(each, gpus=gpus) for each in (node(0), node(1, **differs))]
    found = consistency.judge(nodes, script="train.py")
    assert [(each.severity, each.name) for each in found] == (
        [(severity, name)] if severity else []
    )
    assert all(line in each.evidence[0] and "host-1" in each.where for each in found)


def test_a_thousand_nodes_are_folded():
    nodes = [node(rank, **({"python": "3.11.8"} if rank == 3 else {})) for rank in range(1000)]
    (finding,) = consistency.judge(nodes, script="train.py")
    assert finding.evidence == ("python 3.11.8 on node 3 (host-3), 3.11.7 on the other 999",)
    assert finding.where == "node 3 (host-3)"


def test_however_much_differs_the_report_is_short():
    nodes = [
        node(rank, **{f"thing {place}": f"v{rank}" for place in range(30)}) for rank in range(50)
    ]
    (finding,) = consistency.judge(nodes, script="train.py")
    assert len(finding.render().splitlines()) <= 15
    assert "and 46 further values" in finding.evidence[0]


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [(0.9, None), (90.0, "90.0 s ahead of"), (-3600.0, "60 min behind"), (1e5, "27.8 h ahead of")],
)
def test_clocks(ahead_s, words):
    finding = consistency.judge_clocks([node(0), node(1)], {1: ahead_s})
    assert (finding is None) == (words is None)
    assert finding is None or (
        finding.severity == "warning" and f"node 1 (host-1) is {words}" in finding.what
    )


def test_a_folder_that_is_not_seen():
    assert consistency.judge_folder([node(0), node(1)], {0: True, 1: True}, folder="runs/x") is None
    finding = consistency.judge_folder([node(0), node(1)], {0: True, 1: False}, folder="runs/x")
    assert finding.name == "run-folder-not-shared"
    assert "runs/x of the head, host-0, is not seen by node 1 (host-1)" in finding.what


# ----------------------------------------------------------------------------------------------- interfaces

OWN = "fd00::7"


def with_two(rank, **settings):
    """A node with eth0 and a second interface that leads elsewhere."""
    base = node(rank)
    second = Interface("ib0", (f"192.168.{rank}.5",))
    return replace(base, interfaces=(base.interfaces[0], second, LO), settings=settings)


def reached(*nodes, dead=()):
    return {
        each.node: {
            address: [interface.name not in dead]
            for interface in interfaces.candidates(each)
            for address in interface.addresses
        }
        for each in nodes
    }


@pytest.mark.parametrize(
    ("dead", "settings", "name", "has_alternative"),
    [
        ((), {}, "eth0", True),  # it carries the node's address
        (("eth0",), {}, "ib0", True),
        (("ib0",), {}, "eth0", True),
        (("eth0", "ib0"), {}, "", False),
        ((), {env.GLOO_INTERFACE: "ib0"}, "ib0", False),
    ],
)
def test_the_interface_of_a_node(dead, settings, name, has_alternative):
    one, other = with_two(0, **settings), with_two(1)
    choice = interfaces.choose(one, reached(one, other, dead=dead))
    assert (choice.name, choice.has_alternative) == (name, has_alternative)
    assert bool(choice.reason) == bool(name)


def test_one_interface_is_no_choice():
    choice = interfaces.choose(node(0), reached(node(0)))
    assert (choice.name, choice.has_alternative) == ("eth0", False)


@pytest.mark.parametrize(
    ("gpus", "dead", "settings", "expected"),
    [
        (0, (), {}, {env.GLOO_INTERFACE: "eth0"}),
        (8, (), {}, {env.GLOO_INTERFACE: "eth0"}),
        (8, ("ib0",), {}, {env.GLOO_INTERFACE: "eth0", env.NCCL_INTERFACE: "=eth0"}),
        (8, ("ib0",), {env.GLOO_INTERFACE: "eth0", env.NCCL_INTERFACE: "eth"}, {}),
        (8, ("eth0", "ib0"), {}, {}),
    ],
)
def test_variables_are_set_where_the_libraries_could_go_wrong(gpus, dead, settings, expected):
    one = replace(with_two(0, **settings), gpus=gpus)
    tries = reached(one, dead=dead)
    assert interfaces.variables(one, interfaces.choose(one, tries), tries) == expected


@pytest.mark.parametrize(
    ("settings", "gpus", "severity"),
    [
        ({env.GLOO_INTERFACE: "ib7"}, 0, "error"),
        ({env.GLOO_INTERFACE: "eth0,ib7"}, 0, "error"),
        ({env.NCCL_INTERFACE: "=ib7"}, 8, "error"),
        ({env.NCCL_INTERFACE: "mlx"}, 0, "warning"),
        ({env.GLOO_INTERFACE: "eth0", env.NCCL_INTERFACE: "^lo"}, 8, None),
        ({env.NCCL_INTERFACE: "eth0:1"}, 8, None),
    ],
)
def test_an_interface_that_a_node_does_not_have(settings, gpus, severity):
    other = replace(node(1), settings=settings, gpus=gpus)
    found = interfaces.judge([node(0), other], reached(node(0), other))
    assert [(each.name, each.severity) for each in found] == (
        [("interface-missing-on-node", severity)] if severity else []
    )
    assert all(
        "node 1 (host-1) has eth0 (10.0.0.2), lo (127.0.0.1)" in each.evidence[0] for each in found
    )


def test_an_interface_that_leads_nowhere():
    nodes = [with_two(0), with_two(1, **{env.GLOO_INTERFACE: "ib0"})]
    (finding,) = interfaces.judge(nodes, reached(*nodes, dead=("ib0",)))
    assert (finding.name, finding.severity) == ("interface-not-routed", "error")
    assert (
        "GLOO_SOCKET_IFNAME=ib0: the other nodes do not reach node 1 (host-1) over it"
        in finding.what
    )
    assert "eth0" in finding.fix


def test_where_no_interface_works_there_is_a_warning():
    """Addresses may be translated: the store was reached all the same."""
    nodes = [node(0), node(1)]
    (finding,) = interfaces.judge(nodes, reached(*nodes, dead=("eth0",)))
    assert (finding.name, finding.severity) == ("interface-not-routed", "warning")


def test_on_one_machine_nothing_has_to_be_reached():
    nodes = [replace(node(rank), settings={env.GLOO_INTERFACE: "lo"}) for rank in range(2)]
    assert interfaces.judge(nodes, {}) == []
    assert interfaces.choose(nodes[0], {}).name == ""


# ----------------------------------------------------------------------------------------------------- link


@pytest.mark.parametrize(
    ("bits_s", "rates", "slow"),
    [
        (2e9, {0: 10_000, 1: 10_000}, False),
        (4e8, {0: 10_000, 1: 10_000}, True),
        (4e8, {0: 1_000, 1: 10_000}, False),
        (
            1e9,
            {0: 400_000, 1: 400_000},
            False,
        ),  # one connection of gloo is no measure of such a link
        (4e8, {0: 0, 1: 10_000}, False),  # a rate is not known
    ],
)
def test_a_link_is_slow_by_what_its_interfaces_could_carry(bits_s, rates, slow):
    finding = bandwidth.judge(Speed(bits_s, 1e-3), [node(0), node(1)], rates)
    assert (finding is not None) == slow
    assert (
        finding is None or "400 Mbit/s, and their interfaces are rated at 10 Gbit/s" in finding.what
    )


def test_a_link_of_unknown_rate_is_slow_when_it_is_slow_for_any_training():
    finding = bandwidth.judge(Speed(2e7, 1e-3), [node(0), node(1)], {0: 0, 1: 0})
    assert finding.what == "the link between the nodes carried 20 Mbit/s"


@pytest.mark.parametrize(
    ("bits_s", "words"),
    [(9.14e9, "9.1 Gbit/s"), (2e8, "200 Mbit/s"), (1.84e7, "18 Mbit/s"), (1.5e6, "1.5 Mbit/s")],
)
def test_speeds_in_words(bits_s, words):
    assert Speed(bits_s, 0.0002).words == f"link {words}, 0.2 ms"


def test_many_nodes_measure_among_neighbours():
    assert [bandwidth.group_of(rank, 16) for rank in (0, 15)] == [(0, 0, 16), (0, 15, 16)]
    assert [bandwidth.group_of(rank, 19) for rank in (0, 9, 18)] == [
        (0, 0, 8),
        (1, 1, 8),
        (2, 2, 3),
    ]


# ---------------------------------------------------------------------------------------------------- hands


def test_a_server_says_who_and_when_it_is():
    echo = reachability.Echo("token", node=3)
    try:
        answers = reachability.try_all(
            {3: (echo.port, ["127.0.0.1", OWN])}, token="token", own=[OWN]
        )
        assert answers[3]["127.0.0.1"].ok
        assert abs(answers[3]["127.0.0.1"].ahead_s) < 1
        assert not answers[3][OWN].ok
        assert not reachability.ask(
            "127.0.0.1", echo.port, "token", 4
        ).ok  # another node has that address
        assert not reachability.ask("127.0.0.1", echo.port, "other", 3).ok
    finally:
        echo.close()
    assert not reachability.ask("127.0.0.1", echo.port, "token", 3).ok


def test_a_port_that_is_refused_or_open_or_speaks_another_language(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connection_probe.probe_port("127.0.0.1", port) == connection_probe.ConnectionProbe(
            "open", "127.0.0.1"
        )
        monkeypatch.setattr(connection_probe, "_SPEAK_S", 0.3)
        assert connection_probe.open_client("127.0.0.1", port) is None
    assert connection_probe.probe_port("127.0.0.1", port).kind == "refused"
    assert connection_probe.probe_port("nobody.invalid", port).kind == "unresolved"


def test_the_commit_is_read_from_gits_files(tmp_path):
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert facts.commit(tmp_path / "src") == ""
    (git / "packed-refs").write_text("# pack-refs\n0123456789abcdef refs/heads/main\n")
    assert facts.commit(tmp_path / "src") == "0123456789ab"
    (git / "refs/heads/main").write_text("fedcba98765432100\n")
    assert facts.commit(tmp_path) == "fedcba987654"
    (git / "HEAD").write_text("aaaabbbbccccdddd\n")
    assert facts.commit(tmp_path) == "aaaabbbbcccc"


@pytest.fixture
def store():
    return TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20)
    )


def on_nodes(store, work, num_nodes=2):
    """Let every node of a run work in a thread of its own; return what each returned or raised."""
    found = {}

    def be(rank, client):
        try:
            found[rank] = work(rank, client)
        except RunError as error:
            found[rank] = error.finding

    threads = [
        threading.Thread(target=be, args=(rank, store if rank == 0 else store.clone()))
        for rank in range(num_nodes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_nodes_compare_themselves_and_all_hear_the_same(store, tmp_path):
    def compare(rank, client):
        part = comparison.Comparison(
            PrefixStore("a", client),
            node=rank,
            num_nodes=2,
            token="t",
            script="train.py",
            folder=tmp_path,
        )
        assert part.is_due(True)
        # on one machine, so that nothing is tried or measured
        return part.run(
            lambda port: replace(node(rank, CUDA=f"13.{rank}"), machine="one", port=port)
        )

    found = on_nodes(store, compare)
    assert [each.name for each in found[0].warnings] == ["environment-differs"]
    assert found[0].warnings == found[1].warnings
    assert found[0].line.startswith("roll call: 2 nodes, ")
    assert list(tmp_path.iterdir()) == []


def test_nodes_that_cannot_work_together_all_end_with_one_finding(store, tmp_path):
    def compare(rank, client):
        part = comparison.Comparison(
            client, node=rank, num_nodes=3, token="t", script="train.py", folder=tmp_path
        )
        part.is_due(True)
        return part.run(
            lambda port: replace(node(rank, torch=f"2.1{rank}"), machine="one", port=port)
        )

    found = on_nodes(store, compare, 3)
    assert found[0] == found[1] == found[2]
    assert found[0].name == "environment-differs"


def test_a_head_that_goes_on_after_a_restart_compares_nobody(store, tmp_path):
    def ask(rank, client):
        part = comparison.Comparison(
            client, node=rank, num_nodes=2, token="t", script="train.py", folder=tmp_path
        )
        return part.is_due(first=rank == 1)

    assert on_nodes(store, ask) == {0: False, 1: False}


def answer(rank, client, folder, *, limit_s=20.0, nodes=2, as_rank=None):
    head = Arrived(0, 0, "host-0", 100, (2, 2))
    mine = replace(
        head, rank=rank if as_rank is None else as_rank, host=f"host-{rank}", pid=100 + rank
    )
    mine = replace(mine, nodes=(nodes, nodes))
    note = Note(
        "train.py", "none", mine.rank, mine.host, mine.pid, "head", "", 0, listens=rank == 0
    )
    Roll(
        client,
        mine,
        head,
        is_head=rank == 0,
        limit_s=limit_s,
        hosts_by_rank=[],
        notes=Notes(folder / "notes", note),
        inform=lambda notice: None,
    ).answer()
    return "in"


def test_nodes_meet_in_the_store(store, tmp_path):
    assert on_nodes(store, lambda rank, client: answer(rank, client, tmp_path)) == {
        0: "in",
        1: "in",
    }
    late = on_nodes(store, lambda rank, client: answer(rank + 2, client, tmp_path, as_rank=1), 1)
    assert late[0].name == "duplicate-ranks"


def test_nodes_that_disagree_or_do_not_come_are_told_to_all(store, tmp_path):
    found = on_nodes(store, lambda rank, client: answer(rank, client, tmp_path, nodes=2 + rank))
    assert found[0] == found[1]
    assert found[0].name == "world-size-mismatch"
    other = PrefixStore("other", store)
    alone = on_nodes(store, lambda rank, client: answer(rank, other, tmp_path, limit_s=0.2), 1)
    assert alone[0].name == "node-missing"
    late = on_nodes(store, lambda rank, client: answer(1, other, tmp_path), 1)
    assert late[0].name == "late-node"

"""Who is here before the start: tables of nodes that have announced themselves, and what is made of them."""

from dataclasses import asdict, replace

import pytest

from paceline.launch.rendezvous import presence
from paceline.launch.rendezvous.presence import Arrived, PresenceVerdict, judge, judge_newcomer
from paceline.text.plain_data import read_as


def node(ticket, rank, nodes=(2, 2)):
    return Arrived(ticket, rank, f"host-{'abcdef'[ticket - 1]}", 100 + ticket, nodes)


HEAD, HEAD_C10D = node(1, 0), node(1, None)
TWO = [HEAD, node(2, 1)]
RAN = PresenceVerdict(tuple(TWO))
SURE = frozenset({1, 2, 3, 4})


def test_a_run_begins_when_every_rank_is_here():
    verdict = judge([node(2, 1), HEAD], head=HEAD, sure=SURE)
    assert [member.rank for member in verdict.members] == [0, 1]
    assert verdict.finding is None


def test_a_node_without_a_rank_does_not_hide_the_others_of_a_static_run():
    verdict = judge([HEAD, node(2, None)], head=HEAD, sure=SURE)
    assert [member.ticket for member in verdict.members] == [2, 1]


@pytest.mark.parametrize(
    ("present", "head"),
    [
        ([HEAD], HEAD),
        ([replace(HEAD, nodes=(3, 3)), node(2, 2, (3, 3))], replace(HEAD, nodes=(3, 3))),
        ([HEAD_C10D], HEAD_C10D),
        ([node(1, None, (2, 4))], node(1, None, (2, 4))),
    ],
)
def test_nodes_are_waited_for(present, head):
    assert judge(present, head=head, sure=SURE) is None


@pytest.mark.parametrize(("nodes", "count"), [((2, 2), 2), ((2, 4), 3)])
def test_with_c10d_the_first_to_come_begin(nodes, count):
    present = [node(ticket, None, nodes) for ticket in (1, 2, 3)]
    verdict = judge(present, head=present[0], sure=SURE)
    assert [member.ticket for member in verdict.members] == [1, 2, 3][:count]


def test_two_numbers_of_nodes_are_told_with_both_hosts():
    finding = judge([HEAD, node(2, 1, (3, 3))], head=HEAD, sure=frozenset()).finding
    assert finding.name == "world-size-mismatch"
    assert (
        "head on host-a expects --nnodes 2, node 1 on host-b was started with --nnodes 3"
        in finding.what
    )
    assert "--nnodes 2" in finding.fix
    ranged = judge([HEAD_C10D, node(2, None, (1, 4))], head=HEAD_C10D, sure=frozenset()).finding
    assert "a node on host-b was started with --nnodes 1:4" in ranged.what


def test_one_rank_twice_names_both_launchers():
    present = [replace(each, nodes=(3, 3)) for each in (HEAD, node(2, 1), node(3, 1))]
    finding = judge(present, head=present[0], sure=SURE).finding
    assert finding.name == "duplicate-ranks"
    assert "node rank 1: host-b (launcher pid 102) and host-c (launcher pid 103)" in finding.what


def test_a_node_that_was_interrupted_and_started_again_is_not_a_duplicate():
    """Until the head has seen both alive after the second came, the first may be gone."""
    present = [HEAD, node(2, 1), node(3, 1)]
    assert judge(present, head=HEAD, sure=frozenset({1, 3})) is None
    again = judge([HEAD, node(3, 1)], head=HEAD, sure=frozenset({1, 3}))
    assert [member.ticket for member in again.members] == [1, 3]


@pytest.mark.parametrize(
    ("me", "verdict", "head", "name", "words"),
    [
        (node(3, 1), RAN, HEAD, "duplicate-ranks", "rank 1: host-b (launcher pid 102) and host-c"),
        (node(3, 0), RAN, HEAD, "duplicate-ranks", "rank 0: host-a (launcher pid 101) and host-c"),
        (node(3, 2, (3, 3)), RAN, HEAD, "extra-node", "node 2 on host-c"),
        (node(3, 1, (3, 3)), RAN, HEAD, "world-size-mismatch", "--nnodes 3"),
        (node(3, None), RAN, HEAD_C10D, None, ""),
        (node(3, None, (3, 3)), RAN, HEAD_C10D, "world-size-mismatch", "a node on host-c"),
        (
            node(3, 2),
            PresenceVerdict(finding=presence.same_rank_twice(*TWO)),
            HEAD,
            "late-node",
            "the run had ended: two nodes have node rank 0",
        ),
    ],
)
def test_a_newcomer_is_told_why_it_cannot_come_in(me, verdict, head, name, words):
    finding = judge_newcomer(me, verdict, head=head)
    assert (finding and finding.name) == name
    assert finding is None or words in finding.render()


def test_missing_ranks_are_named_with_their_hosts_where_a_scheduler_tells():
    head = replace(HEAD, nodes=(4, 4))
    finding = presence.missing(
        [head, node(2, 2, (4, 4))],
        head=head,
        waited_s=30.2,
        hosts=["n1", "n2", "n3", "n4"],
        evidence=["heard so"],
    )
    assert finding.what == "node 1, 3 of 4 did not come within 30 s"
    assert finding.where == "node 1 is n2, node 3 is n4"
    assert finding.evidence == ("here: node 0 on host-a, node 2 on host-b", "heard so")
    assert "--node-rank" in finding.fix


def test_with_c10d_those_who_came_are_counted_and_named():
    head = node(1, None, (3, 3))
    finding = presence.missing([head, node(2, None)], head=head, waited_s=30, hosts=[], evidence=[])
    assert finding.what == "2 of 3 nodes came within 30 s, 1 did not"
    assert "host-b (launcher pid 102)" in finding.evidence[0]
    assert "--rdzv-endpoint" in finding.fix


def test_a_thousand_missing_nodes_are_one_line():
    head = replace(HEAD, nodes=(1000, 1000))
    finding = presence.missing([head], head=head, waited_s=30, hosts=[], evidence=[])
    assert len(finding.render().splitlines()) <= 5
    assert "and 989 more of 1000" in finding.what


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (HEAD, "node 1 of 2"),
        (HEAD_C10D, "nodes (1 of 2 are here)"),
        (node(1, None, (2, 4)), "nodes (1 of at least 2 are here)"),
    ],
)
def test_the_line_while_waiting(head, words):
    assert presence.awaited([head], head=head) == words


def test_verdicts_travel():
    for verdict in (RAN, PresenceVerdict(finding=presence.same_rank_twice(*TWO))):
        assert read_as(PresenceVerdict, asdict(verdict)) == verdict

"""The findings of all nodes of --check-only, told once each."""

import pytest

from paceline.errors import Finding, UsageError
from paceline.launch.plan import parsing
from paceline.launch.run import checkup

FULL = Finding("disk-full", "3 MB are left", where="/tmp")
HINT = Finding("workers-exceed-cpus", "8 workers for 2 CPUs", severity="hint")


def node(host, *findings):
    return {"host": host, "findings": [finding.to_json() for finding in findings], "facts": {}}


def test_what_several_nodes_share_is_told_once_with_their_names():
    found = checkup.join([node("a", HINT), node("b", FULL, HINT), node("c", FULL)])
    assert [(each.name, each.where) for each in found] == [
        ("disk-full", "b, c: /tmp"),
        ("workers-exceed-cpus", "a, b"),
    ]


def test_what_all_nodes_share_is_told_of_all():
    (found,) = checkup.join([node(f"n{place}", FULL) for place in range(8)])
    assert found.where == "all 8 nodes: /tmp"


def test_of_many_nodes_some_are_named():
    (found,) = checkup.join([*(node(f"n{place}", FULL) for place in range(6)), node("n6")])
    assert found.where == "n0, n1, n2, n3 and 2 more: /tmp"


@pytest.mark.parametrize(
    ("nodes", "last"),
    [
        ([node("a")], "1 node examined, none with errors"),
        ([node("a", HINT), node("b")], "2 nodes examined, none with errors"),
        ([node("a", FULL), node("b", HINT)], "2 nodes examined, 1 with errors"),
    ],
)
def test_the_last_line_counts_the_nodes(nodes, last):
    assert checkup.render(nodes, checkup.join(nodes))[-1] == last


def test_the_checks_alone_and_none_contradict_each_other():
    with pytest.raises(UsageError, match="--check-only"):
        parsing.parse("", (), typed={"check_only": True, "no_check": True}, inherited={})


def test_a_script_that_is_given_must_be_there():
    asked = parsing.parse("not-there.py", (), typed={"check_only": True}, inherited={})
    with pytest.raises(UsageError, match="there is no file not-there"):
        checkup.run(asked, lambda *_: pytest.fail("conducted"))

"""Why a node did not reach the head: from connection probes and the notes of others to findings."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.launch.channel.connection_probe import ConnectionProbe, Icmp
from paceline.launch.channel.connection_probe import judge as judge_probe
from paceline.launch.rendezvous import unreachable
from paceline.launch.rendezvous.notes import Note, Notes
from paceline.launch.rendezvous.presence import Arrived, missing

AT = "10.77.0.1"
MINE = Note(
    "train.py", "none", 1, "host-b", 102, name="head", address=AT, port=29500, listens=False
)
HEAD = replace(MINE, rank=0, host="host-a", pid=101, listens=True, addresses=(AT, "192.168.0.1"))


@pytest.mark.parametrize(
    ("number", "icmp", "kind"),
    [
        (0, None, "open"),
        (errno.ECONNREFUSED, None, "refused"),
        (errno.ECONNREFUSED, Icmp(2, 3, 3, AT), "rejected"),  # port unreachable, REJECT's default
        (errno.EHOSTUNREACH, Icmp(2, 3, 10, AT), "rejected"),  # host prohibited
        (errno.EHOSTUNREACH, Icmp(2, 3, 13, "10.0.0.254"), "rejected"),  # a router's filter
        (errno.EHOSTUNREACH, Icmp(2, 3, 1, AT), "rejected"),  # a host is there that says it is not
        (errno.EHOSTUNREACH, Icmp(2, 3, 1, "10.77.0.2"), "silent"),  # no neighbour answers
        (errno.ENETUNREACH, Icmp(2, 3, 0, "10.0.0.254"), "silent"),
        (errno.EACCES, Icmp(3, 1, 1, "fd00::1"), "rejected"),
        (errno.EHOSTUNREACH, Icmp(3, 1, 3, "fd00::2"), "silent"),
        (errno.ETIMEDOUT, None, "dropped"),
        (errno.ENETUNREACH, None, "no-route"),
        (errno.EHOSTUNREACH, None, "silent"),
    ],
)
def test_the_kind_of_a_connection_probe(number, icmp, kind):
    assert judge_probe(number, icmp, address=AT)[0] == kind


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("refused", "port-refused", "nothing listens"),
        ("rejected", "port-filtered", "rejected"),
        ("dropped", "port-filtered", "dropped"),
        ("silent", "master-unreachable", "does not answer"),
        ("no-route", "master-unreachable", "no route"),
    ],
)
def test_each_way_of_not_reaching_the_head_has_its_name_and_one_line(kind, name, words):
    finding = unreachable.judge(ConnectionProbe(kind, AT), MINE, [], waited_s=30)
    assert finding.name == name
    assert finding.what.startswith(
        f"the head at head:29500 ({AT}) was not reached from host-b within 30 s: "
    )
    assert words in finding.what
    assert finding.fix


def test_a_name_that_does_not_resolve():
    finding = unreachable.judge(
        ConnectionProbe("unresolved", detail="Name or service not known"), MINE, [HEAD], waited_s=6
    )
    assert finding.name == "hostname-unresolvable"
    assert finding.what == "the head's name head does not resolve on host-b"


def test_another_port_is_told_with_both():
    finding = unreachable.judge(
        ConnectionProbe("refused", AT), replace(MINE, port=29501), [HEAD], waited_s=30
    )
    assert finding.name == "port-refused"
    assert finding.evidence == (
        "node 0 on host-a is up and listens on port 29500, this node tries port 29501",
    )


def test_a_name_with_two_meanings_is_told_with_both():
    mine = replace(MINE, address="10.99.0.9", trouble="no route to the host")
    finding = unreachable.judge(ConnectionProbe("no-route", "10.99.0.9"), mine, [HEAD], waited_s=30)
    assert finding.name == "address-resolves-differently"
    assert finding.what == f"head resolves to 10.99.0.9 on host-b and to {AT} on the head, host-a"


def test_another_address_of_the_head_is_not_another_meaning():
    mine = replace(MINE, address="192.168.0.1")
    assert (
        unreachable.judge(ConnectionProbe("dropped", "192.168.0.1"), mine, [HEAD], waited_s=30).name
        == "port-filtered"
    )


def test_a_name_that_means_the_node_itself():
    finding = unreachable.judge(
        ConnectionProbe("refused", "127.0.1.1"), replace(MINE, address="127.0.1.1"), [], waited_s=30
    )
    assert finding.name == "master-addr-wrong"


@pytest.mark.parametrize(
    ("host", "addresses", "name"),
    [
        ("host-b", ("10.77.0.2",), "master-addr-wrong"),
        ("host-a", ("10.77.0.2",), "master-addr-wrong"),  # containers with one name
        ("host-a", ("192.168.0.1",), "port-refused"),  # the head is here, and has not started yet
    ],
)
def test_a_loopback_address_that_was_typed_means_each_host_itself(host, addresses, name):
    here = {"name": "127.0.0.1", "address": "127.0.0.1"}
    mine, head = replace(MINE, host=host, addresses=addresses, **here), replace(HEAD, **here)
    finding = unreachable.judge(ConnectionProbe("refused", "127.0.0.1"), mine, [head], waited_s=30)
    missed = unreachable.explain_missing(ABSENT, head, [mine], num_missing=1)
    assert finding.name == name
    assert missed.name == ("node-missing" if name == "port-refused" else name)
    if name == missed.name:
        assert finding.what == f"127.0.0.1 means {host} itself, not the head, which is on host-a"
        assert unreachable.advice(head, [mine], num_missing=1) == finding.fix


ABSENT = missing([Arrived(1, 0, "host-a", 101, (2, 2))], head=Arrived(1, 0, "host-a", 101, (2, 2)),
                 waited_s=30, hosts=[], evidence=[])  # fmt: skip


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (
            replace(MINE, port=29501),
            f"node 1 on host-b is up and tries {AT}:29501, the head listens on 29500",
        ),
        (
            replace(MINE, address="10.99.0.9"),
            f"tries 10.99.0.9:29500: head resolves to 10.99.0.9 there and to {AT} here",
        ),
        (
            replace(MINE, trouble="rejected by a firewall"),
            f"tries {AT}:29500: rejected by a firewall",
        ),
        (
            replace(MINE, name=AT, address="", trouble="the name does not resolve"),
            "the name does not resolve",
        ),
    ],
)
def test_the_head_repeats_what_the_missing_node_has_noted(note, words):
    finding = unreachable.explain_missing(ABSENT, HEAD, [note])
    assert finding.name == "node-missing"
    assert words in finding.evidence[-1]
    if note.port != HEAD.port:  # no address that the user has not typed
        assert finding.fix == f"the same port on every node: {AT}:29500"


@pytest.mark.parametrize(
    ("trouble", "num_missing", "words"),
    [
        ("dropped by a firewall: the port is silent", 1, "open port 29500"),
        ("the host does not answer", 1, "find out why host-b does not reach"),
        (
            "dropped by a firewall: the port is silent",
            2,
            "start paceline run there too",
        ),  # another is not up
    ],
)
def test_nobody_is_told_to_start_a_launcher_that_is_up(trouble, num_missing, words):
    finding = unreachable.explain_missing(
        ABSENT, HEAD, [replace(MINE, trouble=trouble)], num_missing=num_missing
    )
    assert "node 1 on host-b is up" in finding.evidence[-1]
    assert words in finding.fix
    assert ("start paceline run there too" in finding.fix) == (num_missing == 2)


def test_two_stores_because_the_name_means_loopback_on_one_host():
    """With c10d a node whose own name is the head's takes itself for the head."""
    alone = replace(MINE, rank=None, address="127.0.1.1", listens=True)
    other = replace(HEAD, rank=None)
    for mine, note in ((other, alone), (alone, other)):
        finding = unreachable.explain_missing(ABSENT, mine, [note])
        assert finding.name == "master-addr-wrong"
        assert "head resolves to 127.0.1.1 on host-b: that is host-b itself" in finding.what


# ------------------------------------------------------------------------------------------------------ notes


def test_a_note_is_read_by_others_of_the_run_only(tmp_path):
    folder = tmp_path / "notes"
    head = Notes(folder, replace(HEAD, pid=os.getpid()))
    node = Notes(folder, replace(MINE, pid=os.getpid()))
    foreign = Notes(folder, replace(MINE, pid=7, script="other.py", host="host-c"))
    for notes in (head, node, foreign):
        notes.leave(trouble="waits")
    assert [note.host for note in head.read()] == ["host-b"]
    assert head.read()[0].trouble == "waits"
    for notes in (head, node, foreign):
        notes.remove()
    assert not folder.exists()


def test_notes_of_the_killed_are_passed_over_and_old_ones_removed(tmp_path):
    head = Notes(tmp_path, HEAD)
    left = Notes(tmp_path, replace(MINE, host=HEAD.host, pid=2**22 + 1))
    left.leave(trouble="waits")
    assert head.read() == []
    left.leave(ended=True)  # it had given up by itself: that may be why it is missing
    assert [note.rank for note in head.read()] == [1]
    left.remove()
    (path,) = (
        path for path in tmp_path.glob("*.json") if json.loads(path.read_text())["rank"] == 1
    )
    os.utime(path, (0, 0))
    assert head.read() == []
    assert not path.exists()


def test_who_had_given_up_before_this_try_is_passed_over(tmp_path):
    folder = tmp_path / "notes"
    node = Notes(folder, replace(MINE, pid=os.getpid()))
    node.leave(ended=True)
    head = Notes(folder, replace(HEAD, pid=os.getpid()))
    assert [note.host for note in head.read()] == [MINE.host]
    (left,) = (path for path in folder.glob("*.json") if MINE.host in path.name)
    before = left.stat().st_mtime - 10
    os.utime(left, (before, before))
    assert head.read() == []


def test_a_folder_that_cannot_be_written_means_no_notes():
    notes = Notes(Path("/proc/nowhere"), MINE)
    notes.leave(trouble="waits")
    assert notes.read() == []
    notes.remove()

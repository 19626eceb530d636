"""Who is believed: signatures, the store in which launchers sign, and a channel beside somebody who writes every key."""

import json
import pickle
import socket
import threading
import time
from dataclasses import asdict, replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch.distributed import PrefixStore, TCPStore

from paceline.errors import RunError, SetupError
from paceline.launch.channel import liveness, run_secret
from paceline.launch.channel.control_channel import ControlChannel
from paceline.launch.channel.run_secret import SharedFile
from paceline.launch.channel.surroundings import Surroundings
from paceline.launch.plan.options import Options
from paceline.launch.plan.starter_defaults import StarterDefaults
from paceline.launch.rendezvous import store
from paceline.launch.rendezvous.notes import Note, Notes
from paceline.launch.rendezvous.presence import Arrived
from paceline.launch.rendezvous.roll_call import Roll
from paceline.machine.signed_store import SignedStore
from paceline.machine.signing import Message, Signing, sign, unsigned, verify
from paceline.rundir import files
from refusals import refusal
from starting import free_port

SECRET = b"s" * 32
MESSAGE = Message("a:1", 7, b'{"stop": 15}')
WRITTEN = sign(SECRET, "token", "stop", MESSAGE)


def until(condition, *, within_s=8.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_what_was_signed_is_read():
    assert verify(SECRET, "token", "stop", WRITTEN) == MESSAGE
    assert unsigned(WRITTEN) == MESSAGE.value
    assert unsigned(b"plain\ntext") == b"plain\ntext"


@pytest.mark.parametrize(
    ("secret", "token", "key", "content"),
    [
        (b"other" * 8, "token", "stop", WRITTEN),
        (SECRET, "another run", "stop", WRITTEN),
        (SECRET, "token", "failed", WRITTEN),
        (SECRET, "token", "stop", WRITTEN.replace(b"15", b"9")),
        (SECRET, "token", "stop", WRITTEN.replace(b" 7 ", b" 8 ")),
        (SECRET, "token", "stop", WRITTEN.replace(b"a:1", b"b:1")),
        (SECRET, "token", "stop", MESSAGE.value),
        (SECRET, "token", "stop", b""),
        (SECRET, "token", "stop", b"paceline-signed \xff\xfe x\n"),
        (SECRET, "token", "stop", b"paceline-signed " + b"9" * 5000 + b" 1 a\n"),
        (SECRET, "token", "stop", pickle.dumps("stop")),
    ],
)
def test_what_was_not_signed_for_this_place_is_not(secret, token, key, content):
    assert verify(secret, token, key, content) is None


def test_an_older_message_is_not_believed_and_reported_when_it_stays():
    ignored = []
    mine, theirs = Signing(SECRET, token="t", on_ignored=ignored.append), Signing(SECRET, token="t")
    first, second = theirs.close("beat/1", b"1"), theirs.close("beat/1", b"2")
    assert mine.open("beat/1", first) == b"1"
    assert mine.open("beat/1", second) == b"2"
    assert mine.open("beat/1", second) == b"2"  # it is read again
    assert mine.open("beat/1", first) is None
    assert ignored == []  # another thread may have read it earlier
    time.sleep(0.25)
    assert mine.open("beat/1", first) is None
    assert mine.open("beat/2", b"junk") is None
    assert ignored == ["beat"], "once for each kind"


def test_without_a_secret_all_is_believed_and_written_as_before():
    plain, signing = Signing(), Signing(SECRET, token="t")
    assert plain.close("key", b"value") == b"value"
    assert plain.open("key", b"value") == b"value"
    assert plain.open("key", signing.close("key", b"value")) == b"value"


# The store


@pytest.fixture
def raw():
    return TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10)
    )


def test_a_strangers_value_counts_as_absent(raw):
    signed = SignedStore(raw, Signing(SECRET, token="t"))
    signed.set("mine", "1")
    raw.set("theirs", "2")
    assert signed.find("mine") == b"1"
    assert signed.find("theirs") is None
    assert signed.find("nothing") is None
    assert signed.find_all(["mine", "theirs", "nothing"]) == {"mine": b"1"}
    raw.set("place", "junk")
    assert signed.claim("place", "me") == b"me"
    assert SignedStore(raw, Signing(SECRET, token="t")).claim("place", "another") == b"me"


def test_a_message_of_one_attempt_does_not_hold_in_the_next(raw):
    signing = Signing(SECRET, token="t")
    SignedStore(PrefixStore("a", raw), signing, scope="0").set("failed", "1")
    PrefixStore("b", raw).set("failed", PrefixStore("a", raw).get("failed"))
    assert SignedStore(PrefixStore("b", raw), signing, scope="1").find("failed") is None


# Where the secret comes from

IDENTITY = {"token": "t", "host": "head", "run_name": "one", "run_id": "none", "script": "train.py"}


def settings(nnodes=(2, 2), **values):
    return Options("train.py", nnodes=nnodes, **values)


def test_a_secret_is_read_from_a_file_that_others_cannot_read(tmp_path):
    path = tmp_path / "secret"
    files.write_secret(path, "x" * 32 + "\n")
    assert run_secret.given(settings(secret_file=str(path), secret="y" * 32)) == b"x" * 32
    assert run_secret.given(settings(secret="y" * 32)) == b"y" * 32
    assert run_secret.given(settings()) == b""
    path.chmod(0o644)
    finding = refusal(SetupError, run_secret.given, settings(secret_file=str(path)))
    assert finding.fix.startswith("chmod 600")
    with pytest.raises(SetupError):
        run_secret.given(settings(secret="short"))
    with pytest.raises(SetupError):
        run_secret.given(settings(secret_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("source", "heads", "mine", "expected"),
    [
        ("given", SECRET, SECRET, SECRET),
        ("given", SECRET, b"", RunError),
        ("given", b"", SECRET, RunError),
        ("given", SECRET, b"other" * 8, RunError),
        ("shared", b"", b"", b""),
    ],
)
def test_one_node_alone_with_a_secret_is_told(tmp_path, source, heads, mine, expected):
    identity = run_secret.signed_identity(IDENTITY, heads, source)
    shared = SharedFile(tmp_path / ".roll-call", "t")
    if expected is RunError:
        finding = refusal(RunError, run_secret.of_run, identity, mine, shared, place="head:1")
        assert finding.name == "run-secret-differs"
    else:
        assert run_secret.of_run(identity, mine, shared, place="head:1") == expected


def test_the_heads_file_is_found_by_the_token_and_goes_with_the_run(tmp_path):
    folder = tmp_path / "runs" / ".roll-call"
    head = SharedFile(folder, "t")
    identity = run_secret.signed_identity(IDENTITY, secret := head.create(), "shared")
    assert len(secret) == 64
    here, other = SharedFile(folder, "t"), SharedFile(tmp_path / "elsewhere", "t")
    assert run_secret.of_run(identity, b"", here, place="head:1") == secret
    assert run_secret.of_run(identity, b"", other, place="head:1") == b""
    with pytest.raises(RunError):  # somebody has led the node to another run's folder
        run_secret.of_run({**identity, "run_name": "two"}, b"", here, place="head:1")
    head.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "nodes", "signs"),
    [
        ("ext4", (1, 4), False),
        ("nfs4", (1, 4), True),
        ("ext4", (2, 2), True),
        ("nfs", (1, 1), False),
    ],
)
def test_a_range_of_nodes_has_a_secret_on_a_network(tmp_path, monkeypatch, kind, nodes, signs):
    disks = [SimpleNamespace(mountpoint="/", fstype="xfs")]
    disks.append(SimpleNamespace(mountpoint=str(tmp_path), fstype=kind))
    monkeypatch.setattr("psutil.disk_partitions", lambda all: disks)
    shared = SharedFile(tmp_path / ".roll-call", "t")
    assert bool(run_secret.of_head(settings(nodes), IDENTITY, b"", shared)[1]) == signs


@pytest.mark.parametrize("name", ["../../tmp/evil", "/tmp/evil", "..", "", "a/b"])
def test_a_run_name_that_leads_elsewhere_is_refused(raw, name):
    mine = {**IDENTITY, "nodes": [2, 2], "user": "me", "pid": 1}
    raw.set("paceline/run", json.dumps({**mine, "run_name": name}))
    with pytest.raises(RunError):
        store.read_identity(raw, mine, place="head:1")


@pytest.mark.parametrize("content", [b"\xff", b"junk", b"[1]", b"{}", pickle.dumps({"token": "t"})])
def test_what_is_no_runs_name_is_said_to_be_foreign(raw, content):
    mine = {**IDENTITY, "nodes": [2, 2], "user": "me", "pid": 1}
    raw.set("paceline/run", content)
    finding = refusal(RunError, store.read_identity, raw, mine, place="head:1")
    assert finding.name == "port-held-by-other"


# The roll call


def roll(store, node, folder, *, needs_secret):
    head = Arrived(0, 0, "host-0", 100, (2, 2))
    me = replace(head, rank=node, host=f"host-{node}", pid=100 + node)
    notes = Notes(
        folder, Note("train.py", "none", node, me.host, me.pid, "head", "", 0, listens=node == 0)
    )
    return Roll(
        store,
        me,
        head,
        is_head=node == 0,
        limit_s=20.0,
        hosts_by_rank=[],
        notes=notes,
        inform=lambda notice: None,
        needs_secret=needs_secret,
    )


def meet(raw, secrets, folder, *, needs_secret):
    """Let nodes announce themselves, each with its secret; return which of them sign afterwards."""
    signings = [Signing(secret, token="t") for secret in secrets]
    rolls = [
        roll(SignedStore(raw.clone(), signing), node, folder, needs_secret=needs_secret)
        for node, signing in enumerate(signings)
    ]
    threads = [threading.Thread(target=each.answer) for each in rolls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [each.is_signed for each in rolls] == [signing.is_on for signing in signings]
    return [each.is_signed for each in rolls]


@pytest.mark.parametrize(("others", "signed"), [(SECRET, [True, True]), (b"", [False, False])])
def test_nodes_sign_if_all_of_them_have_the_heads_secret(raw, tmp_path, others, signed):
    assert meet(raw, [SECRET, others], tmp_path, needs_secret=False) == signed


@pytest.mark.parametrize("needs_secret", [True, False])
def test_a_stranger_in_the_roll_call_is_not_waited_for(raw, tmp_path, needs_secret):
    """He raises the counter, announces a node, and says that the roll call is over."""
    stranger = json.dumps(asdict(Arrived(7, 1, "evil", 1, (2, 2))))
    raw.add("paceline/roll/count", 7)
    raw.set("paceline/roll/node/7", stranger)  # and no sign of life, which was waited for
    raw.set("paceline/roll/node/5", "junk")
    raw.set("paceline/roll/verdict", json.dumps({"finding": None, "tickets": [7]}))
    assert meet(raw, [SECRET, SECRET], tmp_path, needs_secret=needs_secret) == [True, True]
    assert raw.add("paceline/roll/count", 0) == 9


# Where the store listens


@pytest.mark.parametrize(
    ("head", "shared_output", "nodes", "only"),
    [
        ("127.0.0.1", False, 1, True),
        ("node-1", False, 1, True),
        ("10.0.0.5", True, 2, True),
        ("node-1", True, 2, False),  # a name may lead to another of its interfaces elsewhere
        ("10.0.0.5", False, 2, False),  # and so may what was typed on another node
    ],
)
def test_the_store_listens_at_one_address_where_all_know_it_by_that(
    head, shared_output, nodes, only
):
    options = Options(
        "train.py",
        nnodes=(nodes, nodes),
        starter_defaults=StarterDefaults(shared_output=shared_output),
    )
    assert store.is_only_address(options, SimpleNamespace(host=head)) == only


def test_a_store_for_one_address_is_not_reached_at_another():
    opened = store.open_store("127.0.0.1", free_port(), must=True, only=True)
    assert socket.create_connection(("127.0.0.1", opened.port), timeout=5).close() is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", opened.port), timeout=5)


# A channel beside a stranger


class Stranger:
    """Writes every key that it finds, again and again, from a connection of its own."""

    def __init__(self, raw, value):
        self._client = raw.clone()
        self._value = value
        self._ended = threading.Event()
        self.recorded = {}
        self._thread = threading.Thread(target=self._flood)
        self._thread.start()

    def _flood(self):
        names = (
            "stop",
            "failed",
            "hurry",
            "look",
            "nodes",
            "done/0",
            "done/1",
            "account/0",
            "clock/1",
            "facts-news",
        )
        while not self._ended.wait(0.02):
            for key in {*self._client.list_keys(), *(f"/a/paceline/{name}" for name in names)}:
                key = key.removeprefix("/")
                if "paceline" in key and "roll" not in key:
                    self._client.set(key, self._value(key))

    def stop(self):
        self._ended.set()
        self._thread.join(10)


@pytest.fixture
def channels(raw):
    """Two channels that have the secret, and what they have ignored."""
    ignored, made = [], []
    for node in range(2):
        signing = Signing(SECRET, token="t", on_ignored=ignored.append)
        signed = SignedStore(PrefixStore("a", raw), signing, scope="0")
        made.append(
            ControlChannel(
                signed, node=node, num_nodes=2, surroundings=Surroundings(node_timeout_s=60)
            )
        )
    yield *made, ignored
    for channel in made:
        channel.close()
    for channel in made:
        channel._thread.join(10)


VALUES = {
    "a signal": lambda key: "15",
    "nonsense": lambda key: b"\xff\x00{",
    "much": lambda key: b"x" * (1 << 20),
    "losses": lambda key: json.dumps(
        {"silent": {}, "lost": {"0": ["h", "closed", 1.0], "1": ["h", "closed", 1.0]}}
    ),
    "a pickle": lambda key: pickle.dumps(("value", 1)),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_stranger_that_writes_every_key_ends_nothing(raw, channels, value):
    head, other, ignored = channels
    stranger = Stranger(raw, value)
    other.post("done", True)
    until(lambda: len(ignored) > 3)
    before = head._answered, other._answered
    until(lambda: head._answered > before[0] + 4 and other._answered > before[1] + 4)
    stranger.stop()
    for channel in (head, other):
        assert (
            channel.remote.stop,
            channel.remote.failed,
            channel.remote.hurry,
            channel.remote.look,
        ) == (0, False, False, 0)
        assert channel.remote.lost == set()
    head.post("done", True)
    until(lambda: head.all_have("done"))  # what was written over is written again
    assert sorted(ignored) == sorted(set(ignored)) or len(ignored) <= 2 * len(set(ignored))


def test_recorded_messages_that_are_played_again_end_nothing(raw, channels):
    head, other, _ = channels
    other.tell("facts", {"a": 1})
    head.tell("facts", {"b": 1})
    until(lambda: head.hear("facts"))
    recorded = {key: raw.get(key.removeprefix("/")) for key in raw.list_keys()}
    other.tell("facts", {"a": 2})
    until(lambda: head.hear("facts") == {0: {"b": 1}, 1: {"a": 2}})
    for key, content in recorded.items():
        raw.set(key.removeprefix("/"), content)
    raw.set(
        "a/paceline/failed", recorded.get("/a/paceline/beat/1") or recorded["a/paceline/beat/1"]
    )
    before = head._answered
    until(lambda: head._answered > before + 3)
    assert not head.remote.failed
    assert head.remote.lost == set()
    assert head.hear("facts") == {}


def test_channels_with_the_secret_still_hear_each_other(channels):
    head, other, ignored = channels
    other.stop(15)
    until(lambda: head.remote.stop == 15)
    other.fail()
    until(lambda: head.remote.failed)
    assert ignored == []


# The port of the launchers' connections


def test_half_open_connections_and_false_names_prove_nothing(raw):
    ignored = []
    signing = Signing(SECRET, token="t", on_ignored=ignored.append)
    signed = SignedStore(raw, signing)
    listener = liveness.Listener(signed, token="t", address="127.0.0.1")
    assert listener._server.getsockname()[0] == "127.0.0.1"
    place = listener._server.getsockname()
    opened = [socket.create_connection(place) for _ in range(liveness._MOST_SILENT + 40)]
    with socket.create_connection(place) as liar:
        liar.sendall(listener._hello + b" a:1\n")
        liar.settimeout(5)
        assert liar.recv(10) == b""
    connection = liveness.Connection(signed.clone(), "127.0.0.1", token="t", name="a:1")
    until(lambda: "a:1" in listener._names.values())
    assert sum(not name for name in listener._names.values()) <= liveness._MOST_SILENT
    assert signed.find(liveness.closed_key("a:1")) is None
    assert ignored == ["greeting"]
    connection.leave()
    for each in opened:
        each.close()

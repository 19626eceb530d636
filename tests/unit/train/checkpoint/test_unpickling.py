"""Objects in a checkpoint are plain data, unless the script trusts the file."""

import collections
import datetime
import decimal
import io
import pathlib
import pickle

import numpy
import pytest
import torch
from torch import nn

from paceline import Session
from paceline.errors import UsageError
from paceline.train.checkpoint import unpickling


def in_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def load(value, *, trust=False):
    return unpickling.load(in_file(value), trust=trust, where="here")


class Own:
    """A class of the script."""

    def __init__(self, value):
        self.value = value


class Harmful:
    """A file that writes another file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


PLAIN = [
    {"a": 1, 2: [3.5, None, True, "text", b"bytes", (1, 2)]},
    {1, 2},
    frozenset({1}),
    1 + 2j,
    range(3),
    slice(1, 2),
    collections.OrderedDict(a=1),
    collections.Counter("aab"),
    collections.deque([1, 2], maxlen=3),
    collections.defaultdict(list, a=[1]),
    collections.defaultdict(int, a=1),
    decimal.Decimal("1.5"),
    datetime.datetime(2026, 1, 2),
    pathlib.Path("a/b"),
    torch.float16,
    numpy.float32(1.5),
    numpy.int64(3),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_data_is_loaded(value):
    loaded = load(value)
    assert (loaded, type(loaded)) == (value, type(value))


def test_arrays_and_tensors_are_loaded():
    array = numpy.arange(6, dtype=numpy.uint32).reshape(2, 3)
    loaded = load({"array": array, "state": numpy.random.get_state(), "tensor": torch.ones(2)})
    assert (loaded["array"] == array).all()
    assert (loaded["state"][1] == numpy.random.get_state()[1]).all()
    assert loaded["tensor"].tolist() == [1.0, 1.0]


def test_other_classes_are_named_and_not_made(tmp_path):
    with pytest.raises(UsageError) as raised:
        load([Own(1), Harmful(tmp_path / "made")])
    finding = raised.value.finding
    assert finding.name == "checkpoint-needs-classes"
    assert f"{__name__}.Own" in finding.what
    assert finding.where == "here"
    assert not (tmp_path / "made").exists()


def test_a_container_of_another_type_holds_plain_data_too(tmp_path):
    harmful = collections.defaultdict(list, a=[Harmful(tmp_path / "made")])
    with pytest.raises(UsageError) as raised:
        load(harmful)
    assert "getattr" in raised.value.finding.what
    assert not (tmp_path / "made").exists()
    tensors = collections.deque([torch.ones(2), nn.Parameter(torch.zeros(1))])
    assert [tensor.tolist() for tensor in load(tensors)] == [[1.0, 1.0], [0.0]]
    arrays = load(collections.defaultdict(list, a=numpy.arange(3), b=numpy.float64(2), c=b"x"))
    assert (arrays["a"].tolist(), arrays["b"], arrays["c"]) == ([0, 1, 2], 2.0, b"x")


def test_trusted_and_allowed_classes_are_loaded(tmp_path):
    assert load(Own(7), trust=True).value == 7
    with torch.serialization.safe_globals([Own]):
        assert load(Own(8)).value == 8


def test_an_index_holds_no_other_classes(tmp_path):
    (tmp_path / unpickling.INDEX).write_bytes(pickle.dumps(Harmful(tmp_path / "made")))
    with pytest.raises(UsageError, match="checkpoint-needs-classes"):
        unpickling.IndexReader(tmp_path).read_metadata()
    assert not (tmp_path / "made").exists()


class Registered:
    """An object of a script, whose state has a class of the script."""

    def __init__(self):
        self.state = Own(3)

    def state_dict(self):
        return {"own": self.state}

    def load_state_dict(self, state):
        self.state = state["own"]


def begun(folder):
    session = Session(run_dir=folder)
    model = nn.Linear(2, 1)
    session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    session.register(own=Registered())
    return session


def test_a_path_needs_trust_and_the_own_run_folder_does_not(tmp_path):
    first = begun(tmp_path / "a")
    first.save(wait=True)
    other = begun(tmp_path / "b")
    with pytest.raises(UsageError) as raised:
        other.restore(first.run_dir.root)
    assert "Own" in raised.value.finding.what
    assert other.restore(first.run_dir.root, trust=True)
    assert begun(first.run_dir.root).restore("latest")

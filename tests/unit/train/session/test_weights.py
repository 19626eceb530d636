"""Weights of files that others wrote are found, mapped to the model's keys, and said; averages of weights."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from paceline import Session
from paceline.errors import PacelineError, UsageError
from paceline.train.session import run_folder
from paceline.train.session.averaging import average


class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, classes)

    def forward(self, x):
        return self.head(self.norm(self.body(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight


@pytest.fixture
def session(tmp_path):
    return Session(run_dir=tmp_path / "run", loggers=())


def filled(model, value=0.5):
    return {key: torch.full_like(tensor, value) for key, tensor in model.state_dict().items()}


def prefixed(state, prefix):
    return {prefix + key: value for key, value in state.items()}


def values(model):
    return {float(tensor.detach().mean()) for tensor in model.parameters()}


FORMS = {
    "state_dict.pt": lambda state: state,
    "wrapped.pth": lambda state: prefixed(state, "module._orig_mod."),
    "lightning.ckpt": lambda state: {
        "epoch": 3,
        "state_dict": prefixed(state, "model."),
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}}],
    },
    "script.bin": lambda state: {"model": prefixed(state, "module."), "optimizer": {"lr": 0.1}},
    "odd.pt": lambda state: {"step": 1, "generator": state},
}


@pytest.mark.parametrize("name", FORMS)
def test_files_of_torch(session, tmp_path, name):
    model = session.setup(Net())
    torch.save(FORMS[name](filled(model)), tmp_path / name)
    session.load(tmp_path / name)
    assert values(model) == {0.5}


def test_a_whole_module_in_a_trusted_file(session, tmp_path):
    model, source = session.setup(Net()), Net()
    source.load_state_dict(filled(source))
    torch.save(source, tmp_path / "module.pt")
    assert name_of(lambda: session.load(tmp_path / "module.pt")) == "checkpoint-needs-classes"
    session.load(tmp_path / "module.pt", trust=True)
    assert values(model) == {0.5}


@pytest.mark.parametrize("prefix", ["", "encoder.", "module.", "deep.er."])
def test_prefixes_are_dropped_and_said(session, tmp_path, capsys, prefix):
    model = session.setup(Net())
    save_file(prefixed(filled(model), prefix), tmp_path / "model.safetensors")
    session.load(tmp_path / "model.safetensors")
    assert values(model) == {0.5}
    line = capsys.readouterr().err.splitlines()[-1]
    assert "loaded 9 tensors" in line
    if prefix:
        assert "without" in line


def test_a_prefix_is_added(session, tmp_path, capsys):
    outer = nn.ModuleDict({"backbone": Net()})
    session.setup(outer)
    session.load(filled(Net()), outer)
    assert values(outer) == {0.5}
    assert "keys with 'backbone.' in front" in capsys.readouterr().err


def test_a_folder_in_several_files(session, tmp_path):
    model = session.setup(Net())
    state = filled(model)
    names = {key: f"part-{number % 2}.safetensors" for number, key in enumerate(state)}
    for file in set(names.values()):
        save_file({key: state[key] for key in state if names[key] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    session.load(tmp_path)
    assert values(model) == {0.5}
    index.write_text("{")
    assert name_of(lambda: session.load(tmp_path)) == "checkpoint-missing"


def test_a_checkpoint_of_paceline(session, tmp_path):
    other = Session(run_dir=tmp_path / "other", loggers=())
    source = other.setup(Net())
    source.load_state_dict(filled(source, 0.25))
    other.save(wait=True)
    model = session.setup(Net())
    session.load(other.run_dir.root)
    assert values(model) == {0.25}


def test_another_name_of_a_loaded_weight_is_not_missing(session):
    model = session.setup(Tied())
    session.load({"embedding.weight": torch.full((6, 4), 0.5)})
    assert values(model) == {0.5}


def test_what_fits_is_loaded_without_strict(session, capsys):
    model = session.setup(Net(classes=7))
    before = model.head.weight.detach().clone()
    state = prefixed(filled(Net(classes=3)), "net.") | {"other": torch.ones(1)}
    with pytest.raises(UsageError) as raised:
        session.load(state)
    assert raised.value.finding.name == "checkpoint-other-model"
    assert values(model) != {0.5}
    session.load(state, strict=False)
    assert float(model.body.weight.detach().mean()) == 0.5
    assert torch.equal(model.head.weight, before)
    line = capsys.readouterr().err.splitlines()[-1]
    assert "kept as they are: head.weight, head.bias; not used: other" in line


def test_several_weights_that_fit_need_a_prefix(session):
    model = session.setup(Net())
    student, teacher = filled(model, 0.25), filled(model, 0.5)
    both = prefixed(student, "student.") | prefixed(teacher, "teacher.")
    assert name_of(lambda: session.load(both, strict=False)) == "option-invalid"
    session.load(both, prefix="teacher.", strict=False)
    assert values(model) == {0.5}


@pytest.mark.parametrize(
    ("other", "choice"), [("ema", "; its entry 'model', not 'ema'"), ("discriminator", "")]
)
def test_which_of_several_entries_was_loaded_is_said(session, tmp_path, capsys, other, choice):
    model = session.setup(Net())
    beside = filled(model, 0.25) if other == "ema" else {"weight": torch.ones(2)}
    torch.save({other: beside, "model": filled(model)}, tmp_path / "both.pt")
    session.load(tmp_path / "both.pt")
    assert values(model) == {0.5}
    line = f"paceline: loaded 9 tensors from {tmp_path / 'both.pt'}{choice}\n"
    assert capsys.readouterr().err.endswith(line)


class Odd:
    """A class that plain data has not."""


def test_what_cannot_be_loaded_is_said(session, tmp_path):
    own = session.setup(Net())
    (tmp_path / "text.pt").write_text("not a file of torch")
    (tmp_path / "text.safetensors").write_text("nor of safetensors")
    (tmp_path / "nothing.pt").touch()
    torch.save(filled(own), tmp_path / "whole.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:500])
    torch.save({"lr": 0.1}, tmp_path / "empty.pt")
    torch.save({"state_dict": filled(own), "args": Odd()}, tmp_path / "odd.pt")
    for name, expected in {
        "absent.pt": "checkpoint-missing",
        "text.pt": "checkpoint-damaged",
        "text.safetensors": "checkpoint-damaged",
        "nothing.pt": "checkpoint-damaged",
        "cut.pt": "checkpoint-damaged",
        "empty.pt": "checkpoint-missing",
        "odd.pt": "checkpoint-needs-classes",
    }.items():
        assert name_of(lambda name=name: session.load(tmp_path / name)) == expected, name
    session.load(tmp_path / "odd.pt", trust=True)
    assert values(own) == {0.5}
    assert name_of(lambda: session.load(filled(own), Net())) == "option-invalid"
    session.setup(Net())
    assert name_of(lambda: session.load(filled(own))) == "option-invalid"


def name_of(function):
    try:
        function()
    except PacelineError as error:
        return error.finding.name
    return ""


class Pretrained(Net):
    def save_pretrained(self, folder, state_dict=None):
        save_file(state_dict or self.state_dict(), f"{folder}/model.safetensors")


def test_a_model_is_exported_as_its_library_does(session, tmp_path):
    model, _ = session.setup(own := Pretrained(), torch.optim.SGD(own.parameters(), lr=0.1))
    average = session.average(model, decay=0.9)
    (tmp_path / "file").touch()
    for exported in (model, average):
        session.export(exported, tmp_path)
        session.load(tmp_path, model)
    assert name_of(lambda: session.export(session.setup(Net()), tmp_path)) == "option-invalid"
    assert name_of(lambda: session.export(model, tmp_path / "file" / "in")) == "folder-not-writable"


class Compiled(nn.Module):
    """A module with the keys of ``torch.compile``."""

    def __init__(self, inner):
        super().__init__()
        self._orig_mod = inner

    def forward(self, x):
        return self._orig_mod(x)


def trained(folder, wrap, *, steps):
    run_folder.reset()  # a process of its own
    session = Session(run_dir=folder, loggers=())
    torch.manual_seed(0)
    model = wrap(Net())
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    session.restore("latest")
    for _ in range(steps):
        session.backward(model(torch.eye(4, device=session.device)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    session.save(wait=True)
    return [weight.tolist() for weight in model.parameters()]


@pytest.mark.parametrize(("first", "second"), [(Net.train, Compiled), (Compiled, Net.train)])
def test_a_checkpoint_continues_with_and_without_compilation(tmp_path, first, second):
    whole = trained(tmp_path / "whole", first, steps=4)
    trained(tmp_path / "parts", first, steps=2)
    assert trained(tmp_path / "parts", second, steps=2) == whole


@pytest.mark.parametrize(
    ("dtype", "decay", "is_warned"),
    [(torch.bfloat16, 0.999, True), (torch.bfloat16, 0.9, False), (torch.float32, 0.9999, False)],
)
def test_a_type_that_loses_the_updates_is_warned_about(dtype, decay, is_warned):
    model, lines = nn.Linear(2, 1, dtype=dtype), []
    average(model, decay, [torch.optim.SGD(model.parameters(), lr=0.1)], say=lines.append)
    assert ["usually lost" in line for line in lines] == [True] * is_warned

"""What ``setup`` returns looks like the user's module on any number of ranks."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from paceline import DDP, Session
from paceline.errors import UsageError

WORLDS = (1, 2, 3)


class Base(nn.Module):
    """Attributes, properties and methods, some with names that DDP uses itself."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.head = nn.Linear(4, 1)
        self.config = {"hidden": 4}
        self.dim, self.logger, self.temperature = 4, "mine", 1.0
        self.calls = []

    @property
    def scale(self):
        return self.temperature * 2

    @scale.setter
    def scale(self, value):
        self.temperature = value / 2

    def forward(self, x):
        return self.head(torch.tanh(self.body(x))) * self.temperature

    def loss(self, x, *, factor=1.0):
        return (self(x) - x.sum(1, keepdim=True)).square().mean() * factor

    def features(self, x):
        return {"features": torch.tanh(self.body(x))}

    def distribution(self, x):
        return torch.distributions.Normal(self(x), 1.0)

    def generate(self, x):
        return (self(x) > 0).long()

    def join(self, *words):
        return "-".join(words)

    def save_pretrained(self, file):
        torch.save(self.state_dict(), file)

    def train(self, mode=True):
        self.calls.append(mode)
        return super().train(mode)


class Model(Base):
    def __call__(self, x):
        return super().__call__(x)


def rows():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(13, 6, generator=generator, dtype=torch.float64)


def made(kind=Model, **options):
    session = Session(seed=0, **options)
    torch.manual_seed(0)
    return session, kind().double()


def weights(model):
    return {name: value.tolist() for name, value in model.state_dict().items()}


def name_of(function):
    try:
        function()
    except UsageError as error:
        return error.finding.name
    return ""


def looks():
    """Return what a script sees, in values that must not depend on the number of ranks."""
    session, own = made()
    model, _ = session.setup(own, torch.optim.SGD(own.parameters(), lr=0.1))
    x = rows()
    model.temperature = 2
    model.scale = 3
    model.note = "new"
    del model.note
    hooked = []
    handle = model.register_forward_hook(lambda module, *_: hooked.append(type(module).__name__))
    model(x)
    with torch.no_grad():
        model.loss(x)
    handle.remove()
    modes = [model.eval() is model, own.training, model.train() is model, own.body.training]
    file = io.BytesIO()
    model.save_pretrained(file)
    seen = []
    model.apply(lambda module: seen.append(type(module).__name__))
    average = AveragedModel(model)
    loaded = pickle.loads(pickle.dumps(model))
    return {
        "type": (isinstance(model, Model), isinstance(model, Base), repr(model)),
        "class": (model.__class__.__name__, type(model).__module__, type(model).__doc__),
        "attributes": (model.config, model.dim, model.logger, model.join("a", "b")),
        "set": (own.temperature, model.scale, hasattr(model, "note")),
        "hooks": hooked,
        "modes": (modes, own.calls),
        "keys": list(model.state_dict()),
        "parameters": [name for name, _ in model.named_parameters()],
        "modules": [name for name, _ in model.named_modules()],
        "same": next(model.parameters()) is next(own.parameters()),
        "saved": len(file.getvalue()) > 0,
        "applied": seen,
        "average": (list(average.state_dict()), type(average.module) is Model),
        "generated": model.generate(x).tolist(),
        "copied": (type(copy.deepcopy(model)) is Model, type(copy.copy(model)) is Model),
        "pickled": (type(loaded) is Model, list(loaded.state_dict())),
        "missing": name_of_attribute_error(model),
        "unwrapped": session.unwrap(model) is own,
    }


def name_of_attribute_error(model):
    with pytest.raises(AttributeError) as raised:
        model.generat  # noqa: B018
    return str(raised.value)


def test_a_script_sees_its_own_module(ranks):
    (alone,) = ranks.run(looks, world_size=1)
    assert alone["hooks"] == ["Model", "Model"]
    assert ranks.run(looks, world_size=2) == [alone] * 2


def parallel():
    session, own = made()
    model = session.setup(own)
    with model.no_sync():
        within = model.require_backward_grad_sync
    model.require_backward_grad_sync = True
    return (
        isinstance(model, DistributedDataParallel),
        model.module is own,
        within,
        model.require_backward_grad_sync,
        hasattr(own, "require_backward_grad_sync"),
        name_of(lambda: session.setup(model)),
    )


def test_it_is_a_distributed_data_parallel(ranks):
    expected = (True, True, False, True, False, "option-contradicted")
    assert ranks.run(parallel, world_size=2) == [expected] * 2


def contains():
    session, _ = made()
    own = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
    model = session.setup(own)
    assert model
    return (
        len(model),
        [type(layer).__name__ for layer in model],
        type(model[-1]).__name__,
        model[0] is own[0],
        list(model.state_dict()),
        type(model[:2]).__name__,
    )


def test_a_sequential_has_its_length_and_layers(ranks):
    (alone,) = ranks.run(contains, world_size=1)
    assert alone[:3] == (3, ["Linear", "Tanh", "Linear"], "Linear")
    assert ranks.run(contains, world_size=2) == [alone] * 2


# Methods that compute

LOSSES = {
    "forward": lambda model, x: model.forward(x).mean(),
    "method": lambda model, x: model.loss(x, factor=0.5),
    "nested": lambda model, x: model.features(x)["features"].mean(),
    "object": lambda model, x: -model.distribution(x).log_prob(x[:, :1]).mean(),
    "both": lambda model, x: model(x).mean() + model.loss(x),
}


def train(which, accumulate, find_unused):
    options = DDP(find_unused_parameters=find_unused)
    session, own = made(accumulate=accumulate, strategy=options)
    model, optimizer = session.setup(own, torch.optim.SGD(own.parameters(), lr=0.05))
    for _ in range(2):
        for (x,) in session.loader(torch.utils.data.TensorDataset(rows()), batch_size=5):
            if session.backward(LOSSES[which](model, x)):
                optimizer.step()
                optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("which", LOSSES)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_of_a_method_are_averaged(ranks, which, accumulate):
    unused = which == "nested"  # the head takes no part
    (alone,) = ranks.run(train, which, accumulate, unused, world_size=1)
    for world_size in WORLDS[1:]:
        results = ranks.run(train, which, accumulate, unused, world_size=world_size)
        assert results == [results[0]] * world_size
        for name, values in alone.items():
            assert torch.tensor(results[0][name]).sub(torch.tensor(values)).abs().max() < 1e-10


def around(which):
    """Compute with parts of the model, which no method returns."""
    session, own = made()
    model, optimizer = session.setup(own, torch.optim.SGD(own.parameters(), lr=0.05))
    x = rows()
    if which == "layers":
        return name_of(lambda: session.backward(model.head(torch.tanh(model.body(x))).mean()))
    if which == "parameters":
        return name_of(lambda: session.backward(model.body.weight.sum()))
    twin = copy.deepcopy(model)
    second = torch.optim.SGD(twin.parameters(), lr=0.05)
    if which == "second":
        twin, second = session.setup(twin, second)
        session.backward(twin(x).mean() + model(x).mean())
        return name_of(second.step)
    session.backward(twin(x).mean() + model(x).mean())
    if which == "copy":
        return name_of(second.step)
    return name_of(optimizer.step)


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("layers", "gradients-not-averaged"),
        ("parameters", "gradients-not-averaged"),
        ("copy", "gradients-not-averaged"),
        ("second", ""),
        ("unused copy", ""),
    ],
)
def test_gradients_that_nobody_averages_are_refused(ranks, which, expected):
    assert ranks.run(around, which, world_size=2) == [expected] * 2
    assert ranks.run(around, which, world_size=1) == [""]


# Keys


def load():
    session, own = made()
    model = session.setup(own)
    state = {name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()}
    results = []
    for prefix in ("", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
        model.load_state_dict({name: value * 0 for name, value in state.items()})
        answer = model.load_state_dict({prefix + name: value for name, value in state.items()})
        results.append((list(answer), {float(value.min()) for value in own.state_dict().values()}))
    other = {"module.body.weight": state["body.weight"], "extra": state["head.bias"]}
    loose = model.load_state_dict(other, strict=False)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(other)
    return results, sorted(loose.missing_keys), loose.unexpected_keys


@pytest.mark.parametrize("world_size", [1, 2])
def test_keys_of_wrapped_models_load(ranks, world_size):
    for results, missing, unexpected in ranks.run(load, world_size=world_size):
        assert results == [([[], []], {0.5})] * 5
        assert missing == ["body.bias", "head.bias", "head.weight"]
        assert unexpected == ["extra"]


class WithoutPaceline(pickle.Unpickler):
    """Finds no class of paceline, as where it is not installed."""

    def find_class(self, module, name):
        if module.startswith("paceline"):
            raise ModuleNotFoundError(module)
        return super().find_class(module, name)


def unpickle_alone(precision):
    session, _ = made(precision=precision)
    model = session.setup(nn.Linear(6, 1))
    loaded = WithoutPaceline(io.BytesIO(pickle.dumps(model))).load()
    output = loaded(torch.ones(2, 6, dtype=loaded.weight.dtype))
    return str(loaded.load_state_dict(model.state_dict())), str(output.dtype)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("32-true", "float32"), ("bf16-mixed", "float32"), ("bf16-true", "bfloat16")],
)
def test_a_pickled_module_needs_no_paceline(ranks, world_size, precision, dtype):
    expected = "<All keys matched successfully>", f"torch.{dtype}"
    assert ranks.run(unpickle_alone, precision, world_size=world_size) == [expected] * world_size


def copy_in_precision():
    session, _ = made(precision="bf16-mixed")
    model = session.setup(nn.Linear(6, 1))
    x = torch.full((2, 6), 1 / 3)
    alike = bool((copy.deepcopy(model)(x) == model(x)).all())
    return alike, bool((session.unwrap(model).weight @ x[0] + model.bias == model(x)[0]).all())


def test_a_copy_computes_in_the_same_precision(ranks):
    assert ranks.run(copy_in_precision, world_size=1) == [(True, False)]


def unused(find_unused):
    session = Session(seed=0, strategy=DDP(find_unused_parameters=find_unused))
    model = session.setup(Base().double())
    for _ in range(2):
        session.backward(model.features(rows())["features"].mean())
    return session.step


def test_unused_parameters_are_named(ranks):
    def what_of():
        with pytest.raises(AssertionError) as raised:
            ranks.run(unused, False, world_size=2)
        return str(raised.value)

    text = what_of()
    assert "unused-parameters: 2 parameters took no part in the last loss" in text
    assert "head.weight, head.bias" in text
    assert "DDP(find_unused_parameters=True)" in text
    assert ranks.run(unused, True, world_size=2) == [2, 2]


def compiled(when):
    """Train by a model that is compiled before or after setup, in place, or in a compiled step."""
    session, own = made()
    compile_eagerly = torch.compile(backend="eager")
    model = session.setup(compile_eagerly(own) if when == "before" else own)
    if when == "in place":
        model.compile(backend="eager")
    optimizer = torch.optim.SGD(own.parameters(), lr=0.05)
    called = compile_eagerly(model) if when == "after" else model

    def loss_of(x):
        return called(x).square().mean()

    if when == "step":
        # DDP's forward breaks the graph, and Dynamo then looks at .grad of what it returned.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
        loss_of = compile_eagerly(loss_of)
    for (x,) in session.loader(torch.utils.data.TensorDataset(rows()), batch_size=6):
        session.backward(loss_of(x))
        optimizer.step()
        optimizer.zero_grad()
    return [weight.tolist() for weight in own.parameters()], list(called.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after", "in place", "step"])
def test_a_compiled_model_has_one_type_too(ranks, when):
    (alone,) = ranks.run(compiled, when, world_size=1)
    results = ranks.run(compiled, when, world_size=2)
    assert [keys for _, keys in results] == [alone[1]] * 2
    for first, second in zip(results[0][0], alone[0], strict=True):
        assert (torch.tensor(first) - torch.tensor(second)).abs().max() < 1e-10


def compiled_in_mixed_precision(when):
    """Train by a compiled model in bfloat16; return how many operations each graph has."""
    graphs = []

    def count(graph, _):
        graphs.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph

    session = Session(seed=0, precision="bf16-mixed")
    model = session.setup(Base())
    if when == "in place":
        model.compile(backend=count)
    called = torch.compile(model, backend=count) if when == "after" else model
    x = rows().float()
    for _ in range(12):  # more often than Dynamo compiles a function again
        session.backward(called(x).square().mean())
    return graphs


@pytest.mark.parametrize("when", ["after", "in place"])
def test_a_model_in_mixed_precision_is_compiled_once_and_whole(ranks, when):
    assert ranks.run(compiled_in_mixed_precision, when, world_size=1) == [[4]]

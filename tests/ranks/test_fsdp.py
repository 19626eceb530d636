"""Models that fsdp used to stumble over: tied, nested, repeated and scalar parameters, and optimizers with a past."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import TensorDataset

from paceline import DDP, FSDP, Session
from paceline.errors import PacelineError
from paceline.train.model.strategy import choose

pytestmark = pytest.mark.ci

NUM_WORDS, WIDTH = 8, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 5), nn.Linear(5, WIDTH)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class Experts(nn.Module):
    """Each row goes to one of two; on some ranks one of them gets none."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList([Block(), Block()])

    def forward(self, x):
        share, choice = self.router(x).softmax(-1).max(-1)
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            found = found.index_put((choice == number,), expert(x[choice == number]))
        return x + found * share.unsqueeze(-1)


class Words(nn.Module):
    """Embeds words, runs blocks of any kind, and scores words; the heads are the embedding where they are tied."""

    def __init__(self, blocks, *, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(NUM_WORDS, WIDTH)
        self.blocks = blocks
        self.heads = nn.ModuleList([nn.Linear(WIDTH, NUM_WORDS, bias=False) for _ in range(2)])
        if tied:
            self.heads[1].weight = self.embedding.weight

    def forward(self, words):
        x = self.embedding(words)
        for block in called(self.blocks):
            x = block(x)
        return self.heads[0](x) + self.heads[1](x)


def called(block):
    """Return what is called in containers, in order."""
    if isinstance(block, nn.ModuleDict):
        block = block.values()
    elif not isinstance(block, nn.ModuleList):
        return [block]
    return [inner for each in block for inner in called(each)]


def tied_in_sequence():
    model = nn.Sequential(
        nn.Embedding(NUM_WORDS, WIDTH), Block(), nn.Linear(WIDTH, NUM_WORDS, bias=False)
    )
    model[2].weight = model[0].weight
    return model


def nested_lists():
    pair = nn.ModuleDict({"one": Block(), "other": Block()})
    return Words(nn.ModuleList([nn.ModuleList([Block(), Block()]), pair, nn.ModuleList()]))


def sharing_a_part():
    first, second = Block(), Block()
    second.first = first.first
    return Words(nn.ModuleList([first, second, Block()]))


def scaled():
    model = tied_in_sequence()
    model.scale = nn.Parameter(torch.ones(()))
    return model


def listed_twice():
    """An expert is an entry of its own, too."""
    model = Words(nn.ModuleList([Experts()]))
    model.losses_of = nn.ModuleList([model.blocks[0].experts[1]])
    return model


MODELS = {
    "blocks": lambda: Words(nn.ModuleList([Block(), Block()])),
    "tied in a Sequential": tied_in_sequence,
    "tied to the root": lambda: Words(nn.ModuleList([Block(), Block()]), tied=True),
    "blocks that share a part": sharing_a_part,
    "lists of lists": nested_lists,
    "a block thrice": lambda: Words(nn.ModuleList([Block()] * 3)),
    "lists in a block": lambda: Words(nn.ModuleList([Experts(), Block()])),
    "listed twice": listed_twice,
    "scaled": scaled,
}
LAYERS = {
    "outer and inner": (Experts, Block, nn.Linear),
    "inner only": (nn.Linear,),
    "ends": (nn.Embedding, nn.Linear),
    "words": (nn.Embedding,),
    "lists": (nn.ModuleList,),
    "none": (),
}


class Factored(torch.optim.SGD):
    """Remembers something for each row."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.05)
        for each in self.param_groups[0]["params"]:
            self.state[each]["rows"] = torch.zeros(len(each) + 1)


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,  # remembers from its beginning
    "LBFGS": torch.optim.LBFGS,
    "Factored": Factored,
}


def build(kind):
    torch.manual_seed(5)
    return MODELS[kind]().double()


def words():
    generator = torch.Generator().manual_seed(7)
    found = torch.randint(NUM_WORDS, (23, 2), generator=generator)
    return TensorDataset(found[:, 0], found[:, 1])


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).tolist()


def train(kind, strategy, layers=None, optimizer="SGD", steps_before=0):
    """Return weights after an epoch, which parameters are one, what is gathered alone, and the optimizer's state."""
    model = build(kind)
    ours = OPTIMIZERS[optimizer](model.parameters())
    held = ours.param_groups[0]["params"]
    for _ in range(steps_before):
        nn.functional.cross_entropy(model(torch.arange(5)), torch.arange(5)).backward()
        ours.step()
        ours.zero_grad()
    session = Session(
        precision="64-true", seed=3, strategy=FSDP(layers=LAYERS[layers]) if layers else strategy
    )
    ready, ours = session.setup(model, ours)
    assert ours.param_groups[0]["params"] is held
    assert [id(each) for each in held] == [id(each) for each in model.parameters()]
    for x, y in session.loader(words(), 5, shuffle=True):
        session.backward(nn.functional.cross_entropy(ready(x), y))
        ours.step()
        ours.zero_grad()
    named = list(model.named_parameters(remove_duplicate=False))
    shared = [[name for name, each in named if each is other] for other in model.parameters()]
    apart = [name for name, each in model.named_modules() if isinstance(each, FSDPModule)]
    weights = {name: whole(each) for name, each in model.state_dict().items()}
    memory = [{name: whole(value) for name, value in ours.state[each].items()} for each in held]
    return weights, shared, apart, memory


def agree(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(
            torch.tensor(found[name]), torch.tensor(values), rtol=0, atol=1e-8
        )


@pytest.mark.parametrize(
    ("kind", "layers", "gathered"),
    [
        ("tied in a Sequential", None, ["", "1"]),
        ("tied to the root", None, ["", "blocks.0", "blocks.1", "heads.0"]),
        ("blocks that share a part", None, ["", "blocks.2", "heads.0", "heads.1"]),
        (
            "lists of lists",
            None,
            [
                "",
                "blocks.0.0",
                "blocks.0.1",
                "blocks.1.one",
                "blocks.1.other",
                "heads.0",
                "heads.1",
            ],
        ),
        ("a block thrice", None, ["", "blocks.0", "heads.0", "heads.1"]),
        ("lists in a block", None, ["", "blocks.0", "blocks.1", "heads.0", "heads.1"]),
        ("listed twice", None, ["", "heads.0", "heads.1"]),
        (
            "a block thrice",
            "inner only",
            ["", "blocks.0.first", "blocks.0.second", "heads.0", "heads.1"],
        ),
        ("tied to the root", "none", [""]),
        ("lists in a block", "outer and inner", None),
    ],
)
def test_weights_are_those_of_one_rank(ranks, kind, layers, gathered):
    ((weights, shared, *_),) = ranks.run(train, kind, "ddp", world_size=1)
    for found, theirs, apart, _ in ranks.run(train, kind, "fsdp", layers, world_size=2):
        agree(found, weights)
        assert theirs == shared
        assert gathered is None or apart == gathered


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adagrad"])
@pytest.mark.parametrize("steps_before", [0, 3])
def test_an_optimizer_goes_on_where_it_was(ranks, optimizer, steps_before):
    args = ("blocks", "fsdp", None, optimizer, steps_before)
    ((weights, _, _, memory),) = ranks.run(train, *args, world_size=1)
    for found, _, _, theirs in ranks.run(train, *args, world_size=2):
        agree(found, weights)
        for ours, expected in zip(theirs, memory, strict=True):
            agree(ours, expected)


def refused(kind, layers, optimizer):
    try:
        train(kind, "fsdp", layers, optimizer)
    except PacelineError as error:
        return error.finding.name, error.finding.what, error.finding.fix
    return None


@pytest.mark.parametrize(
    ("kind", "layers", "optimizer", "name", "what", "fix"),
    [
        (
            "tied in a Sequential",
            "ends",
            "SGD",
            "option-contradicted",
            "0.weight and 2.weight are",
            "leave Embedding and Linear out of layers=",
        ),
        (
            "tied to the root",
            "words",
            "SGD",
            "option-contradicted",
            "embedding.weight and heads.1.weight are",
            "leave Embedding out of layers=",
        ),
        (
            "lists of lists",
            "lists",
            "SGD",
            "option-invalid",
            "ModuleList has no forward",
            "layers=(YourBlock,)",
        ),
        (
            "scaled",
            None,
            "SGD",
            "option-contradicted",
            "scale is",
            "scale = nn.Parameter(torch.zeros(1))",
        ),
        (
            "blocks",
            None,
            "LBFGS",
            "option-contradicted",
            "LBFGS makes one vector",
            'strategy="ddp", or',
        ),
        (
            "blocks",
            None,
            "Factored",
            "option-contradicted",
            "rows of shape [9] ",
            'strategy="ddp", or',
        ),
    ],
)
def test_what_cannot_be_cut_into_shards_is_refused(ranks, kind, layers, optimizer, name, what, fix):
    for found in ranks.run(refused, kind, layers, optimizer, world_size=2):
        assert found is not None
        assert found[0] == name
        assert what in found[1]
        assert found[2].startswith(fix)


def set_up_twice(strategy):
    model = nn.Sequential(Block(), Block())
    Session(strategy="fsdp").setup(model)
    try:
        Session(strategy=strategy).setup(model)
    except PacelineError as error:
        return error.finding.name, error.finding.what
    return None


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_a_model_is_sharded_once(ranks, strategy):
    for name, what in ranks.run(set_up_twice, strategy, world_size=2):
        assert name == "option-contradicted"
        assert "sharded already" in what


@pytest.mark.parametrize(
    ("options", "fix"),
    [({"bucket_cap_mb": 0}, "bucket_cap_mb=25"), ({"bucket_cap_mb": -1}, "bucket_cap_mb=25")],
)
def test_sizes_of_ddp_that_nothing_fits_in_are_refused(options, fix):
    with pytest.raises(PacelineError) as caught:
        choose(DDP(**options), torch.device("cpu"))
    assert (caught.value.finding.name, caught.value.finding.fix) == ("option-invalid", fix)


def test_the_least_sizes_of_ddp_are_taken():
    options = DDP(bucket_cap_mb=1)
    assert choose(options, torch.device("cpu")) is options

"""The proof of a loss accuses no loss that is a mean over rows, and finds every one that is not."""

import copy
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import paceline
from paceline.launch.probe import proof_batch, proof_hooks
from paceline.launch.probe.loader_maker import Makers
from paceline.launch.probe.loss_proof import LossProof
from paceline.machine.parameters import modules
from paceline.rundir.proofs import MIXES, NOT_JUDGED, PROVEN

pytestmark = pytest.mark.ci

WORDS, CLASSES, LENGTH = 11, 3, 7


class Ended(BaseException):
    """What ends the rank in a run."""


class Columns(Dataset):
    """Rows with inputs, labels, a number, words with padding, pictures, and a sound."""

    def __init__(self):
        draw = torch.Generator().manual_seed(5)
        self.lengths = torch.randint(2, LENGTH + 1, (60,), generator=draw)
        words = torch.randint(1, WORDS, (60, LENGTH), generator=draw)
        padding = torch.arange(LENGTH) >= self.lengths[:, None]
        self.columns = {
            "x": torch.randn(60, 6, generator=draw),
            "y": torch.randint(0, CLASSES, (60,), generator=draw),
            "r": torch.randn(60, generator=draw),
            "words": words.masked_fill(padding, 0),
            "length": self.lengths,
            "picture": torch.randn(60, 2, 6, 6, generator=draw),
            "image": torch.randn(60, 3, 8, 8, generator=draw),
            "sound": torch.randn(60, 400, generator=draw),
            "text": torch.randint(1, WORDS, (60, LENGTH), generator=draw),  # without padding
        }

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return {name: column[index] for name, column in self.columns.items()}


def batches(size=12, collate=None):
    for _ in range(9):
        yield from DataLoader(Columns(), batch_size=size, collate_fn=collate)


def prove(script, *, is_double=True):
    """Run a script under the proof; return what is found, or noted if it ends by itself."""
    found = []

    def end(proof):
        found.append(proof)
        raise Ended

    makers = Makers(lambda file: file == __file__)
    proof = LossProof(
        is_double=is_double,
        place=lambda: makers.line_of(sys._getframe(1)),
        note=found.append,
        end=end,
    )
    patches = proof_hooks.Patches()
    proof_hooks.watch(proof, patches)
    # A proof converts all models of its process, here also those of other tests.
    models = [model for model in modules() if not isinstance(model, torch.jit.ScriptModule)]
    others = [each for model in models for each in [*model.parameters(), *model.buffers()]]
    values = [each.data for each in others]
    torch.manual_seed(1)
    try:
        script()
    except Ended:
        pass
    finally:
        patches.undo()
        if proof.current is not None:
            proof.random.__exit__(None, None, None)
        torch.set_default_dtype(torch.float32)
        for each, value in zip(others, values, strict=True):
            each.data = value
        torch.compiler.set_stance("default")
    return found[-1] if found else None


def mlp(out=CLASSES):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, out))


def normed():
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, CLASSES)
    )


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU(),
        nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def trained(loss_of, make=mlp, **options):
    """A script: a plain loop over batches."""

    def script():
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in batches(**options):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

    return script


def cross_entropy(model, batch, of="x", **options):
    return F.cross_entropy(model(batch[of]), batch["y"], **options)


class Words(nn.Module):
    """Embedded words, mixed by a layer, with tied weights."""

    def __init__(self, mixer, *, sparse=False):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, sparse=sparse)
        self.mixer = mixer()
        self.head = nn.Linear(8, WORDS)
        if not sparse:
            self.head.weight = self.embedding.weight

    def forward(self, words):
        mixed = self.mixer(self.embedding(words))
        return self.head(mixed[0] if isinstance(mixed, tuple) else mixed)


def next_word(model, batch, **options):
    scores = model(batch["words"][:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), batch["words"][:, 1:].flatten(), **options)


def diffusion(model, batch):
    times = torch.randint(0, 100, (len(batch["x"]), 1)) / 100
    noise = torch.randn_like(batch["x"])
    return F.mse_loss(model(batch["x"] * (1 - times) + noise * times), noise)


def gradient_penalty(model, batch):
    real, fake = batch["x"], torch.randn(len(batch["x"]), 6)
    share = torch.rand(len(real), 1)
    mixed = (share * real + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(model(mixed).sum(), mixed, create_graph=True)
    return (model(fake) - model(real)).mean() + ((slope.norm(dim=1) - 1) ** 2).mean()


def reentrant(model, batch):
    x = batch["x"].requires_grad_()
    return F.cross_entropy(checkpoint(model, x, use_reentrant=True), batch["y"])


def mean_per_row(model, batch):
    """A masked mean in each row is a mean over rows."""
    mask = batch["words"][:, :CLASSES] > 3
    return ((model(batch["x"]) * mask).sum(1) / (mask.sum(1) + 1)).mean()


def autocast(model, batch):
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(model(batch["x"].bfloat16()), batch["y"])


def variational(model, batch):
    mean, spread = model(batch["x"]).chunk(2, dim=1)
    value = torch.distributions.Normal(mean, spread.exp()).rsample()
    return F.mse_loss(value, batch["x"][:, :3]) + 0.5 * (mean**2 + spread.exp()).sum(1).mean()


def gan():
    maker, judge = nn.Linear(4, 6), mlp(1)
    of_maker, of_judge = (torch.optim.Adam(each.parameters()) for each in (maker, judge))
    for batch in batches():
        fake = maker(torch.randn(len(batch["x"]), 4))
        of_judge.zero_grad()
        (F.softplus(judge(fake.detach())) + F.softplus(-judge(batch["x"]))).mean().backward()
        of_judge.step()
        of_maker.zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        of_maker.step()


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization, as its paper's code writes it."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)

    @torch.no_grad()
    def first_step(self):
        own = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in own]).norm()
        for p in own:
            self.state[p]["old"] = p.data.clone()
            p.add_(p.grad * (0.05 / norm))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p in self.param_groups[0]["params"]:
            p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()


def sam():
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    for batch in batches():
        cross_entropy(model, batch).backward()
        optimizer.first_step()
        cross_entropy(model, batch).backward()
        optimizer.second_step()


def accumulated():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches()):
        (cross_entropy(model, batch) / 4).backward()
        if number % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()


def in_chunks():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches():
        for x, y in zip(batch["x"].chunk(2), batch["y"].chunk(2), strict=True):
            (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def moving_average():
    model = normed()
    teacher = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(model)
    for batch in batches():
        with torch.no_grad():
            target = teacher(batch["x"])
        F.mse_loss(model(batch["x"]), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        for own, other in zip(teacher.parameters(), model.parameters(), strict=True):
            own.data.lerp_(other.data, 0.1)


def in_session(loss_of, make=mlp, *, weight=lambda batch: None, **options):
    """A script with a Session; the loss may use it."""

    def script():
        session = paceline.Session(seed=0, **options)
        model = make()
        model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        train = session.loader(Columns(), batch_size=12, shuffle=True, num_workers=0)
        for _ in session.epochs(9):
            for batch in train:
                if session.backward(loss_of(session, model, batch), weight(batch)):
                    optimizer.step()
                    optimizer.zero_grad()

    return script


def ctc(_, model, batch):
    scores = model(batch["words"]).log_softmax(-1).transpose(0, 1)
    lengths = torch.full_like(batch["length"], LENGTH)
    targets = batch["words"][:, :4].clamp(min=1)
    numbers = torch.clamp(batch["length"], max=4)
    losses = F.ctc_loss(scores, targets, lengths, numbers, reduction="none", zero_infinity=True)
    return losses.sum() / numbers.sum()


PLAIN_CTC = trained(lambda model, batch: ctc(None, model, batch), partial(Words, nn.Identity))
LSTM = partial(nn.LSTM, 8, 8, batch_first=True)

RIGHT = {
    "cross entropy": trained(cross_entropy),
    "label smoothing": trained(partial(cross_entropy, label_smoothing=0.1)),
    "batch norm and dropout": trained(cross_entropy, normed),
    "convolutions": trained(partial(cross_entropy, of="picture"), convolutional),
    "diffusion": trained(diffusion, partial(mlp, 6)),
    "gradient penalty": trained(gradient_penalty, partial(mlp, 1)),
    "checkpointing": trained(
        lambda m, b: cross_entropy(lambda x: checkpoint(m, x, use_reentrant=False), b), normed
    ),
    "reentrant checkpointing": trained(reentrant, normed),
    "variational": trained(variational, partial(mlp, 6)),
    "several tasks": trained(
        lambda m, b: cross_entropy(m, b) + 0.3 * F.huber_loss(m(b["x"])[:, 0], b["r"])
    ),
    "masked mean in each row": trained(mean_per_row),
    "autocast": trained(autocast),
    "tied weights": trained(next_word, partial(Words, nn.Identity)),
    "sparse embedding": trained(next_word, partial(Words, nn.Identity, sparse=True)),
    "LSTM": trained(next_word, partial(Words, LSTM)),
    "GAN": gan,
    "SAM": sam,
    "accumulated": accumulated,
    "in chunks": in_chunks,
    "moving average": moving_average,
    "compiled": trained(cross_entropy, lambda: torch.compile(mlp(), backend="eager")),
    "session": in_session(lambda _, *of: cross_entropy(*of), normed),
    "accumulate=4": in_session(lambda _, *of: cross_entropy(*of), accumulate=4),
    "CTC with weight": in_session(
        ctc, partial(Words, nn.Identity), weight=lambda b: torch.clamp(b["length"], max=4).sum()
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_mean_over_rows_is_proven(name):
    proof = prove(RIGHT[name])
    assert (proof.state, proof.reason) == (PROVEN, "")
    assert proof.error < 1e-10


def masked_mean(model, batch):
    losses = cross_entropy(model, batch, reduction="none")
    mask = batch["r"] > 0.3
    return (losses * mask).sum() / mask.sum()


def over_positives(model, batch):
    scores, target = model(batch["x"])[:, 0], (batch["y"] == 1).double()
    losses = F.binary_cross_entropy_with_logits(scores, target, reduction="none")
    return ((1 - (-losses).exp()) ** 2 * losses).sum() / target.sum()


def rows_dropped(model, batch):
    kept = batch["r"] > 0.3
    return F.cross_entropy(model(batch["x"][kept]), batch["y"][kept])


def of_boxes(model, batch):
    boxes = torch.cat(
        [row.repeat(int(n), 1) for row, n in zip(batch["x"], batch["length"], strict=True)]
    )
    return F.smooth_l1_loss(model(boxes), boxes[:, :CLASSES] * 2)


def of_padded_boxes(model, batch):
    """Boxes padded to the same number in each row, with a mask."""
    is_box = torch.arange(LENGTH) < batch["length"][:, None]
    losses = F.smooth_l1_loss(model(batch["x"]), batch["x"][:, :CLASSES] * 2, reduction="none")
    return (losses.mean(1, keepdim=True) * is_box).sum() / is_box.sum()


def in_batch_negatives(model, batch):
    scores = model(batch["x"]) @ model(batch["x"] * 1.1).T
    return F.cross_entropy(scores, torch.arange(len(scores)))


def hardest_triplets(model, batch):
    out = model(batch["x"])
    distances, same = torch.cdist(out, out), batch["y"][:, None] == batch["y"]
    far = (distances + 100 * same).min(1).values
    return F.relu((distances * same).max(1).values - far + 1).mean()


def dice(model, batch):
    shares, target = model(batch["x"]).softmax(1)[:, 1], batch["y"] == 1
    return 1 - 2 * (shares * target).sum() / (shares.sum() + target.sum())


def balance(model, batch):
    gates = model(batch["x"]).softmax(1)
    shares = F.one_hot(gates.argmax(1), CLASSES).double().mean(0)
    return F.cross_entropy(gates, batch["y"]) + 0.01 * CLASSES * (shares * gates.mean(0)).sum()


def contrastive(model, batch):
    both = F.normalize(torch.cat([model(batch["x"]), model(batch["x"] + 0.1)]), dim=1)
    scores = both @ both.T / 0.5 - 100 * torch.eye(len(both))
    half = len(both) // 2
    return F.cross_entropy(scores, torch.arange(len(both)).roll(half))


def redundancy(model, batch):
    one, other = (F.normalize(model(batch["x"] + shift), dim=0) for shift in (0.0, 0.1))
    return (one.T @ other - torch.eye(CLASSES)).pow(2).sum()


class Centred(nn.Module):
    """A batch norm by hand, without statistics."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return self.inner(x - x.mean(0))


class Counting(Centred):
    """A buffer that counts rows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        self.seen += len(x)
        return self.inner(x)


class Prototypes(Counting):
    """Class means, as a moving average of rows, which the loss compares with."""

    def __init__(self):
        super().__init__()
        self.register_buffer("means", torch.randn(CLASSES, CLASSES))

    def forward(self, x):
        out = self.inner(x)
        nearest = torch.cdist(out, self.means).argmin(1).detach()
        for kind in nearest.unique():
            self.means[kind] = 0.9 * self.means[kind] + 0.1 * out[nearest == kind].mean(0).detach()
        return out - self.means[nearest]


WRONG = {
    "masked mean": trained(masked_mean),
    "sum over a constant": trained(lambda *of: cross_entropy(*of, reduction="sum") / 12),
    "sum": trained(partial(cross_entropy, reduction="sum")),
    "focal over positives": trained(over_positives),
    "rows dropped": trained(rows_dropped),
    "boxes": trained(of_boxes),
    "boxes with a mask": trained(of_padded_boxes),
    "token mean": trained(partial(next_word, ignore_index=0), partial(Words, nn.Identity)),
    "in-batch negatives": trained(in_batch_negatives),
    "hardest triplets": trained(hardest_triplets),
    "dice": trained(dice, normed),
    "std": trained(lambda m, b: cross_entropy(m, b) - 0.1 * m(b["x"]).std(0).mean()),
    "balance of experts": trained(balance),
    "root": trained(lambda m, b: F.mse_loss(m(b["x"])[:, 0], b["r"]).sqrt()),
    "mean in forward": trained(cross_entropy, Centred),
    "buffer that counts": trained(cross_entropy, Counting),
    "prototypes": trained(cross_entropy, Prototypes),
    "contrastive": trained(contrastive),
    "redundancy": trained(redundancy),
    "weighted classes": trained(
        lambda m, b: cross_entropy(m, b, weight=torch.tensor([1.0, 2.0, 5.0]))
    ),
    "CTC without weight": PLAIN_CTC,
    "CTC of a session without weight": in_session(ctc, partial(Words, nn.Identity)),
    "masked mean of a session": in_session(lambda _, *of: masked_mean(*of), accumulate=4),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_loss_that_mixes_rows_is_found_with_its_line(name):
    proof = prove(WRONG[name])
    assert proof.state == MIXES, proof
    assert proof.finding["name"] == "loss-mixes-rows"
    assert "test_loss_proof.py:" in proof.finding["where"]


def mixup(model, batch):
    partner, share = torch.randperm(len(batch["x"])), torch.rand(())
    x = share * batch["x"] + (1 - share) * batch["x"][partner]
    return share * F.cross_entropy(model(x), batch["y"]) + (1 - share) * F.cross_entropy(
        model(x), batch["y"][partner]
    )


def carried():
    model, state = nn.GRUCell(6, CLASSES), torch.zeros(12, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches():
        state = model(batch["x"], state)
        F.cross_entropy(state, batch["y"]).backward()
        optimizer.step()
        state = state.detach()


def of_two_loaders():
    model = mlp()
    for batch, other in zip(batches(), DataLoader(Columns(), batch_size=5), strict=False):
        (cross_entropy(model, batch) + cross_entropy(model, other)).backward()


def of_one_batch():
    model, batch = mlp(), next(iter(batches()))
    while True:
        cross_entropy(model, batch).backward()


def with_flat(rows):
    batch = torch.utils.data.default_collate(rows)
    return batch | {"flat": torch.cat([row["words"][: row["length"]] for row in rows])}


def without_backward():
    for batch in batches():
        assert len(batch["x"])


def of_gathered(session, model, batch):
    out, labels = session.gather(model(batch["x"]), gradients=True), session.gather(batch["y"])
    return F.cross_entropy(out @ out.T, labels)


NOT_JUDGEABLE = {
    "mixup": (trained(mixup), "randperm"),
    "noise of numpy": (
        trained(
            lambda m, b: cross_entropy(
                lambda x: m(x + torch.Tensor(np.random.standard_normal(x.shape))), b
            )
        ),
        "NumPy's generator",
    ),
    "carried state": (carried, "carries state from batch to batch"),
    "two loaders": (of_two_loaders, "batches of another loader"),
    "one batch": (of_one_batch, "256 backwards without another batch"),
    "one row": (trained(cross_entropy, size=1), "one row"),
    "flat part": (trained(cross_entropy, collate=with_flat), "a part of shape"),
    "session.gather": (in_session(of_gathered), "session.gather in "),
}


@pytest.mark.parametrize("name", NOT_JUDGEABLE)
def test_what_cannot_be_told_is_not_judged(name):
    script, reason = NOT_JUDGEABLE[name]
    proof = prove(script)
    assert proof.state == NOT_JUDGED, proof
    assert reason in proof.reason


def test_a_script_without_backward_is_not_followed():
    assert prove(without_backward) is None


@pytest.mark.parametrize(
    ("name", "state"), [("root", MIXES), ("LSTM", PROVEN), ("autocast", PROVEN)]
)
def test_float32_is_enough_where_float64_fails(name, state):
    proof = prove({**RIGHT, **WRONG}[name], is_double=False)
    assert (proof.state, proof.is_double) == (state, False)


def test_no_step_is_taken():
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    assert prove(trained(cross_entropy, lambda: model), is_double=False).state == PROVEN
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("size", range(2, 70))
def test_a_batch_is_divided_into_two_parts(size):
    for first, rest in proof_batch.divisions(size):
        assert sorted(first + rest) == list(range(size))
        assert min(len(first), len(rest)) >= (2 if size > 3 else 1)


def test_rows_of_lists_and_nested_parts_are_cut():
    batch = {"boxes": [torch.ones(n, 4) for n in range(5)], "name": list("abcde"), "scale": 2.0}
    loader = DataLoader(range(5), batch_size=5)
    assert proof_batch.num_rows(loader, batch) == 5
    part = proof_batch.cut(batch, 5, [2, 3], is_double=True)
    assert [len(boxes) for boxes in part["boxes"]] == [2, 3]
    assert part["boxes"][0].dtype == torch.float64
    assert (part["name"], part["scale"]) == (["c", "d"], 2.0)

"""The proof of a loss accuses no loss that is a mean over rows, and finds every one that is not."""

from __future__ import annotations

import copy
import sys
from functools import partial

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
from paceline.rundir.proofs import MIXES, NOT_JUDGED, PROVEN

WORDS, CLASSES, LENGTH = 11, 3, 7


class Ended(BaseException):
    """What ends the rank in a run."""


class Columns(Dataset):
    """Rows with inputs, labels, a number, words with padding, and a picture."""

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
        }

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return {name: column[index] for name, column in self.columns.items()}


def batches(size=12):
    for _ in range(9):
        yield from DataLoader(Columns(), batch_size=size)


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
    torch.manual_seed(1)
    try:
        script()
    except Ended:
        pass
    finally:
        patches.undo()
        if any(each.state == "under-way" for each in found):
            proof.random.__exit__(None, None, None)
        torch.set_default_dtype(torch.float32)
        torch.compiler.set_stance("default")
    return found[-1] if found else None


def mlp(out=CLASSES):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, out))


def normed():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), mlp_end())


def mlp_end():
    return nn.Linear(8, CLASSES)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU(),
        nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def trained(loss_of, make=mlp):
    """A script: a plain loop over batches."""

    def script():
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in batches():
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

    return script


def cross_entropy(model, batch, **options):
    return F.cross_entropy(model(batch["x"]), batch["y"], **options)


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


class Attention(nn.MultiheadAttention):
    def __init__(self):
        super().__init__(8, 2, dropout=0.3, batch_first=True)

    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)


def transformer():
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)


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


def checkpointed(model, batch):
    return F.cross_entropy(checkpoint(model, batch["x"], use_reentrant=False), batch["y"])


def reentrant(model, batch):
    x = batch["x"].requires_grad_()
    return F.cross_entropy(checkpoint(model, x, use_reentrant=True), batch["y"])


def several_tasks(model, batch):
    out = model(batch["x"])
    return F.cross_entropy(out, batch["y"]) + 0.3 * F.huber_loss(out[:, 0], batch["r"])


def divergence(model, batch):
    target = F.softmax(batch["x"][:, :CLASSES], dim=1)
    return F.kl_div(F.log_softmax(model(batch["x"]), 1), target, reduction="batchmean")


def triplets(model, batch):
    far, near = model(batch["x"].flip(1)), model(batch["x"] + 0.1)
    return F.triplet_margin_loss(model(batch["x"]), near, far)


def mean_per_row(model, batch):
    """A masked mean in each row is a mean over rows."""
    mask = batch["words"][:, :CLASSES] > 3
    return ((model(batch["x"]) * mask).sum(1) / (mask.sum(1) + 1)).mean()


def of_pictures(model, batch):
    return F.cross_entropy(model(batch["picture"]), batch["y"])


def autocast(model, batch):
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(model(batch["x"].float()), batch["y"])


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


def lbfgs():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters())
    for batch in batches():

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = cross_entropy(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


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


def compiled():
    trained(cross_entropy, lambda: torch.compile(mlp()))()


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
    targets = batch["words"][:, :3].clamp(min=1)
    numbers = torch.clamp(batch["length"], max=3)
    losses = F.ctc_loss(scores, targets, lengths, numbers, reduction="none", zero_infinity=True)
    return losses.sum() / numbers.sum()


def num_letters(batch):
    return torch.clamp(batch["length"], max=3).sum()


PLAIN_CTC = trained(lambda model, batch: ctc(None, model, batch), partial(Words, nn.Identity))
LSTM = partial(nn.LSTM, 8, 8, batch_first=True)

RIGHT = {
    "cross entropy": trained(cross_entropy),
    "label smoothing": trained(partial(cross_entropy, label_smoothing=0.1)),
    "batch norm and dropout": trained(cross_entropy, normed),
    "convolutions": trained(of_pictures, convolutional),
    "diffusion": trained(diffusion, partial(mlp, 6)),
    "gradient penalty": trained(gradient_penalty, partial(mlp, 1)),
    "checkpointing": trained(checkpointed, normed),
    "reentrant checkpointing": trained(reentrant, normed),
    "variational": trained(variational, partial(mlp, 6)),
    "several tasks": trained(several_tasks),
    "divergence": trained(divergence),
    "triplets of each row": trained(triplets),
    "masked mean in each row": trained(mean_per_row),
    "autocast": trained(autocast),
    "tied weights": trained(next_word, partial(Words, nn.Identity)),
    "sparse embedding": trained(next_word, partial(Words, nn.Identity, sparse=True)),
    "LSTM": trained(next_word, partial(Words, LSTM)),
    "transformer": trained(next_word, partial(Words, transformer)),
    "attention with dropout": trained(next_word, partial(Words, Attention)),
    "GAN": gan,
    "SAM": sam,
    "LBFGS": lbfgs,
    "accumulated": accumulated,
    "in chunks": in_chunks,
    "moving average": moving_average,
    "compiled": compiled,
    "session": in_session(lambda _, *of: cross_entropy(*of), normed),
    "accumulate=4": in_session(lambda _, *of: cross_entropy(*of), accumulate=4),
    "CTC with weight": in_session(ctc, partial(Words, nn.Identity), weight=num_letters),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_mean_over_rows_is_proven(name):
    proof = prove(RIGHT[name])
    assert (proof.state, proof.reason) == (PROVEN, "")
    assert proof.error < 1e-10

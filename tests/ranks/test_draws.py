"""Random numbers in data and loop: what session.draws and held generators make equal, and what is announced."""

import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from ranks import parity
from ranks.parity import WIDTH, mse, net, rows

WORLDS = (2, 3)


def regress(folder, loss_of=mse, dataset=None, *, out=1, width=WIDTH, accumulate=1, **options):
    """Train, with a loss that may draw from the session; the watched loss draws nothing."""
    session = parity.session_of(folder, accumulate=accumulate)
    model, optimizer = session.setup(
        model := net(out, width), torch.optim.AdamW(model.parameters(), lr=0.02)
    )
    dataset = TensorDataset(*rows()) if dataset is None else dataset
    loader = session.loader(dataset, parity.BATCH, shuffle=True, **options)
    x, y = rows()
    seen = torch.cat([x, y], 1)[:, :width]
    loss = functools.partial(loss_of, session) if loss_of is not mse else mse
    return parity.train(
        session,
        model,
        optimizer,
        loader,
        loss,
        watch=lambda model: (model(seen) - y).square().mean(),
    )


# session.draws


def diffusion(folder, **options):
    """Noise of a random strength is to be predicted, as in DDPM."""

    def loss_of(session, model, batch):
        x, _ = batch
        noise = session.draws.randn(*x.shape[1:], dtype=x.dtype)
        time = session.draws.randint(1, 100, 1) / 100
        noisy = (1 - time).sqrt() * x + time.sqrt() * noise
        return nn.functional.mse_loss(model(torch.cat([noisy, time.to(x)], 1)), noise)

    return regress(folder, loss_of, out=WIDTH, width=WIDTH + 1, **options)


def diffusion_accumulated(folder):
    return diffusion(folder, accumulate=3)


def mixup(folder):
    """Each row is mixed with one of the global batch, which other ranks may hold."""

    def loss_of(session, model, batch):
        x, y = batch
        partners = session.draws.permutation()
        share = session.draws.rand(1, dtype=x.dtype)
        other_x, other_y = session.gather(x)[partners], session.gather(y)[partners]
        return mse(model, (torch.lerp(x, other_x, share), torch.lerp(y, other_y, share)))

    return regress(folder, loss_of)


class Mixed(Dataset):
    """Mixup before the split: a sample reads its partner itself."""

    def __init__(self):
        self.rows = list(zip(*rows(), strict=True))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        other, share = self.rows[random.randrange(len(self))], random.random()
        return tuple(
            torch.lerp(one, two, share) for one, two in zip(self.rows[index], other, strict=True)
        )


def mixup_before_the_split(folder):
    return regress(folder, dataset=Mixed())


def masked(folder):
    def loss_of(session, model, batch):
        x, y = batch
        return mse(model, (x * session.draws.bernoulli(0.7, WIDTH), y))

    return regress(folder, loss_of)


def gan(folder):
    """The latent rows of the fakes, and others for the generator's own step."""
    session = parity.session_of(folder)
    generator, discriminator = net(WIDTH), net(1)
    makes, of_maker = session.setup(generator, torch.optim.Adam(generator.parameters(), lr=0.01))
    judges, of_judge = session.setup(
        discriminator, torch.optim.Adam(discriminator.parameters(), lr=0.01)
    )
    x, _ = rows()
    score, losses = nn.functional.binary_cross_entropy_with_logits, []
    loader = session.loader(TensorDataset(x), parity.BATCH, shuffle=True)
    for _ in session.epochs(2):
        for (real,) in loader:
            of_judge.zero_grad()
            fake = makes(session.draws.randn(WIDTH, dtype=real.dtype)).detach()
            true, false = judges(torch.cat([real, fake])).tensor_split(2)
            session.backward(
                score(true, torch.ones_like(true)) + score(false, torch.zeros_like(false))
            )
            of_judge.step()
            of_maker.zero_grad()
            judges.requires_grad_(False)
            again = judges(makes(session.draws.randn(WIDTH, dtype=real.dtype)))
            session.backward(score(again, torch.ones_like(again)))
            judges.requires_grad_(True)
            of_maker.step()
            losses.append(
                parity.watched(
                    lambda model: model(generator(x)).mean() + model(x).mean(), discriminator
                )
            )
    return losses, parity.weights_of(generator, discriminator)


# Generators of the dataset


class Drawing(Dataset):
    """Rows with noise from a transform, and from a generator of its own if there is one."""

    def __init__(self, transform=None, rng=None):
        self.x, self.y = rows()
        self.transform, self.rng = transform, rng

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        if self.transform is not None:
            x = self.transform(x)
        if isinstance(self.rng, torch.Generator):
            x = x + torch.randn(WIDTH, generator=self.rng, dtype=x.dtype)
        elif self.rng is not None:
            x = x + torch.from_numpy(self.rng.normal(size=WIDTH))
        return x, self.y[index]


class Randomizable:
    """What monai's transforms inherit: a generator of the class until ``set_random_state``."""

    R = np.random.RandomState()

    def set_random_state(self, seed):
        self.R = np.random.RandomState(seed)
        return self


class RandGaussianNoise(Randomizable):
    def __init__(self, prob):
        self.prob = prob

    def __call__(self, x):
        return x + self.R.randn() if self.R.rand() < self.prob else x


class RandScale(Randomizable):
    def __call__(self, x):
        return x * self.R.uniform(0.5, 2)


class Compose:
    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class Jitter:
    def __init__(self):
        self.py_random = random.Random(3)

    def __call__(self, x):
        return x + self.py_random.gauss(0, 1)


def monai_rand(folder):
    transform = Compose(RandGaussianNoise(0.5), RandScale().set_random_state(3))
    return regress(folder, dataset=Drawing(transform))


def numpy_generator_seeded(folder):
    return regress(folder, dataset=Drawing(rng=np.random.default_rng(4)), num_workers=1)


def numpy_generator_not_seeded(folder):
    return regress(folder, dataset=Drawing(rng=np.random.default_rng()))


def python_generator_in_a_transform(folder):
    return regress(folder, dataset=Drawing(Jitter()))


def torch_generator_of_the_dataset(folder):
    return regress(folder, dataset=Drawing(rng=torch.Generator()))


def generator_in_a_closure(folder):
    rng = np.random.default_rng()
    return regress(folder, dataset=Drawing(lambda x: x + rng.normal()))


EQUAL = [
    diffusion,
    diffusion_accumulated,
    mixup,
    mixup_before_the_split,
    masked,
    gan,
    monai_rand,
    numpy_generator_seeded,
    numpy_generator_not_seeded,
    python_generator_in_a_transform,
    torch_generator_of_the_dataset,
    generator_in_a_closure,
]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("setup", EQUAL, ids=lambda setup: setup.__name__)
def test_losses_and_weights_are_those_of_one_rank(ranks, alone, tmp_path, setup, world_size):
    parity.check(parity.run(ranks, setup, tmp_path / "run", world_size), alone(setup))


def stopped(folder, stop):
    """Diffusion that saves and leaves its loop after ``stop`` batches; None continues to the end."""
    session = parity.session_of(folder)
    model, optimizer = session.setup(
        model := net(WIDTH), torch.optim.AdamW(model.parameters(), lr=0.02)
    )
    loader = session.loader(TensorDataset(rows()[0]), parity.BATCH, shuffle=True)
    session.restore("latest")
    for _ in session.epochs(2):
        for (x,) in loader:
            noise = session.draws.randn(WIDTH, dtype=x.dtype)
            session.backward(nn.functional.mse_loss(model(x + noise), noise))
            optimizer.step()
            optimizer.zero_grad()
            if session.step == stop:
                session.save(wait=True)
                return None
    return parity.weights_of(session.unwrap(model))


def test_a_resume_on_another_number_of_ranks_continues_the_numbers(ranks, tmp_path):
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, _ = ranks.run(stopped, str(tmp_path / "whole"), None, world_size=2)
    ranks.run(stopped, str(tmp_path / "parts"), 4, world_size=2)
    ranks.run(stopped, str(tmp_path / "parts"), 11, world_size=3)
    (found,) = ranks.run(stopped, str(tmp_path / "parts"), None, world_size=1)
    for name, values in whole.items():
        difference = torch.tensor(values, dtype=torch.float64) - torch.tensor(
            found[name], dtype=torch.float64
        )
        assert difference.abs().max() < parity.TOLERANCE


# What is announced


class RandomScale(nn.Module):
    """What kornia's augmentations do: parameters for each row of the batch are drawn in ``forward``."""

    def forward(self, x):
        return x * torch.empty(len(x), 1, dtype=x.dtype).uniform_(0.5, 2)  # KORNIA


class OnTokens(nn.Module):
    """A model that drops by a function, not by a module."""

    def __init__(self, how):
        super().__init__()
        self.how, self.last = how, nn.Linear(WIDTH, 1)
        self.middle = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.5 if how == "lstm" else 0.0)

    def forward(self, x):
        if self.how == "function":
            x = nn.functional.dropout(x, 0.5, self.training)
        if self.how == "attention":
            x = x[:, None, None]
            x = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)[:, 0, 0]
        return self.last(self.middle(x[:, None])[0][:, 0])


def noise_in_the_loss(session, model, batch):
    x, y = batch
    return mse(model, (x + 0.1 * torch.randn_like(x), y))  # NOISE


def mixup_by_torch(session, model, batch):
    x, y = batch
    order, share = torch.randperm(len(x)), np.random.beta(1, 1)  # MIXUP
    return mse(model, (torch.lerp(x, x[order], share), torch.lerp(y, y[order], share)))


def kornia_on_the_batch(session, model, batch):
    return mse(model, (RandomScale()(batch[0]), batch[1]))


def flips_by_python(session, model, batch):
    return mse(model, (batch[0] * (1 if random.random() < 0.5 else -1), batch[1]))  # FLIP


def own_generator(session, model, batch):
    x, y = batch
    noise = torch.randn(WIDTH, generator=torch.Generator().manual_seed(session.step))
    return mse(model, (x + noise + session.draws.randn(WIDTH), y))


def plain(session, model, batch):
    return mse(model, batch)


def mixing_collate(samples):
    x, y = torch.utils.data.default_collate(samples)
    order = torch.randperm(len(x))
    return (x + x[order]) / 2, (y + y[order]) / 2


def make_generated_collate():
    rng = np.random.default_rng()
    return lambda samples: [
        part * rng.random() for part in torch.utils.data.default_collate(samples)
    ]


def said(folder, loss_of, how="", collate="", watched=True, seed=3):
    """Return what rank 0 says in an epoch, and the weights; a look at the first batch comes before the model."""
    from paceline import Session
    from paceline.text import terminal
    from paceline.train.session.limits import RankDependence

    lines, say, watch = [], terminal.say, RankDependence.watch_draws
    terminal.say = lines.append
    if not watched:
        RankDependence.watch_draws = lambda *_, **__: None
    try:
        torch.manual_seed(1)
        session = Session(precision="64-true", seed=seed, run_dir=folder, loggers=())
        collate_fn = {"": None, "function": mixing_collate, "held": make_generated_collate()}[
            collate
        ]
        loader = session.loader(
            TensorDataset(*rows()), parity.BATCH, shuffle=True, collate_fn=collate_fn
        )
        next(iter(loader))
        torch.manual_seed(1)
        model = OnTokens(how) if how else net()
        if how == "module":
            model = nn.Sequential(nn.Dropout(0.5), model)
        model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in loader:
            session.backward(globals()[loss_of](session, model, batch))
            optimizer.step()
            optimizer.zero_grad()
        return lines, parity.weights_of(session.unwrap(model))
    finally:
        terminal.say, RankDependence.watch_draws = say, watch


def line_of(mark):
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if line.endswith(f"# {mark}\n"))


NAMED = {
    "noise_in_the_loss": ("randn_like", "NOISE", "randn(*x.shape[1:])"),
    "mixup_by_torch": ("randperm", "MIXUP", "session.draws.permutation()"),
    "kornia_on_the_batch": ("uniform_", "KORNIA", "rand(*x.shape[1:])"),
    "flips_by_python": ("random.random", "FLIP", "session.draws.rand"),
}


@pytest.mark.parametrize("loss_of", NAMED)
def test_what_the_loop_draws_is_named_with_its_line_and_no_number_is_changed(
    ranks, tmp_path, loss_of
):
    operation, mark, fix = NAMED[loss_of]
    results = ranks.run(said, str(tmp_path / "run"), loss_of, world_size=2)
    (first, weights), (second, _) = results
    (hint,) = [line for line in first if "loop-draws-numbers" in line]
    assert f"loop-draws-numbers: {operation} draws" in hint
    assert f"where: test_draws.py:{line_of(mark)}" in hint
    assert fix in hint
    assert ("also numpy.random" in hint) is (loss_of == "mixup_by_torch")
    assert "loop-draws-numbers" not in " ".join(second)
    unwatched = ranks.run(said, str(tmp_path / "unwatched"), loss_of, "", "", False, world_size=2)
    assert unwatched[0][1] == weights
    assert "loop-draws-numbers" not in " ".join(unwatched[0][0])


@pytest.mark.parametrize("how", ["function", "attention", "lstm", "module"])
def test_dropout_that_is_no_module_has_dropout_s_line(ranks, tmp_path, how):
    results = ranks.run(said, str(tmp_path / "run"), "plain", how, world_size=2)
    lines = results[0][0]
    assert [line for line in lines if "dropout masks are drawn on each rank" in line] == [
        "results depend on the number of ranks here: dropout masks are drawn on each rank"
    ]
    assert "loop-draws-numbers" not in " ".join(lines)


@pytest.mark.parametrize("collate", ["function", "held"])
def test_a_collate_function_that_draws_is_named(ranks, tmp_path, collate):
    results = ranks.run(said, str(tmp_path / "run"), "plain", "", collate, world_size=2)
    (hint,) = [line for line in results[0][0] if "loop-draws-numbers" in line]
    named = {"function": "(torch)", "held": "(collate_fn: rng)"}[collate]
    assert f"collate_fn draws random numbers {named}" in hint
    assert "test_draws.py:" in hint


@pytest.mark.parametrize(
    ("loss_of", "seed", "world_size"),
    [("plain", 3, 2), ("own_generator", 3, 2), ("noise_in_the_loss", 3, 1)],
)
def test_nothing_is_said_where_nothing_depends_on_the_ranks(
    ranks, tmp_path, loss_of, seed, world_size
):
    folder = str(tmp_path / "run")
    results = ranks.run(said, folder, loss_of, "", "", True, seed, world_size=world_size)
    assert "depend" not in " ".join(results[0][0])


def graph_breaks(folder, watched):
    """Return what torch.compile could not compile in a training with noise."""
    import torch._dynamo as dynamo

    from paceline.train.session.limits import RankDependence

    dynamo.reset()
    dynamo.utils.counters.clear()
    watch = RankDependence.watch_draws
    if not watched:
        RankDependence.watch_draws = lambda *_, **__: None
    try:
        session = parity.session_of(folder)
        model, optimizer = session.setup(
            model := net(), torch.optim.SGD(model.parameters(), lr=0.1)
        )
        compiled = torch.compile(model, backend="eager")
        for batch in session.loader(TensorDataset(*rows()), parity.BATCH):
            session.backward(noise_in_the_loss(session, compiled, batch))
            optimizer.step()
        return {name: dict(counts) for name, counts in dynamo.utils.counters.items()}
    finally:
        RankDependence.watch_draws = watch


def test_compilation_sees_nothing_of_the_watch(ranks, tmp_path):
    _, found, expected = (  # the first one also compiles what torch compiles once in a process
        ranks.run(graph_breaks, str(tmp_path / str(number)), watched, world_size=2)[0]
        for number, watched in enumerate((False, True, False))
    )
    assert found == expected

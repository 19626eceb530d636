"""Random numbers in data and loop: what session.draws and held generators make equal, and what is announced."""

import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from ranks import parity

WIDTH = 4
WORLDS = (2, 3)


def rows():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(parity.LENGTH, WIDTH, generator=generator, dtype=torch.float64)
    return x, x.square().mean(1, keepdim=True)


def net(out=1, width=WIDTH):
    return nn.Sequential(nn.Linear(width, 7), nn.Tanh(), nn.Linear(7, out))


def mse(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


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

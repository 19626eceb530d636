"""Generators that a dataset holds: found where scripts keep them, and set for each sample as the global ones are."""

import functools
import pickle
import random
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from paceline.train.data import arrays
from paceline.train.data.held_generators import describe_unset, find
from paceline.train.data.samples import Samples
from unit.train.data.test_modules import make

MODULES_OWN = np.random.default_rng()


class Randomizable:
    """As monai's base class: one generator for all transforms, until one gets its own."""

    R = np.random.RandomState()


class RandShift(Randomizable):
    def __call__(self, value):
        return value + self.R.normal()


class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, value):
        for transform in self.transforms:
            value = transform(value)
        return value


class Slotted:
    __slots__ = ("py_random",)

    def __init__(self):
        self.py_random = random.Random(4)

    def __call__(self, value):
        return value + self.py_random.gauss(0, 1)


def closure():
    rng = random.Random()
    return lambda value: value + rng.gauss(0, 1)


def numpy_draw(kind):
    return functools.partial(lambda rng, value: value + rng.normal(), np.random.Generator(kind()))


def legacy_draw(kind):
    return functools.partial(lambda rng, value: value + rng.randn(), np.random.RandomState(kind()))


def torch_draw(value, generator=torch.Generator()):  # noqa: B008
    return value + torch.randn((), generator=generator).item()


class Lazy:
    """Makes its generator when it is first called, as some do in a worker."""

    rng = None

    def __call__(self, value):
        if self.rng is None:
            self.rng = np.random.default_rng()
        return value + self.rng.normal()


class OfEpoch(Lazy):
    """Replaces its generator in each epoch."""

    def set_epoch(self, epoch):
        self.rng = np.random.default_rng(epoch)


class Images(Dataset):
    """Forty samples that a transform draws for."""

    def __init__(self, transform):
        self.transform = transform
        self.files = [f"{number}.png" for number in range(40)]

    def set_epoch(self, epoch):
        getattr(self.transform, "set_epoch", abs)(epoch)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return index, self.transform(0.0)


MAKE = {
    "class": RandShift,
    "list": lambda: Compose(RandShift(), Slotted()),
    "slot": Slotted,
    "closure": closure,
    "default": lambda: torch_draw,
    "global": lambda: lambda value: value + MODULES_OWN.normal(),
    "lazy": Lazy,
    "of epoch": OfEpoch,
    **{
        f"{draw.__name__} {kind.__name__}": functools.partial(draw, kind)
        for draw in (numpy_draw, legacy_draw)
        for kind in (
            np.random.MT19937,
            np.random.PCG64,
            np.random.PCG64DXSM,
            np.random.Philox,
            np.random.SFC64,
        )
    },
}


def epoch(loader):
    return {
        int(index): value
        for batch in loader
        for index, value in zip(*(part.tolist() for part in batch), strict=True)
    }


@pytest.mark.parametrize("name", MAKE)
def test_what_a_sample_draws_depends_on_neither_batch_nor_rank_nor_what_was_drawn_before(name):
    loader = make(Images(MAKE[name]()), batch_size=8, seed=3)
    first, second = epoch(loader), epoch(loader)
    assert len({*first.values(), *second.values()}) == 80
    of_ranks = {}
    for rank in range(3):
        of_ranks |= epoch(
            make(Images(MAKE[name]()), rank=rank, world_size=3, batch_size=7, shuffle=True, seed=3)
        )
    assert of_ranks == first
    assert epoch(make(Images(MAKE[name]()), batch_size=8, seed=4)) != first


@pytest.mark.parametrize("name", ["class", "closure", "numpy_draw PCG64", "lazy"])
def test_workers_set_their_copies(name):
    alone = epoch(make(Images(MAKE[name]()), batch_size=8))
    assert epoch(make(Images(MAKE[name]()), batch_size=8, num_workers=2)) == alone


def test_a_copy_for_another_process_finds_its_own():
    samples = Samples(Images(Slotted()), seed=0)
    expected = samples.__getitems__((0, [3, 4]))
    assert pickle.loads(pickle.dumps(samples)).__getitems__((0, [4]))[0] == expected[1]


def states(dataset):
    generators = [held.generator for held in find(dataset)]
    return [
        part.get_state().tolist() if isinstance(part, torch.Generator) else pickle.dumps(part)
        for part in generators
    ]


@pytest.mark.parametrize("name", sorted(MAKE.keys() - {"of epoch"}))
def test_the_script_s_own_use_is_not_disturbed(name):
    dataset = Images(MAKE[name]())
    dataset.transform(0.0)  # a lazy one makes its generator
    dataset.transform(0.0)  # the second of two Gaussian numbers is stored no more

    before = states(dataset)
    epoch(make(dataset, batch_size=8))
    assert states(dataset) == before


def test_a_dataset_that_loads_many_at_once_draws_the_same_for_the_same_share():
    class AtOnce(Images):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    found = [epoch(make(AtOnce(closure()), batch_size=4)) for _ in range(2)]
    assert found[0] == found[1]
    assert len({*found[0].values()}) == 40
    assert "AtOnce.__getitems__" in make(AtOnce(closure()), batch_size=4).describe()


def test_the_global_generators_are_not_taken_for_the_dataset_s():
    class Global(Images):
        python = random.random.__self__
        numpy = np.random.rand.__self__
        torch = torch.default_generator

    assert find(Global(RandShift)) == find(Images(RandShift))


@pytest.mark.parametrize(
    ("transform", "place"),
    [
        (random.SystemRandom(), "dataset.transform (SystemRandom)"),
        ([random.Random(seed) for seed in range(100)], "dataset.transform[0] (Random)"),
    ],
)
def test_what_cannot_be_set_is_said_with_its_place(transform, place):
    assert f"{place} cannot be set" in make(Images(transform), batch_size=4).describe()
    inside = Subset(Images(transform), [1, 2])
    assert f"{place.replace('dataset', 'dataset.dataset', 1)} cannot" in describe_unset(
        inside, by_sample=True
    )


def test_a_transform_of_whole_batches_is_said_to_depend_on_the_ranks():
    rng = torch.Generator()
    noisy = arrays(
        torch.ones(8, 2), transform=lambda rows, _: rows + torch.rand(rows.shape, generator=rng)
    )
    assert "(Generator) cannot be set for each sample" in make(noisy, batch_size=4).describe()
    assert "cannot" not in make(arrays(torch.ones(8, 2)), batch_size=4).describe()


def test_looking_takes_no_longer_in_a_larger_dataset_and_without_generators_none_are_held():
    class Large(Images):
        def __init__(self, size):
            super().__init__(RandShift())
            self.labels = {file: (file, number) for number, file in enumerate(range(size * 1000))}
            self.parts = [[[Slotted] * 60] * size for _ in range(size)]
            self.itself = self

    def took_s(dataset):
        begin = time.process_time()
        assert [held.place for held in find(dataset)] == ["dataset.transform.R"]
        return time.process_time() - begin

    small, large = Large(20), Large(120)
    rounds = [(took_s(small), took_s(large)) for _ in range(20)]
    assert min(large for _, large in rounds) < 3 * min(small for small, _ in rounds)
    plain = Samples(Images(abs), seed=0)
    plain.__getitems__((0, [1]))
    assert not plain._held

"""Arrays as a dataset: what a batch is, whose random numbers it has, and what is refused."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset, random_split

import paceline.data
from paceline.data import Normalize, RandomCrop, RandomFlip, SampleRandom, arrays
from paceline.errors import UsageError
from paceline.train.data import transforms as transforms_module
from unit.train.data.loaders import make as make_loader

LENGTH = 43
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def pictures(length=LENGTH, *, size=8):
    """Bytes of shape [length, 3, size, size], each picture with other pixels."""
    generator = np.random.default_rng(7)
    return generator.integers(0, 256, (length, 3, size, size), dtype=np.uint8)


def augmentation():
    return [RandomCrop(8, padding=2), RandomFlip(), Normalize(MEAN, STD, dtype=torch.float64)]


def labelled(**options):
    options.setdefault("transform", augmentation())
    return arrays(pictures(), np.arange(LENGTH), **options)


def samples(batches):
    """The samples of batches by label, which is the index."""
    return {
        int(label): image
        for images, labels in batches
        for image, label in zip(images, labels, strict=True)
    }


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def epoch_of_ranks(world_size, **options):
    """The samples of an epoch, over all ranks; rows of other ranks are left out."""
    whole = {}
    for rank in range(world_size):
        loader = make_loader(labelled(), rank=rank, world_size=world_size, **options)
        for batch in loader:
            if loader.rows:
                whole.update(samples([batch]))
    return whole


# The batch


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, np.ascontiguousarray])
def test_without_a_transform_rows_are_as_stored(make):
    stored = pictures()
    dataset = arrays(make(stored), list(range(LENGTH)))
    (images, labels), *_ = dataset.batches(LENGTH)
    assert torch.equal(images, torch.from_numpy(stored))
    assert labels.tolist() == list(range(LENGTH))
    assert labels.dtype == torch.int64


def test_a_memory_map_stays_one(tmp_path):
    np.save(tmp_path / "images.npy", pictures())
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    dataset = arrays(mapped, np.arange(LENGTH), transform=augmentation())
    assert np.shares_memory(dataset.stored[0], mapped)
    assert equal(samples(dataset.batches(5)), samples(labelled().batches(5)))


def test_an_array_and_a_tensor_are_not_copied():
    stored, tensor = pictures(), torch.arange(LENGTH)
    dataset = arrays(stored, tensor, transform=augmentation())
    assert np.shares_memory(dataset.stored[0], stored)
    assert np.shares_memory(dataset.stored[1], tensor.numpy())


def test_types_that_numpy_lacks_are_kept():
    values = torch.arange(12).view(4, 3).to(torch.bfloat16)
    ((rows,),) = arrays(values).batches(4)
    assert rows.dtype == torch.bfloat16
    assert torch.equal(rows, values)


@pytest.mark.parametrize("channels", [None, "last"])
def test_images_with_their_channels_last_are_those_with_them_first(channels):
    dataset = arrays(
        np.ascontiguousarray(pictures().transpose(0, 2, 3, 1)),
        np.arange(LENGTH),
        transform=augmentation(),
        channels=channels,
    )
    (images, _), *_ = dataset.batches(4)
    assert images.is_contiguous()  # so that .view(len(images), -1) works
    assert equal(samples(dataset.batches(4)), samples(labelled().batches(4)))


def test_one_sample_and_torchs_dataloader_have_the_shapes_of_a_batch():
    dataset = labelled()
    image, label = dataset[3]
    assert image.shape == (3, 8, 8)
    assert int(label) == 3
    batches = list(DataLoader(dataset, batch_size=10))
    assert [len(labels) for _, labels in batches] == [10, 10, 10, 10, 3]
    assert batches[0][0].shape == (10, 3, 8, 8)


def test_torchs_dataloader_draws_from_torchs_generator():
    torch.manual_seed(1)
    first, second = (samples(DataLoader(labelled(), batch_size=10)) for _ in range(2))
    torch.manual_seed(1)
    assert equal(first, samples(DataLoader(labelled(), batch_size=10)))
    assert not equal(first, second)


# Random numbers of a sample


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_sample_is_augmented_alike_at_any_world_size(world_size):
    expected = samples(labelled().batches(5, shuffle=True))
    assert equal(epoch_of_ranks(world_size, batch_size=5, shuffle=True), expected)


@pytest.mark.parametrize("batch_size", [1, 7, LENGTH])
def test_a_sample_is_augmented_alike_in_any_batch(batch_size):
    assert equal(samples(labelled().batches(batch_size)), samples(labelled().batches(5)))


def test_each_epoch_and_each_seed_augments_otherwise():
    batches = labelled().batches(5)
    first, second = samples(batches), samples(batches)
    assert not equal(first, second)
    assert not equal(first, samples(labelled().batches(5, seed=1)))
    batches.set_epoch(0)
    assert equal(first, samples(batches))


def test_the_loader_of_a_session_leaves_the_training_s_generators_alone():
    before = torch.get_rng_state()
    list(make_loader(labelled(), batch_size=5, shuffle=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_augment_alike():
    alone = samples(make_loader(labelled(), batch_size=5))
    assert equal(alone, samples(make_loader(labelled(), batch_size=5, num_workers=1)))


def test_a_subset_has_the_random_numbers_of_the_whole():
    whole = samples(labelled().batches(5))
    generator = torch.Generator().manual_seed(0)
    for part in random_split(labelled(), [30, 13], generator=generator):
        own = samples(make_loader(part, batch_size=4))
        assert equal(own, {key: whole[key] for key in own})
        assert len(own) == len(part)


def test_a_collate_function_gets_the_samples():
    lengths = []

    def collate(batch):
        lengths.append(len(batch))
        images, labels = zip(*batch, strict=True)
        return torch.stack(images), torch.stack(labels)

    own = samples(make_loader(labelled(), batch_size=5, collate_fn=collate))
    assert equal(own, samples(labelled().batches(5)))
    assert lengths == [5] * 8 + [3]


def test_arrays_inside_another_dataset_are_a_function_of_the_index_too():
    both = [
        samples(make_loader(ConcatDataset([labelled()]), batch_size=size, num_workers=0))
        for size in (5, 9)
    ]
    assert equal(*both)


def test_what_torch_computes_on_a_device_is_what_numpy_computes_here(monkeypatch):
    here = samples(labelled().batches(5))
    monkeypatch.setattr(transforms_module, "_has_numpy_type", lambda images: False)
    assert equal(here, samples(labelled().batches(5)))


# A position in the epoch


@pytest.mark.parametrize(("world_size", "done"), [(1, 0), (1, 3), (2, 3), (3, 9)])
def test_a_position_continues_with_the_rest_on_any_number_of_ranks(world_size, done):
    def batches(rank=0, world_size=1):
        return labelled().batches(4, shuffle=True, seed=3, rank=rank, world_size=world_size)

    whole, stopped = list(batches()), batches()
    for _ in itertools.islice(stopped, done):
        pass
    state, rest = stopped.state_dict(), []
    for rank in range(world_size):
        resumed = batches(rank, world_size)
        resumed.load_state_dict(state)
        rest.append(list(resumed))
        assert resumed.state_dict() == {"epoch": 1, "done": 0, "length": LENGTH}
    assert equal(samples(batch for of_rank in rest for batch in of_rank), samples(whole[done:]))


def test_a_loop_that_was_left_is_followed_by_the_next_epoch():
    batches = labelled().batches(4)
    next(iter(batches))
    second = samples(batches)
    batches.set_epoch(1)
    assert len(second) == LENGTH
    assert equal(second, samples(batches))


def test_the_rest_of_a_loader_s_epoch_is_augmented_as_it_would_have_been():
    whole = list(make_loader(labelled(), batch_size=4, shuffle=True))
    resumed = make_loader(labelled(), batch_size=4, shuffle=True)
    resumed.load_state_dict({"epoch": 0, "done": 12, "length": LENGTH})
    assert equal(samples(resumed), samples(whole[3:]))


# Transforms


def test_a_crop_is_a_window_of_the_padded_image():
    images = torch.from_numpy(pictures())
    crop = RandomCrop((6, 8), padding=2, fill=9)
    cropped = crop(images, SampleRandom(np.arange(LENGTH), 5))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2), value=9)
    draws = SampleRandom(np.arange(LENGTH), 5)
    tops, lefts = draws.integers(0, 7), draws.integers(0, 5)
    for number, (top, left) in enumerate(zip(tops.tolist(), lefts.tolist(), strict=True)):
        expected = padded[number, :, top : top + 6, left : left + 8]
        assert torch.equal(cropped[number], expected)
    assert tops.unique().tolist() == list(range(7))  # all places occur
    assert lefts.unique().tolist() == list(range(5))


def test_a_flip_mirrors_some_images_and_leaves_its_input():
    images = torch.from_numpy(pictures())
    before = images.clone()
    flipped = RandomFlip()(images, SampleRandom(np.arange(LENGTH), 5))
    mirrored = [
        torch.equal(one, other.flip(-1)) for one, other in zip(flipped, images, strict=True)
    ]
    same = [torch.equal(one, other) for one, other in zip(flipped, images, strict=True)]
    assert 10 < sum(mirrored) < 33
    assert [not value for value in mirrored] == same
    assert torch.equal(images, before)
    assert torch.equal(RandomFlip(0.0)(images, SampleRandom(range(LENGTH), 5)), images)
    assert torch.equal(RandomFlip(1.0)(images, SampleRandom(range(LENGTH), 5)), images.flip(-1))


@pytest.mark.parametrize("stored", [torch.uint8, torch.float32, torch.float64])
def test_normalize_is_the_formula_of_torchvision(stored):
    images = torch.from_numpy(pictures()).to(stored)
    before = images.clone()
    result = Normalize(MEAN, STD, dtype=torch.float64)(images, SampleRandom(range(LENGTH), 0))
    values = images.double() / (255 if stored == torch.uint8 else 1)
    mean, std = (torch.tensor(each, dtype=torch.float64).view(3, 1, 1) for each in (MEAN, STD))
    assert torch.allclose(result, (values - mean) / std, rtol=1e-13, atol=1e-12)
    assert torch.equal(images, before)
    assert Normalize()(images, SampleRandom(range(LENGTH), 0)).dtype == torch.float32


def test_a_function_of_a_batch_is_a_transform():
    def noisy(images, random):
        return images + random.normal(shape=images.shape[1:])

    dataset = labelled(transform=[Normalize(), noisy])
    assert equal(samples(dataset.batches(5)), samples(dataset.batches(9)))
    alone = labelled(transform=noisy)
    noise = next(iter(alone.batches(LENGTH)))[0] - torch.from_numpy(pictures())
    assert abs(float(noise.mean())) < 0.05
    assert abs(float(noise.std()) - 1) < 0.05


# What is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: arrays(), "no array"),
        (lambda: arrays(pictures(4), range(3)), "different lengths: 4, 3"),
        (lambda: arrays(["a", "b"]), "no row of numbers"),
        (lambda: arrays(3), "no row of numbers"),
        (lambda: arrays(torch.zeros(3, device="meta")), "is on meta"),
        (lambda: arrays(pictures(), transform=[3]), "transform=3 is not a function"),
        (lambda: labelled(channels="middle"), "channels='middle'"),
        (lambda: arrays(np.zeros((4, 3, 8, 3)), transform=RandomFlip()), "first or last"),
        (lambda: RandomCrop(0), "needs a positive size"),
        (lambda: RandomCrop(4, padding=-1), "padding of at least 0"),
        (lambda: RandomFlip(1.5), "probability"),
        (lambda: Normalize(std=0.0), "above 0"),
        (lambda: Normalize(dtype=torch.int64), "floating-point"),
        (lambda: labelled(transform=RandomCrop(9))[0], "larger than the images"),
        (lambda: labelled(transform=Normalize((0.1, 0.2)))[0], "2 numbers"),
        (lambda: arrays(np.zeros((4, 3)), transform=RandomFlip())[0], "for images of shape"),
        (lambda: labelled().batches(0), "batch_size=0"),
        (lambda: labelled().batches(4, last="pad"), "last='pad'"),
        (lambda: labelled().batches(4, rank=2, world_size=2), "rank=2"),
        (lambda: labelled().batches(3, world_size=4), "1 rows for 4 ranks"),
        (
            lambda: labelled().batches(4).load_state_dict({"epoch": 0, "done": 4, "length": 9}),
            "after 4 of 9 samples",
        ),
    ],
)
def test_bad_input_is_refused_with_its_reason(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize("last", ["exact", "drop"])
def test_ranks_have_the_same_number_of_batches(last):
    sides = [labelled().batches(8, last=last, rank=rank, world_size=3) for rank in range(3)]
    assert {len(side) for side in sides} == {len(list(side)) for side in sides}
    total = sum(len(labels) for side in sides for _, labels in side)
    assert total == (LENGTH if last == "exact" else 40)


def test_labels_that_a_loss_ignores_are_seen_as_in_a_tensor_dataset():
    labels = np.arange(LENGTH)
    labels[1] = -100
    weights = []
    for dataset in (
        arrays(pictures(), labels),
        TensorDataset(torch.from_numpy(pictures()), torch.from_numpy(labels)),
    ):
        loader = make_loader(dataset, batch_size=5, world_size=2)
        weights.append([loader.iteration.weight_problem for _ in loader])
    assert weights[0] == weights[1]
    assert any(weights[0])


def test_the_module_is_an_attribute_of_the_package():
    assert paceline.data.arrays is arrays


# Random numbers


def test_numbers_are_those_of_the_published_generator():
    """SplitMix64 with seed 1234567, as in the reference implementation's test."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    random = SampleRandom([0], 0)
    random._states = np.array([1234567], dtype=np.uint64)
    assert random._bits((3,)).tolist() == [expected]


def test_numbers_are_uniform_and_independent_of_neighbours():
    values = SampleRandom(np.arange(100_000), 3).uniform(shape=(2,)).double()
    assert float(values.min()) >= 0 and float(values.max()) < 1
    counts = torch.histc(values.flatten(), 100, 0, 1)
    # Of a chi-squared distribution with 99 degrees of freedom, below 158 in 9,999 of 10,000 cases.
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 158
    pairs = torch.corrcoef(torch.stack([values[:-1, 0], values[1:, 0], values[:-1, 1]]))
    assert float((pairs - torch.eye(3)).abs().max()) < 0.015


def test_integers_cover_their_range_and_refuse_an_empty_one():
    random = SampleRandom(range(5000), 3)
    counts = torch.bincount(random.integers(-2, 5) + 2)
    assert len(counts) == 7
    assert int(counts.min()) > 600
    with pytest.raises(ValueError, match="has 0 numbers"):
        random.integers(3, 3)

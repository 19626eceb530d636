"""What the generators draw for a sample: as defined, the same by any way to set it, and random."""

import ctypes
import hashlib
import math
import pickle
import random

import numpy as np
import pytest
import torch

from paceline.train.data import generator_states, samples
from paceline.train.data.generator_states import NAMES, kept_state
from paceline.train.data.order import derive
from paceline.train.data.samples import SampleStates

MASK = (1 << 64) - 1


@pytest.fixture(autouse=True)
def _kept():
    with kept_state():
        yield


def words_by_definition(seed, epoch, index, name):
    """The first words of a sample's generator, with Python's own integers."""
    stream = hashlib.shake_128(f"words {seed} {epoch}".encode()).digest(3 * 624 * 8)
    first = NAMES.index(name) * 624 * 8
    factors = [
        int.from_bytes(stream[place : place + 8], "little") | 1
        for place in range(first, first + 624 * 8, 8)
    ]
    mixed = derive("sample", seed, epoch) + 0x9E3779B97F4A7C15 * ((index & MASK) + 1) & MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
    mixed = (mixed ^ mixed >> 31) | 1
    return [(factor * mixed & MASK) >> 32 for factor in factors]


def words_now(name):
    """The words of a generator, from its public state."""
    if name == "python":
        return list(random.getstate()[1][:-1])
    if name == "numpy":
        return np.random.get_state()[1].tolist()
    return torch.get_rng_state().numpy()[24:5016].view(np.uint64).tolist()


def tempered(word):
    """What MT19937 makes of a word of its state."""
    word ^= word >> 11
    word ^= word << 7 & 0x9D2C5680
    word ^= word << 15 & 0xEFC60000
    return word ^ word >> 18


DRAWS = {
    "python": lambda: random.getrandbits(32),
    "numpy": lambda: int(np.random.randint(1 << 32, dtype=np.uint32)),
    "torch": lambda: int(torch.empty((), dtype=torch.int32).random_()),  # 31 bits
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("index", [0, 7, 10**12, -1, np.int64(7), torch.tensor(7)])
def test_a_sample_has_the_words_that_are_defined(name, index):
    each = SampleStates(3).before_each(1, [5, index], (name,))
    assert next(each) == 5
    next(each)
    assert words_now(name) == words_by_definition(3, 1, int(index), name)


@pytest.mark.parametrize("name", NAMES)
def test_the_words_are_drawn_one_after_another_and_then_replaced_as_in_any_twister(name):
    next(SampleStates(3).before_each(1, [7], (name,)))
    words = words_by_definition(3, 1, 7, name)
    found = [DRAWS[name]() for _ in range(700)]
    random.setstate((3, (*words, 0), None))  # the public function, as a reference
    expected = [random.getrandbits(32) for _ in range(701)]
    assert expected[:624] == [tempered(word) for word in words]
    if name == "torch":
        expected = [number & 0x7FFFFFFF for number in expected[1:]]
    assert found == expected[:700]


@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_the_state_of_one_generator_depends_neither_on_the_others_nor_on_the_batch(length):
    indices = list(range(length))
    for name in NAMES:
        alone, beside = SampleStates(0), SampleStates(0)
        expected = {}
        for index in alone.before_each(0, indices, (name,)):
            expected[index] = words_now(name)
        for index in beside.before_each(0, indices[::-1], NAMES):
            assert words_now(name) == expected[index]
        assert len({tuple(words) for words in expected.values()}) == length


@pytest.mark.parametrize("name", ["python", "numpy"])
def test_where_the_memory_is_not_known_the_public_functions_set_the_same(monkeypatch, name):
    monkeypatch.setattr(generator_states, f"{name}_is_known", lambda: False)
    for index in SampleStates(3).before_each(1, [2, 7], (name,)):
        assert words_now(name) == words_by_definition(3, 1, index, name)
        expected = [tempered(word) for word in words_now(name)[:5]]
        assert [DRAWS[name]() for _ in range(5)] == expected


def test_a_torch_whose_state_is_not_known_is_seeded(monkeypatch):
    monkeypatch.setattr(generator_states, "torch_is_known", lambda: False)
    drawn = [torch.rand(3).tolist() for _ in SampleStates(3).before_each(1, [2, 7], ("torch",))]
    assert drawn[0] != drawn[1]
    again = [torch.rand(3).tolist() for _ in SampleStates(3).before_each(1, [7, 2], ("torch",))]
    assert again == drawn[::-1]


def test_the_memory_is_known_here_and_another_layout_is_noticed(monkeypatch):
    checks = (
        generator_states.python_is_known,
        generator_states.numpy_is_known,
        generator_states.torch_is_known,
    )
    assert [check() for check in checks] == [True] * 3
    read_python, read_bytes = generator_states._read_python, ctypes.string_at
    monkeypatch.setattr(generator_states, "_read_python", lambda: bytes(4) + read_python())
    monkeypatch.setattr(ctypes, "string_at", lambda place, size: read_bytes(place + 4, size))
    monkeypatch.setattr(generator_states, "_TORCH_HEADER", 4)
    assert [check.__wrapped__() for check in checks] == [False] * 3


def test_the_state_does_not_depend_on_the_device_of_new_tensors():
    torch.set_default_device("meta")
    try:
        generator_states.torch_is_known.cache_clear()
        next(SampleStates(3).before_each(1, [7], ("torch",)))
    finally:
        torch.set_default_device(None)
    assert words_now("torch") == words_by_definition(3, 1, 7, "torch")


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("python", lambda: random.gauss(0, 1)),
        ("numpy", lambda: float(np.random.randn())),
        ("torch", lambda: float(torch.randn(()))),
    ],
)
def test_a_stored_gaussian_number_is_not_drawn_by_the_next_sample(name, draw):
    once = [draw() for _ in SampleStates(0).before_each(0, [1, 2], (name,))]
    thrice = [[draw() for _ in range(3)] for _ in SampleStates(0).before_each(0, [1, 2], (name,))]
    assert once == [numbers[0] for numbers in thrice]


def test_keys_that_are_no_ints_have_numbers_of_their_own():
    keys = ["a", "7", ("a", 1), 7, 1 << 63]
    states = SampleStates(0)
    drawn = {key: random.random() for key in states.before_each(0, keys, ("python",))}
    assert len(set(drawn.values())) == len(keys)
    for key in keys:
        next(states.before_each(0, [key], ("python",)))
        assert random.random() == drawn[key]


def test_a_copy_in_another_process_sets_the_same():
    states = SampleStates(3)
    next(states.before_each(1, [7], NAMES))
    copied = pickle.loads(pickle.dumps(states))
    next(copied.before_each(1, [7], NAMES))
    assert words_now("python") == words_by_definition(3, 1, 7, "python")


# Randomness

SAMPLES, WORDS = 2048, 64  # words of each sample that are looked at
LIMIT = 5.5  # standard deviations; of a thousand figures, one exceeds it once in 25,000 seeds


def table_of(states, *, epoch=0):
    """The first words of each generator of each sample, shape [3, samples, words]."""
    table = np.empty((3, SAMPLES, WORDS), dtype=np.uint32)
    for index in states.before_each(epoch, range(SAMPLES), NAMES):
        for place, name in enumerate(NAMES):
            words = states._twisters[name].words[index % generator_states.ROWS]
            table[place, index] = words[:WORDS]
    return table


def surprise(counts):
    """By how many standard deviations the chi-square of equally likely cells is off."""
    expected = counts.sum() / counts.size
    assert expected > 20
    square = float(((counts - expected) ** 2).sum() / expected)
    return abs(square - (counts.size - 1)) / math.sqrt(2 * (counts.size - 1))


def pair_surprise(first, second):
    """The same for pairs of numbers, by their four highest bits."""
    cells = (first >> 28) * np.uint32(16) + (second >> 28)
    return surprise(np.bincount(cells.ravel(), minlength=256))


def correlations(first, second):
    """The correlation over samples for each word, in standard deviations."""
    values = [table.astype(np.float64) - 2.0**31 for table in (first, second)]
    return (values[0] * values[1]).mean(-2) / ((2.0**64) / 12) * math.sqrt(first.shape[-2])


def worst(seed=0):
    """The largest surprise of some tests of a scheme, by test."""
    table = table_of(SampleStates(seed))
    bits = (table[..., None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
    shares = bits.mean((1, 2)) - 0.5
    next_epoch, next_seed = table_of(SampleStates(seed), epoch=1), table_of(SampleStates(seed + 1))
    pairs = {
        "next sample": (table[:, :-1], table[:, 1:]),
        "next word": (table[:, :, :-1], table[:, :, 1:]),
        "next epoch": (table, next_epoch),
        "next seed": (table, next_seed),
        "another generator": (table, np.roll(table, 1, axis=0)),
    }
    second = table[:, :-2] - 2 * table[:, 1:-1] + table[:, 2:]  # of three samples in a row
    found = {
        "bits": float(np.abs(shares).max()) * 2 * math.sqrt(SAMPLES * WORDS),
        "high bytes": surprise(np.bincount((table >> 24).ravel(), minlength=256)),
        "low bytes": surprise(np.bincount((table & 255).ravel(), minlength=256)),
        "second differences": surprise(np.bincount((second >> 24).ravel(), minlength=256)),
    }
    for name, (first, other) in pairs.items():
        found[f"pairs, {name}"] = pair_surprise(first, other)
        found[f"correlation, {name}"] = float(np.abs(correlations(first, other)).max())
    return found


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_words_look_random(seed):
    figures = worst(seed)
    assert max(figures.values()) < LIMIT, figures


def test_low_halves_of_the_products_would_be_noticed(monkeypatch):
    monkeypatch.setattr(samples, "_HALF", np.uint64(0))
    figures = worst()
    assert figures["bits"] > LIMIT
    assert figures["low bytes"] > LIMIT


def test_indices_that_are_not_mixed_would_be_noticed(monkeypatch):
    monkeypatch.setattr(samples, "mixed_numbers", lambda _, numbers: numbers * np.uint64(2))
    figures = worst()
    assert figures["second differences"] > LIMIT


def test_factors_that_generators_or_epochs_share_would_be_noticed(monkeypatch):
    begin = SampleStates._begin

    def shared(states, epoch):
        begin(states, 0)
        states._epoch = epoch
        states._factors[:] = states._factors[0]

    monkeypatch.setattr(SampleStates, "_begin", shared)
    figures = worst()
    for name in ("pairs, another generator", "pairs, next epoch", "correlation, next epoch"):
        assert figures[name] > LIMIT


def test_what_is_drawn_is_uniform_in_each_generator():
    drawn = {name: [] for name in NAMES}
    states = SampleStates(0)
    for _ in states.before_each(0, range(4000), NAMES):
        drawn["python"].append([random.random() for _ in range(16)])
        drawn["numpy"].append(np.random.rand(16))
        drawn["torch"].append(torch.rand(16).numpy())
    for values in map(np.array, drawn.values()):
        cells = (values * 256).astype(np.int64)
        assert surprise(np.bincount(cells.ravel(), minlength=256)) < LIMIT
        pairs = cells[:-1] // 16 * 16 + cells[1:] // 16
        assert surprise(np.bincount(pairs.ravel(), minlength=256)) < LIMIT

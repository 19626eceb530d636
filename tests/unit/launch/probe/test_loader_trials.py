"""A loader with other settings serves the script's own batches, of every kind of loader."""

import json
from dataclasses import asdict, replace
from itertools import islice

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from paceline import counters
from paceline.launch.probe import loader_trials
from paceline.launch.probe.loader_commands import (
    CACHED,
    CHANGED,
    CommandFiles,
    LoaderCommand,
    LoaderFacts,
    LoaderSetting,
    read_failures,
    unpack,
)
from paceline.text.plain_data import read_as


class Numbers(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([float(index)]), {"label": torch.tensor(index)}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def setting_of(**values):
    return replace(LoaderSetting(0, 0, False, torch.get_num_threads()), **values)


class Rank:
    """A rank whose script reads a loader, as ``install`` arranges it."""

    def __init__(self, folder, loader):
        self.slot = memoryview(bytearray(counters.SLOT_BYTES)).cast("q")
        self.files = CommandFiles(folder)
        self.trials = loader_trials.LoaderTrials(self.slot, self.files, 0)
        self.loader = loader
        self.number = 0

    def loop(self, loader=None):
        loader = self.loader if loader is None else loader
        return loader_trials.ServedLoop(loader, lambda: DataLoader.__iter__(loader), self.trials)

    def order(self, source, setting=None):
        self.number += 1
        command = LoaderCommand(self.number, source, setting)
        new = self.files.folder / "new"
        new.write_text(json.dumps(asdict(command)))
        new.replace(self.files.command)

    def end(self):
        """Release the workers."""
        self.order(CACHED)
        self.trials._look()

    def deliveries(self):
        return list(unpack(self.files.deliveries(0).read_bytes()))

    def facts(self):
        return read_as(LoaderFacts, json.loads(self.files.facts(0).read_text()))


@pytest.fixture
def rank_with(tmp_path):
    ranks = []

    def start(loader):
        ranks.append(Rank(tmp_path, loader))
        return ranks[-1]

    yield start
    for rank in ranks:
        if rank.files.facts(0).exists():
            rank.end()


@pytest.fixture
def rank(rank_with):
    return rank_with(DataLoader(Numbers(), batch_size=4))


def first_values(batches):
    return [values[0].item() for values, _ in batches]


def test_nothing_changes_before_a_step(rank):
    assert first_values(rank.loop()) == [0, 4, 8]
    assert not rank.files.facts(0).exists()


def test_the_loader_whose_batch_a_step_followed_is_the_one_that_trains(rank):
    evaluation = DataLoader(Numbers(), batch_size=6)
    next(rank.loop(evaluation))
    training = rank.loop()
    next(training)
    rank.slot[counters.STEPS] = 1
    next(training)
    assert rank.facts().batch_samples == 4
    assert rank.facts().batch_bytes == 4 * (4 + 8)
    rank.order(CACHED)
    assert first_values(islice(rank.loop(evaluation), 2)) == [0, 6]  # it is not changed
    assert first_values(islice(training, 3)) == [0, 0, 0]


def trained(rank):
    """Return the loop of a rank that has made a step."""
    loop = rank.loop()
    next(loop)
    rank.slot[counters.STEPS] = 1
    return loop


@pytest.mark.parametrize("num_workers", [0, 2])
def test_other_settings_serve_the_same_batches_without_end(rank, num_workers):
    loop = trained(rank)
    rank.order(
        CHANGED, setting_of(num_workers=num_workers, prefetch_factor=2 if num_workers else 0)
    )
    assert first_values(islice(loop, 7)) == [0, 4, 8, 0, 4, 8, 0]
    assert [delivery.number for delivery in rank.deliveries()] == [1] * 7
    assert all(delivery.delivered_ns >= delivery.requested_ns for delivery in rank.deliveries())


def test_the_loader_itself_is_left_alone(rank):
    before = dict(rank.loader.__dict__)
    loop = trained(rank)
    rank.order(CHANGED, setting_of(num_workers=1, prefetch_factor=4))
    next(loop)
    assert rank.loader.__dict__ == before


def test_the_next_loop_continues_with_the_command(rank):
    loop = trained(rank)
    rank.order(CACHED)
    next(loop)
    assert first_values(islice(rank.loop(), 2)) == [0, 0]


def test_a_loader_that_is_constructed_for_each_epoch_stays_the_one_that_trains(rank):
    trained(rank)
    again = DataLoader(rank.loader.dataset, batch_size=4)
    next(rank.loop(again))
    rank.order(CACHED)
    assert first_values(islice(rank.loop(again), 2)) == [0, 0]


def loaders():
    batches = BatchSampler(SequentialSampler(range(12)), 3, drop_last=False)
    yield "batch sampler", DataLoader(Numbers(), batch_sampler=batches), [0, 3, 6, 9, 0]
    yield "no batches", DataLoader(Numbers(), batch_size=None), [0, 1, 2, 3, 4]
    own = DataLoader(Numbers(), batch_size=4, collate_fn=lambda rows: (rows[1][0], {}))
    yield "own collate function", own, [1, 5, 9, 1, 5]


@pytest.mark.parametrize(("loader", "expected"), [row[1:] for row in loaders()])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_kinds_of_loaders(rank_with, loader, expected, num_workers):
    rank = rank_with(loader)
    loop = trained(rank)
    rank.order(CHANGED, setting_of(num_workers=num_workers, prefetch_factor=2 * num_workers))
    assert first_values(islice(loop, 5)) == expected


def test_a_worker_function_runs_in_every_worker(rank_with, tmp_path):
    def write_number(worker):
        (tmp_path / f"worker-{worker}").touch()

    rank = rank_with(DataLoader(Numbers(), batch_size=4, worker_init_fn=write_number))
    loop = trained(rank)
    rank.order(CHANGED, setting_of(num_workers=2, prefetch_factor=2))
    list(islice(loop, 4))
    assert sorted(path.name for path in tmp_path.glob("worker-*")) == ["worker-0", "worker-1"]


def test_a_stream_begins_again_at_its_end(rank_with):
    rank = rank_with(DataLoader(Stream(), batch_size=2))
    loop = trained(rank)
    rank.order(CHANGED, setting_of())
    assert [batch.tolist() for batch in islice(loop, 4)] == [[0, 1], [2, 3], [4], [0, 1]]
    assert rank.facts().is_stream


class OneEpoch:
    """A batch sampler that yields one epoch only, as Session's does."""

    def __init__(self):
        self._rest = iter([[0, 1], [2, 3]])

    def __iter__(self):
        return self._rest


def test_requests_of_a_sampler_that_ends_are_repeated(rank_with):
    rank = rank_with(DataLoader(Numbers(), batch_sampler=OneEpoch()))
    loop = trained(rank)  # has read the first request
    rank.order(CHANGED, setting_of())
    assert first_values(islice(loop, 3)) == [2, 2, 2]


def test_a_setting_that_fails_is_reported_and_the_script_continues(rank_with):
    class InParentOnly(Numbers):
        def __getitem__(self, index):
            if torch.utils.data.get_worker_info() is not None:
                raise RuntimeError("cannot be used in a worker")
            return super().__getitem__(index)

    rank = rank_with(DataLoader(InParentOnly(), batch_size=4))
    loop = trained(rank)
    rank.order(CHANGED, setting_of(num_workers=1, prefetch_factor=2))
    assert first_values(loop) == [4, 8]  # the script's own loop, to its end
    lines = rank.files.failures(0).read_text().splitlines(keepends=True)
    assert read_failures(lines) == {1: "RuntimeError: cannot be used in a worker"}
    assert {delivery.number for delivery in rank.deliveries()} == {1}


def test_a_batch_in_memory_survives_a_script_that_changes_it(rank):
    loop = trained(rank)
    rank.order(CACHED)
    _, labels = next(loop)
    labels.pop("label")
    values, labels = next(loop)
    assert list(labels) == ["label"]
    labels["label"] -= 1
    assert next(loop)[1]["label"].tolist() == [0, 1, 2, 3]
    assert values.shape == (4, 1)


def test_large_tensors_are_not_copied():
    large, small = torch.zeros(1 << 19), torch.zeros(3)
    own_large, own_small = loader_trials.copied([large, small])
    assert own_large is large
    assert own_small is not small


def test_threads_follow_the_command(rank):
    before = torch.get_num_threads()
    loop = trained(rank)
    try:
        rank.order(CHANGED, setting_of(threads=before + 1))
        next(loop)
        assert torch.get_num_threads() == before + 1
        rank.order(CACHED)
        next(loop)
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)


def test_batches_are_pinned_where_the_command_says_so(rank, monkeypatch):
    """Pinning needs a GPU; a stand-in writes down what is to be pinned.

    Without workers: with them a thread of torch pins, which must not meet a stand-in that goes.
    """
    pinned = []

    def pin(tensor):
        pinned.append(tensor.clone())
        return tensor

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    loop = trained(rank)
    rank.order(CHANGED, setting_of(num_workers=0, prefetch_factor=0))
    next(loop)
    assert pinned == []
    rank.order(CHANGED, setting_of(num_workers=0, prefetch_factor=0, pin_memory=True))
    served = first_values(islice(loop, 2))
    assert set(served) <= {tensor.flatten()[0].item() for tensor in pinned}


def test_a_schedule_with_an_end_does_not_end_the_script(monkeypatch):
    """The loop takes more steps than were planned, which OneCycleLR answers with an error."""
    schedule = torch.optim.lr_scheduler.OneCycleLR
    monkeypatch.setattr(schedule, "step", schedule.step)
    loader_trials._keep_at_last_step()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = schedule(optimizer, max_lr=0.1, total_steps=4)
    rates = []
    for _ in range(8):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    assert rates[0] != rates[1] != rates[2]
    assert rates[4:] == [rates[3]] * 4

"""Evaluations over samplers that pad: facts of a loop and of collectives in, a verdict out."""

import pytest
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from paceline.launch.probe.padding import Padding, is_scored_together, padding_of

DATA = list(range(101))


class Own(DistributedSampler):
    def __iter__(self):
        return iter(range(self.rank, len(self.dataset), self.num_replicas))


def shared(kind=DistributedSampler, *, data=DATA, **options):
    return kind(data, num_replicas=2, rank=1, **options)


@pytest.mark.parametrize(
    ("sampler", "padded"),
    [
        (shared(shuffle=False), True),
        (BatchSampler(shared(), 10, False), True),
        (shared(drop_last=True), False),
        (shared(data=DATA[:100]), False),
        (shared(Own), False),
        (SequentialSampler(DATA), False),
        (None, False),
    ],
)
def test_which_samplers_pad(sampler, padded):
    assert (padding_of(sampler) is not None) is padded


def test_how_a_sampler_pads():
    padding = padding_of(shared())
    assert (padding.dataset_length, padding.padded_length, padding.share) == (101, 102, 51)


def entry(name, *size, created_ns=10):
    return {
        "profiling_name": f"gloo:{name}",
        "input_sizes": [list(size)],
        "time_created_ns": created_ns,
    }


@pytest.mark.parametrize(
    ("entries", "together"),
    [
        ([entry("all_reduce", 2)], True),
        ([entry("all_gather", 2)], True),  # as torchmetrics does
        ([entry("all_gather", 1), entry("all_gather", 40)], True),
        (
            [entry("all_gather", 51)],
            False,
        ),  # results of single samples: the repeated ones may be dropped
        ([entry("all_reduce", 2), entry("all_gather", 51, 10)], False),
        ([entry("all_reduce", 101, 10)], False),  # each result in the place of its sample
        ([entry("all_reduce", 10, 10)], True),  # a confusion matrix
        ([entry("send", 51)], False),
        ([entry("barrier")], False),
        ([entry("broadcast", 100)], False),
        ([entry("all_reduce", 2, created_ns=9)], False),  # before it
        ([], False),
    ],
)
def test_figures_are_put_together_or_results_of_samples_are(entries, together):
    assert is_scored_together(entries, Padding(101, 102, 51, since_ns=10)) is together

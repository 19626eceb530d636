"""Reducer: what it does with the pieces of a bucket, with collectives that end when the test says."""

from __future__ import annotations

import pytest
import torch

from paceline.train.model import comm_hooks

LENGTH = 1 << 16  # four pieces


class Bucket:
    """A bucket of gradients, as far as a hook looks at it."""

    def __init__(self, gradients):
        self._gradients = gradients

    def buffer(self):
        return self._gradients

    def index(self):
        return 0


class Collective:
    """A collective on its way: the values it was called with, and the future of its end."""

    def __init__(self, tensor):
        self.tensor, self.sent = tensor, tensor.clone()
        self.future = torch.futures.Future()

    def get_future(self):
        return self.future

    def end(self):
        self.tensor.mul_(2)  # what another rank with the same gradients adds
        self.future.set_result([self.tensor])


@pytest.fixture
def collectives(monkeypatch):
    """The collectives that were started, on the first of two ranks."""
    started = []

    def all_reduce(tensor, group, async_op):
        assert async_op
        started.append(Collective(tensor))
        return started[-1]

    monkeypatch.setattr(comm_hooks.dist, "new_group", lambda timeout: object())
    monkeypatch.setattr(comm_hooks.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(comm_hooks.dist, "all_reduce", all_reduce)
    return started


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_bucket_is_done_when_all_its_pieces_are(collectives, dtype):
    gradients = torch.randint(-8, 8, (LENGTH,)).float()  # exact in sixteen bits
    buffer = gradients.clone()
    future = comm_hooks.Reducer(num_groups=4, timeout=None).average(Bucket(buffer), dtype)
    assert [len(each.sent) for each in collectives] == [LENGTH // 4] * 4
    assert {each.sent.dtype for each in collectives} == {dtype}
    for each in collectives:
        assert not future.done()
        each.end()
    assert future.value() is buffer
    assert torch.equal(buffer, gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_piece_is_written_while_others_are_on_their_way(collectives, dtype):
    buffer = torch.ones(LENGTH)
    comm_hooks.Reducer(num_groups=4, timeout=None).average(Bucket(buffer), dtype)
    collectives[0].tensor.fill_(3)
    collectives[0].future.set_result([collectives[0].tensor])
    assert (buffer[: LENGTH // 4] == 3).all()


@pytest.mark.parametrize("num_groups", [0, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_failed_piece_fails_the_bucket(collectives, num_groups, dtype):
    reducer = comm_hooks.Reducer(num_groups=num_groups, timeout=None)
    future = reducer.average(Bucket(torch.ones(LENGTH)), dtype)
    collectives[-1].future.set_exception(RuntimeError("Connection closed by peer"))
    for each in collectives[:-1]:
        each.end()
    with pytest.raises(RuntimeError, match="closed by peer"):
        future.wait()


def test_what_is_sent_is_allocated_again_only_for_another_length(collectives):
    reducer = comm_hooks.Reducer(num_groups=0, timeout=None)
    for length in (LENGTH, LENGTH, LENGTH // 2):  # DDP rebuilds its buckets after the first step
        buffer = torch.full((length,), 3.0)
        future = reducer.average(Bucket(buffer), torch.bfloat16)
        collectives[-1].end()
        assert torch.equal(future.value(), torch.full((length,), 3.0))
    first, second, third = (each.tensor.data_ptr() for each in collectives)
    assert first == second != third

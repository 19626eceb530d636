"""The emulated accelerator behaves as a GPU does, where the other tests rest on it."""

from __future__ import annotations


def reads_memory_of_the_device():
    import ctypes

    import torch

    x = torch.ones(4, device="emulated")
    print("reads", flush=True)
    ctypes.string_at(x.data_ptr(), 4)


def test_the_cpu_cannot_read_its_memory(start):
    ended = start(reads_memory_of_the_device)
    assert (ended.returncode, ended.stdout) == (-11, "reads\n")


def streams():
    """Copies that are not waited for, with and without the wait."""
    import torch

    torch.emulated.configure(copy_ms=10)
    side = torch.Stream("emulated")

    def copied(number, *, waits):
        source = torch.full((64,), float(number)).pin_memory()
        target = torch.zeros(64, device="emulated")
        with side:
            target.copy_(source, non_blocking=True)
        if waits:
            torch.accelerator.current_stream().wait_stream(side)
        answer = (target * 1).sum().item() / 64
        side.synchronize()
        return answer

    assert [copied(n, waits=False) for n in range(1, 21)] == [0.0] * 20, "a missing wait was lucky"
    assert [copied(n, waits=True) for n in range(1, 21)] == [float(n) for n in range(1, 21)]

    answer = torch.zeros(64, pin_memory=True)
    answer.copy_(torch.ones(64, device="emulated"), non_blocking=True)
    assert answer.sum() == 0
    event = torch.Event("emulated")
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query() and answer.sum() == 64


def test_a_copy_that_is_not_waited_for_is_never_there_in_time(on_device):
    on_device(streams)


def recorded_streams():
    """Memory that another stream uses is not given out again before it is done."""
    import torch

    side = torch.Stream("emulated")

    def is_reused(*, records):
        x = torch.ones(1 << 16, device="emulated")
        place = x.data_ptr()
        with side:
            torch.emulated.delay(100)
        if records:
            x.record_stream(side)
        del x
        early = torch.ones(1 << 16, device="emulated")
        is_early = early.data_ptr() == place
        del early
        side.synchronize()
        return is_early

    assert is_reused(records=False)
    assert not is_reused(records=True)


def test_record_stream_keeps_memory(on_device):
    on_device(recorded_streams)


def events():
    import torch

    first, second = (torch.Event("emulated", enable_timing=True) for _ in range(2))
    first.record()
    torch.emulated.delay(50)
    second.record()
    torch.accelerator.synchronize()
    assert 45 < first.elapsed_time(second) < 500

    stats = torch.accelerator.memory_stats
    x = torch.ones(1 << 20, device="emulated")
    del x
    assert stats()["allocated_bytes.all.current"] < 1 << 22 <= stats()["allocated_bytes.all.peak"]
    try:
        torch.ones(1 << 24, device="emulated")
        raise AssertionError("64 MiB of 32 were given out")
    except torch.OutOfMemoryError:
        torch.ones(1 << 20, device="emulated")  # it goes on

    torch.emulated.manual_seed_all(3)
    here, there = (torch.rand(4, device=f"emulated:{n}") for n in range(2))
    assert here.tolist() == there.tolist()
    state = torch.emulated.get_rng_state(0)
    after = torch.rand(4, device="emulated:0")
    cpu = torch.get_rng_state()
    torch.emulated.set_rng_state(state, 0)
    assert torch.equal(torch.rand(4, device="emulated:0"), after)
    assert torch.equal(torch.get_rng_state(), cpu), "the CPU's generator is another"

    with torch.autocast("emulated", dtype=torch.bfloat16):
        y = here.view(1, 4) @ here.view(4, 1)
        assert y.dtype == torch.bfloat16 and y.float().softmax(0).dtype == torch.float32
    try:
        here + there
        raise AssertionError("tensors of two devices were added")
    except RuntimeError as error:
        assert "Expected all tensors to be on the same device" in str(error)


def test_events_memory_generators_and_autocast(on_device):
    on_device(events, memory=32 << 20)


def ranks():
    """DDP, fully_shard and a distributed checkpoint, as torch has them."""
    import os

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["LOCAL_RANK"])
    torch.accelerator.set_device_index(rank)
    device = torch.device("emulated", rank)
    dist.init_process_group("cpu:gloo,emulated:emulated")

    def net():
        torch.manual_seed(0)
        return torch.nn.Linear(4, 4).double().to(device)

    x = torch.arange(8.0, dtype=torch.float64, device=device).view(2, 4)[rank : rank + 1]
    plain, replica, sharded = net(), DistributedDataParallel(net()), net()
    fully_shard(sharded, mesh=init_device_mesh("emulated", (2,)))
    both = torch.arange(8.0, dtype=torch.float64, device=device).view(2, 4)
    for model, rows in ((plain, both), (replica, x), (sharded, x)):
        model(rows).square().mean().backward()
    expected = plain.weight.grad
    torch.testing.assert_close(replica.module.weight.grad, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(sharded.weight.grad.full_tensor(), expected, atol=1e-12, rtol=0)

    dcp.save(sharded.state_dict(), checkpoint_id="saved")
    before = sharded.weight.full_tensor().clone()
    torch.nn.init.zeros_(sharded.weight)
    state = sharded.state_dict()
    dcp.load(state, checkpoint_id="saved")
    assert torch.equal(state["weight"].full_tensor(), before)
    dist.destroy_process_group()


def test_torchs_own_parallelism_works_on_it(on_device):
    on_device(ranks, ranks=2)

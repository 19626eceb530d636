"""What the library waits for: with slow copies and late events a wait that is missing shows at once.

Each program is a process on the device, and asserts itself.
"""

from __future__ import annotations

import json
import re


def batches_arrive_before_they_are_used():
    import torch

    from paceline.train.data.batch import moved

    device = torch.device("emulated", 0)
    torch.emulated.configure(copy_ms=20)
    batches = ({"x": torch.full((64,), float(n)).pin_memory(), "n": n} for n in range(10))
    for batch in moved(batches, device):
        assert batch["x"].device == device
        assert (batch["x"] * 1).cpu().tolist() == [batch["n"]] * 64, batch


def test_a_batch_is_complete_when_it_is_used(on_device):
    on_device(batches_arrive_before_they_are_used)


def batches_are_copied_during_steps():
    import time

    import torch

    from paceline.train.data.batch import moved

    torch.emulated.configure(copy_ms=300)
    batches = moved(iter([torch.ones(8)] * 4), torch.device("emulated", 0))
    for _ in range(4):
        begin = time.monotonic()
        batch = next(batches)
        assert time.monotonic() - begin < 0.2, "the copy of the next batch was waited for"
        batch.add(1)


def test_a_batch_is_copied_during_the_step_before(on_device):
    on_device(batches_are_copied_during_steps)


def memory_of_freed_batches():
    """Each step reads its batch late, by a copy to the CPU behind a delay; the batch is freed before that."""
    import contextlib

    import torch

    from paceline.train.data.batch import moved

    device = torch.device("emulated", 0)

    class Opaque:
        """A batch with a ``to`` of its own, whose tensors nobody finds."""

        def __init__(self, x):
            self.x = x

        def to(self, device, non_blocking=False):
            return Opaque(self.x.to(device, non_blocking=non_blocking))

    def read_late(batches, streams):
        torch.emulated.configure(copy_ms=2)
        answers, batches = [], moved(batches, device)
        for number in range(6):
            with streams[number % len(streams)]:
                batch = next(batches)
                answers.append(torch.empty(4096, pin_memory=True))
                torch.emulated.delay(30)
                answers[-1].copy_(getattr(batch, "x", batch), non_blocking=True)
                del batch
        torch.accelerator.synchronize()
        for number, answer in enumerate(answers):
            assert answer.eq(number).all(), (number, answer)

    rows = [torch.full((4096,), float(n)) for n in range(6)]
    read_late(iter([Opaque(row) for row in rows]), [contextlib.nullcontext()])
    read_late(iter(rows), [torch.Stream(device), torch.Stream(device)])


def test_memory_of_a_batch_is_not_reused_before_its_step(on_device):
    """Neither of one with a ``to`` of its own, nor if steps take turns on two streams."""
    on_device(memory_of_freed_batches)


def staged_copies():
    import torch

    from paceline.train.checkpoint.staging import Staging

    device = torch.device("emulated", 0)
    torch.emulated.configure(copy_ms=40)
    tensors = {str(n): torch.full((256,), float(n), device=device) for n in range(3)}
    staging = Staging(device)
    for step in range(4):
        copies, wait = staging.copy(tensors)
        assert all(copy.is_pinned() for copy in copies.values())
        for tensor in tensors.values():
            tensor.add_(10)  # the training goes on
        wait()
        assert all(copy.eq(int(name) + 10 * step).all() for name, copy in copies.items()), copies
        copies, wait = staging.copy(tensors)
        wait()  # at once
        assert all(copy.eq(int(name) + 10 * step + 10).all() for name, copy in copies.items())


def test_a_copy_for_a_checkpoint_is_what_the_tensor_was(on_device):
    on_device(staged_copies)


def last_looks():
    import time

    import torch

    from paceline.launch.probe.last_look import first_nan

    torch.emulated.configure(copy_ms=30)
    fine = [torch.ones(8, device="emulated") for _ in range(20)]
    bad = torch.ones(8, device="emulated")
    bad[3] = float("nan")
    large = torch.full((8,), 3e38, device="emulated")  # its sum is infinite
    for _ in range(3):
        assert first_nan([*fine, large], deadline_s=time.monotonic() + 5) is None
        assert first_nan([*fine, bad, large], deadline_s=time.monotonic() + 5) is bad
    torch.emulated.configure(copy_ms=3000)
    begin = time.monotonic()
    assert first_nan([bad], deadline_s=begin + 0.2) is None
    assert time.monotonic() - begin < 1


def test_the_last_look_waits_for_its_answer_but_not_for_long(on_device):
    on_device(last_looks)


def nan_at_the_end():
    import torch

    net = torch.nn.Linear(4, 1).to("emulated")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        loss = net(torch.ones(2, 4, device="emulated")).sum()
        (loss * float("nan") if step == 4 else loss).backward()
        optimizer.step()


def test_parameters_that_are_nan_at_the_end_are_reported(start):
    ended = start(nan_at_the_end, ranks=1, copy_ms=30)
    assert "nan" in ended.stderr.lower(), ended.stderr


def all_reduces_are_timed():
    from paceline.measure import network_worker

    network_worker.LARGEST_BYTES = 1 << 12
    result = network_worker.measure(rounds=2, budget_s=5.0)
    if result is not None:
        import json

        print(json.dumps(result))


def test_bench_network_measures_between_events(on_device):
    """An event that comes 5 ms late is waited for, and is part of the time between two."""
    result = json.loads(on_device(all_reduces_are_timed, ranks=2, event_ms=5))
    assert result["backend"] == "emulated"
    seconds = [point["seconds"] for point in result["points"]]
    assert len(seconds) == 2
    assert all(0.005 <= second < 1 for second in seconds), result


def trial_of_8_steps():
    """A child trains and leaves after 8 steps, its parent reads what the child has written."""
    import os

    from paceline import counters

    board = counters.SharedCounters(counters.create(1), 1)
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        print(*sorted(board.read_stages(0)))
        return
    os.environ["PACELINE_STOP_AFTER"] = "8"
    import torch

    from paceline.launch.probe import probe, stage_clock

    stage_clock.SHARE = 1.0  # times every step
    counters.board = board
    probe.install(board.slot(0))
    torch.emulated.configure(kernel_ms=2, event_ms=30)
    net = torch.nn.Linear(4, 1).to("emulated")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(20):
        net(torch.ones(2, 4, device="emulated")).sum().backward()
        optimizer.param_groups[0]["params"] = []  # a step without kernels, which would wait
        optimizer.step()
    os._exit(1)


def test_the_last_step_of_a_trial_is_timed(on_device):
    """Its events are still to come when the optimizer returns, and an update would wait for them."""
    steps = [int(step) for step in on_device(trial_of_8_steps).split()]
    assert steps[-1] == 7, steps


def stages_of_steps():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from paceline import counters
    from paceline.launch.probe import probe, stage_clock

    stage_clock.SHARE = 1.0  # times every step
    net = torch.nn.Linear(16, 16).to("emulated")
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(80, 16)), 8)
    for place, name in enumerate(("optimizer", "other", "data", "forward", "backward")):

        def slow(here, name=name):
            if here == name:
                torch.emulated.delay(20)

        board = counters.SharedCounters(counters.create(1), 1)
        end = probe.install(board.slot(0))
        for (x,) in loader:
            x = x.to("emulated")
            slow("forward")
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.register_hook(lambda gradient, slow=slow: slow("backward"))
            loss.backward()
            slow("optimizer")
            optimizer.step()
            slow("other")
            loss.item()
        end()
        steps = list(board.read_stages(0).values())
        expected = name != "data"  # which passes on the CPU
        assert len(steps) >= 6, steps
        assert all((stages[place] > 19e6) == expected for stages in steps), (name, steps)
        others = sorted(sum(stages) - stages[place] for stages in steps)
        assert others[len(others) // 2] < 15e6, (name, steps)


def test_a_slow_kernel_is_charged_to_its_stage(on_device):
    """And not to ``item()``, in which the CPU waits for it."""
    on_device(stages_of_steps)


def late_events():
    """An optimizer step ends late on a stream of its own, after the step that follows it."""
    import contextlib

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from paceline import counters
    from paceline.launch.probe import probe, stage_clock

    stage_clock.SHARE = 1.0  # times every step
    board = counters.SharedCounters(counters.create(1), 1)
    end = probe.install(board.slot(0))
    net = torch.nn.Linear(4, 1).to("emulated")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    late = torch.Stream("emulated")
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    for number, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(14, 4)))):
        with late if number == 5 else contextlib.nullcontext():
            net(x.to("emulated")).sum().backward()
            if number == 5:
                torch.emulated.configure(kernel_ms=500)
            optimizer.step()
            torch.emulated.configure()
        if number > 7:
            torch.emulated.delay(20)
    end()
    for step, stages in sorted(board.read_stages(0).items()):
        print(step, stages[1] // 1_000_000)


def test_a_step_whose_events_are_late_is_dropped_and_later_ones_are_timed(on_device):
    """By the device still: a delay after the optimizer step is not charged to the next forward."""
    other_ms = dict(map(int, line.split()) for line in on_device(late_events).splitlines())
    assert 6 not in other_ms and {4, 5, 7, 8} < other_ms.keys(), other_ms
    assert all(other_ms[step] >= 20 for step in (10, 11)), other_ms


def idle_when_asked():
    """Each rank stops at the same step, and its device is idle whenever it looks whether all know."""
    import os
    import signal

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    import paceline
    from paceline.machine.signed_store import SignedStore

    looks = []
    add = SignedStore.add

    def look_and_add(self, key, number):
        if key == "know" and not number:
            looks.append(torch.accelerator.current_stream().query())
        return add(self, key, number)

    SignedStore.add = look_and_add
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,emulated:emulated")
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to("emulated"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(400, 4)), 4)
    run = paceline.preemptible(model, optimizer, loader=loader)
    torch.emulated.configure(kernel_ms=20)
    try:
        for _ in range(run.epoch, 2):
            for step, (x,) in enumerate(loader):
                if step == 3 and dist.get_rank() == 1:
                    os.kill(os.getpid(), signal.SIGUSR1)
                optimizer.zero_grad()
                model(x.to("emulated")).sum().backward()
                optimizer.step()
    finally:
        rank = dist.get_rank()
        print(f"rank {rank}: {looks}", flush=True)


def test_a_device_is_idle_when_ranks_agree_on_their_stop(start):
    ended = start(idle_when_asked, ranks=2)
    assert ended.returncode == 75, ended.stdout + ended.stderr
    looks = re.findall(r"rank 0: \[(.*)\]", ended.stdout)
    assert looks and looks[0] and "False" not in looks[0], ended.stdout

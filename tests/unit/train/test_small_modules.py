"""Precision, strategy, scaling, blocks, stopping and once, each in a world of one."""

import copy
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

from paceline import counters
from paceline.errors import RunError, SetupError, UsageError
from paceline.train.data import node_memory
from paceline.train.model import blocks, precision, strategy
from paceline.train.session import once, scaling, stopping
from refusals import refusal

CPU = torch.device("cpu")


def refused(function, *args, **kwargs):
    return refusal((UsageError, SetupError), function, *args, **kwargs)


# Precision


def test_an_unknown_precision_has_a_near_one():
    assert refused(precision.choose, "b16-mixed", CPU).fix == 'Session(precision="bf16-mixed")'
    assert refused(precision.choose, 16, CPU).name == "option-invalid"


def test_emulated_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100")
    for name in ("bf16-mixed", "bf16-true"):
        finding = refused(precision.choose, name, torch.device("cuda", 0))
        assert (finding.name, finding.fix) == ("bf16-emulated", 'Session(precision="16-mixed")')
    assert precision.choose("16-mixed", torch.device("cuda", 0)).scaled


class Seen(nn.Module):
    """Takes down what it computes with."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.seen = []

    def forward(self, x, *, scale=None):
        if scale is not None and scale == 0:
            raise ValueError("zero")
        y = self.layer(x["x"])
        self.seen.append((x["x"].dtype, y.dtype, x["ids"].dtype))
        return {"y": y, "ids": x["ids"]}


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("32-true", (torch.float32, torch.float32), torch.float32),
        ("64-true", (torch.float64, torch.float64), torch.float64),
        ("16-mixed", (torch.float32, torch.float16), torch.float32),
        ("bf16-mixed", (torch.float32, torch.bfloat16), torch.float32),
        ("bf16-true", (torch.bfloat16, torch.bfloat16), torch.float32),
    ],
)
def test_types_inside_and_outside(name, inside, outside):
    model = Seen()
    precision.attach(model, precision.choose(name, CPU), CPU)
    output = model({"x": torch.ones(1, 2), "ids": torch.ones(1, dtype=torch.int32)})
    assert model.seen == [(*inside, torch.int32)]
    assert (output["y"].dtype, output["ids"].dtype) == (outside, torch.int32)
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_ends_where_forward_raises():
    model = Seen()
    precision.attach(model, precision.choose("bf16-mixed", CPU), CPU)
    for _ in range(2):
        with pytest.raises(ValueError, match="zero"):
            model({"x": torch.ones(1, 2)}, scale=0)
    assert not torch.is_autocast_enabled("cpu")


def test_a_loss_that_shares_gradients_is_scaled_like_them():
    """Two losses of a step, each with a backward of its own: the gradients add up to those without a scale."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    scale = precision.LossScale(CPU, world_size=1)
    for factor in (0.125, 0.375):
        scale.scale(weight.sum() * factor, [weight]).backward()
        assert scale.settle([weight], bool)
    assert weight.grad.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "bad", [float("inf"), float("nan"), 2.0]
)  # the last is beyond float16 once scaled
def test_what_overflows_is_dropped(bad):
    weight = nn.Parameter(torch.ones(2))
    scale = precision.LossScale(CPU, world_size=1)
    before = scale.value
    scale.scale((weight * bad).sum(), [weight]).backward()
    assert not scale.settle([weight], bool)
    assert weight.grad is None
    assert scale.value == before / 2


def test_clipping_takes_optimizers_modules_and_parameters():
    layer = nn.Linear(3, 1, bias=False)
    for what in (torch.optim.SGD(layer.parameters()), layer, layer.parameters()):
        layer.weight.grad = torch.tensor([[3.0, 4.0, 0.0]])
        assert precision.clip_norm(what, 1.0, 2.0).item() == pytest.approx(5.0)
        assert layer.weight.grad.norm().item() == pytest.approx(1.0, rel=1e-4)


# Strategy


def test_an_unknown_strategy_has_a_near_one():
    assert refused(strategy.choose, "dpp", CPU).fix == 'strategy="ddp"'


def test_batch_norm_is_synchronised_on_gpus_only():
    finding = refused(strategy.choose, strategy.DDP(sync_batchnorm=True), CPU)
    assert finding.name == "option-contradicted"
    assert strategy.choose(strategy.DDP(sync_batchnorm=True), torch.device("cuda", 0))


# Scaling


@pytest.mark.parametrize(("rule", "factor"), [("linear", 8.0), ("sqrt", 8.0**0.5)])
def test_a_learning_rate_grows_with_the_batch(rule, factor):
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    said = []
    found = scaling.choose(batch_size=256, base_batch_size=32, rule=rule)
    schedule = scaling.apply(optimizer, found, 4, say=said.append)
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(0.1)
    assert rates == sorted(rates)
    assert rates[4:] == pytest.approx([0.1 * factor] * 2)
    assert "batch 32 -> 256" in said[0]
    assert "over the first 4 steps" in said[0]


def test_a_smaller_batch_and_no_warm_up():
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    found = scaling.choose(batch_size=8, base_batch_size=32, rule="linear")
    scaling.apply(optimizer, found, 0, say=print)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


def test_bad_scaling():
    assert (
        refused(scaling.choose, batch_size=8, base_batch_size=32, rule="linaer").fix
        == 'rule="linear"'
    )
    assert (
        refused(scaling.choose, batch_size=0, base_batch_size=32, rule="linear").name
        == "option-invalid"
    )


# Activations


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x).relu()


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("layers", [None, (Block,)])
def test_activations_are_computed_again(layers):
    torch.manual_seed(0)
    plain = Blocks()
    model = copy.deepcopy(plain)
    assert blocks.recompute(model, layers) == 2
    x = torch.randn(4, 3)
    plain(x).sum().backward()
    model(x).sum().backward()
    assert [block.calls for block in plain.blocks] == [1, 1]
    assert [block.calls for block in model.blocks] == [2, 2]
    assert list(model.state_dict()) == list(plain.state_dict())
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_a_block_is_computed_again_once():
    model = Blocks()
    model.blocks = nn.ModuleList([nn.ModuleList([block := Block()]), block, Blocks()])
    assert blocks.recompute(model, None) == 2, (
        "a block in two places, and one with a list of its own"
    )
    assert blocks.recompute(model, None) == 2
    block(torch.ones(4, 3)).sum().backward()
    assert block.calls == 2


class NormBlock(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=momentum)

    def forward(self, x):
        return self.norm(self.layer(x)).relu()


# A momentum of None cannot be compiled whole: torch divides by a count in a buffer.
@pytest.mark.parametrize(("momentum", "compiled"), [(0.1, False), (None, False), (0.1, True)])
def test_batch_norm_counts_a_batch_once(momentum, compiled):
    torch.manual_seed(0)
    plain = nn.Sequential(NormBlock(momentum), NormBlock(momentum))
    model = copy.deepcopy(plain)
    blocks.recompute(model, (NormBlock,))
    model = copy.deepcopy(model)  # as users copy models; the copy has its own statistics
    called = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    for _ in range(3):
        x = torch.randn(8, 3)
        plain(x).sum().backward()
        called(x).sum().backward()
    theirs = plain.state_dict()
    assert list(model.state_dict()) == list(theirs)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, theirs[name], msg=name)
    for ours, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, other.grad)


def test_nothing_to_recompute():
    finding = refused(blocks.recompute, nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), None)
    assert finding.evidence == ("2 x Linear",)


# Stopping


@pytest.fixture
def signals():
    """Handlers as in a script: those of pytest's are put back."""
    names = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in names}
    stopping.give_back(names)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number):
    signal.pthread_kill(threading.main_thread().ident, number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_only_sets_a_flag(signals, number):
    stop = stopping.CleanStop(list, alone=True)
    stop.arm()
    assert not stop.agreed()
    send(number)
    assert stop.asked_by == signal.Signals(number).name
    assert stop.agreed()


def test_asked_twice_from_the_keyboard_means_at_once(signals):
    stop = stopping.CleanStop(list, alone=True)
    stop.arm()
    send(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


def test_a_handler_of_the_script_stays(signals):
    mine = []
    signal.signal(signal.SIGUSR1, lambda *_: mine.append(1))
    stop = stopping.CleanStop(list, alone=True)
    stop.arm()
    send(signal.SIGUSR1)
    assert (mine, stop.asked_by) == ([1], "")


def test_signals_are_for_the_newest_session(signals):
    old, new = (stopping.CleanStop(list, alone=True) for _ in range(2))
    old.arm()
    new.arm()
    send(signal.SIGTERM)
    assert (old.asked_by, new.asked_by) == ("", "SIGTERM")


def test_nothing_happens_before_it_is_armed(signals):
    stop = stopping.CleanStop(lambda _: pytest.fail("a collective"), alone=False)
    assert not stop.agreed()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_ranks_meet_about_once_a_second(signals, monkeypatch):
    """Fast steps meet rarely, slow ones at each; all ranks at the same boundaries."""
    now = [0.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
    for step_s, expected in ((0.01, 100), (0.3, 3), (5.0, 1)):
        meetings = []

        def meet(values, meetings=meetings):
            meetings.append(values)
            return values

        stop = stopping.CleanStop(meet, alone=False)
        stop.arm()
        for _ in range(3 * expected + 1):
            now[0] += step_s
            assert not stop.agreed()
        assert len(meetings) == 4
    stop.ask("session.stop()")
    assert stop.agreed(now=True)


# Once


class Memory(dict):
    """A store of one process."""

    def set(self, key, value):
        self[key] = value if isinstance(value, bytes) else value.encode()

    find = dict.get

    def check(self, keys):
        return all(key in self for key in keys)


def test_the_end_reaches_those_who_wait_and_the_value_is_not_in_the_store():
    store = Memory()
    found = []
    waiting = threading.Thread(target=lambda: found.append(once.await_end(store, "key", rank=0)))
    waiting.start()
    value, data = once.perform(lambda: {"path": "here"}, store, "key")
    waiting.join(5)
    assert found == [None]
    assert value == pickle.loads(data) == {"path": "here"}
    assert not any(b"here" in content for content in store.values())


class Runs:
    """Runs code in whoever unpickles it."""

    def __reduce__(self):
        return exec, ("raise SystemExit('this text of a stranger was run')",)


def test_a_pickle_in_the_store_is_not_run():
    store = Memory()
    for kind in ("failure", "part/0", "beat"):
        store.set(f"key/{kind}", pickle.dumps(("value", Runs())))
    with pytest.raises(ValueError, match=r"JSON|codec|Expecting"):
        once.await_end(store, "key", rank=0)
    store.set("key/failure", "1")
    with pytest.raises(TypeError):
        once.await_end(store, "key", rank=0)


def test_only_a_file_that_a_rank_of_this_user_has_shared_is_mapped(tmp_path):
    """The store names the file, and anybody may write there."""
    array = np.arange(8.0)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(array.tobytes())
    os.symlink("/memfd:paceline-digest", tmp_path / "link")
    for name in ("pipe", "file", "link", "absent"):
        with pytest.raises(OSError, match=name):
            node_memory._mapped(str(tmp_path / name), array, "digest")
    with open(os.memfd_create("paceline-digest"), "r+b") as file:
        file.write(array.tobytes())
        file.flush()
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        assert (node_memory._mapped(path, array, "digest") == array).all()
        for other, digest in ((array, "other"), (np.arange(9.0), "digest")):
            with pytest.raises(OSError, match=path):
                node_memory._mapped(path, other, digest)


def test_what_cannot_be_pickled_fails_everywhere():
    store = Memory()
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        once.perform(lambda: threading.Lock(), store, "key")
    assert refusal(RunError, once.await_end, store, "key", rank=0).name == "user-exception"


def test_silence_is_noticed(monkeypatch):
    store = Memory()
    store.set("key/beat", "1")
    monkeypatch.setattr(once, "SILENCE_S", 0.2)
    started = time.monotonic()
    assert refusal(RunError, once.await_end, store, "key", rank=2).name == "peer-rank-died"
    assert time.monotonic() - started < 5


def test_a_heartbeat_of_once_is_progress_for_who_works_and_who_waits(monkeypatch):
    slot = memoryview(bytearray(counters.SLOT_BYTES)).cast("q")
    monkeypatch.setattr(counters, "mine", slot)
    store = Memory()
    once.perform(lambda: None, store, "key")
    worked = slot[counters.BEAT_NS]
    assert worked > 0
    store.set("wait/beat", "1")
    waiting = threading.Thread(target=once.await_end, args=(store, "wait"), kwargs={"rank": 0})
    waiting.start()
    deadline = time.monotonic() + 5
    while slot[counters.BEAT_NS] == worked and time.monotonic() < deadline:
        time.sleep(0.01)
    heard = slot[counters.BEAT_NS]
    once.perform(lambda: None, store, "wait")
    waiting.join(5)
    assert heard > worked

"""Session, Trainer and precisions on the device: the numbers are the CPU's, on any number of ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci  # a start of a program on the device takes seconds


def trains_in_float64():
    """Print losses by step; with dropout, random rows, clipping, and an end after some steps."""
    import json
    import sys

    import torch
    from torch import nn
    from torch.utils.data import Dataset

    from paceline import FSDP, Session

    class Noisy(Dataset):
        """Rows with draws of their own, which follow from the seed and the sample."""

        def __len__(self):
            return 26

        def __getitem__(self, index):
            x = torch.full((6,), index / 26, dtype=torch.float64)
            return x + 0.1 * torch.randn(6, dtype=torch.float64), x.sum()

    folder, until, strategy = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    strategies = {
        "offloaded": FSDP(offload=True),
        "replicas": FSDP(replicate=2, ignored_params={"2.weight"}),
    }
    strategy = strategies.get(strategy, strategy)
    session = Session(precision="64-true", seed=3, run_dir=folder, loggers=(), strategy=strategy)
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.05))
    loader = session.loader(Noisy(), 6, shuffle=True)
    session.restore("latest")
    losses = {}
    for _ in session.epochs(3):
        for x, y in loader:
            assert x.device == session.device
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            session.backward(loss)
            session.clip_grad_norm(optimizer, 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses[session.step] = session.mean(loss)
            if session.step == until:
                session.save(wait=True)
                print(json.dumps(losses)) if session.is_main else None
                sys.exit()
    print(json.dumps(losses)) if session.is_main else None


def losses_of(output):
    return {int(step): loss for step, loss in json.loads(output.splitlines()[-1]).items()}


@pytest.mark.timeout(180)  # up to three starts of several ranks
@pytest.mark.parametrize(
    "case",
    [
        "alone",
        "three ranks",
        "sharded",
        pytest.param("offloaded", marks=pytest.mark.slow),
        pytest.param("replicas", marks=pytest.mark.slow),
        "stopped",
    ],
)
def test_losses_are_those_of_the_cpu(on_device, case):
    """On one rank and several, whole or sharded, and after a stop that goes on on more ranks."""

    def train(folder, until=-1, strategy="ddp", **options):
        return losses_of(
            on_device(trains_in_float64, folder, str(until), strategy, devices=4, **options)
        )

    expected = train("cpu", hidden=True)
    assert len(expected) == 15
    if case == "stopped":
        first = train("run", until=7, ranks=2)
        rest = train("run", ranks=3)
        assert [*first, *rest] == [*expected]
        found = {**first, **rest}
    elif case == "sharded":
        found = train("run", ranks=2, strategy="fsdp")
    elif case == "offloaded":
        first = train("run", until=7, ranks=2, strategy="offloaded")
        found = {**first, **train("run", ranks=2, strategy="offloaded")}
    elif case == "replicas":
        found = train("run", ranks=4, strategy="replicas")
    else:
        found = train("run", ranks=1 if case == "alone" else 3, copy_ms=1)
    assert found == pytest.approx(expected, abs=1e-10)


def precisions():
    import torch
    from torch import nn

    from paceline import Session

    class Seen(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            self.seen = y.dtype
            return y

    lower = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
    for precision, computed in lower.items():
        session = Session(precision=precision, run_dir=precision, loggers=())
        model = Seen(4, 1)
        model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        own = session.unwrap(model)
        changed = []
        for step in range(4):
            before = own.weight.detach().clone()
            loss = model(torch.full((2, 4), 0.01, device=session.device)).float().mean() / 10
            overflows = step == 1 and session.rank == session.world_size - 1
            session.backward(loss * (float("inf") if overflows and precision == "16-mixed" else 1))
            optimizer.step()
            optimizer.zero_grad()
            changed.append(not torch.equal(before, own.weight))
            assert own.seen == computed, own.seen
        assert changed == [True, precision == "bf16-mixed", True, True], (precision, changed)
        print(session.rank, precision, own.weight.flatten().tolist())


def test_an_overflow_on_one_rank_skips_the_step_on_all(on_device, tmp_path):
    on_device(precisions, ranks=2)
    texts = [(tmp_path / f"run/logs/rank-00{rank}.out").read_text() for rank in (0, 1)]
    weights = [re.search("16-mixed (.*)", text)[1] for text in texts]
    assert weights[0] == weights[1]


def saves_while_training():
    """Parameters change while the copies of a checkpoint are on their way."""
    import torch
    from torch import nn

    from paceline import Session
    from paceline.train.session import run_folder

    def session_and_model():
        session = Session(run_dir="run", loggers=())
        model = nn.Linear(64, 64)
        return session, *session.setup(model, torch.optim.SGD(model.parameters(), lr=0.5))

    torch.emulated.configure(copy_ms=10)
    session, model, optimizer = session_and_model()
    for step in range(6):
        session.backward(model(torch.ones(1, 64, device=session.device)).mean())
        optimizer.step()
        optimizer.zero_grad()
        if step == 3:
            kept = session.unwrap(model).weight.detach().clone()
            session.save()
    del session
    run_folder.reset()  # the rest is another process's
    session, model, _ = session_and_model()
    session.restore("latest")
    assert session.step == 4
    assert torch.equal(session.unwrap(model).weight, kept)


def test_a_checkpoint_is_of_its_step_while_training_goes_on(on_device):
    on_device(saves_while_training)


def optimizers_with_a_state():
    """Of torch's, one remembers from its beginning, others since steps on the CPU."""
    import torch
    from torch import nn

    from paceline import Session

    for kind in (torch.optim.Adagrad, torch.optim.AdamW, torch.optim.LBFGS):
        model = nn.Linear(2, 1)
        optimizer = kind(model.parameters(), lr=0.1)
        if kind is not torch.optim.Adagrad:
            model(torch.ones(1, 2)).square().sum().backward()
            optimizer.step(lambda: torch.tensor(1.0))
        session = Session(run_dir=kind.__name__, loggers=())
        model, optimizer = session.setup(model, optimizer)

        def closure(session=session, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2, device=session.device)).square().sum()
            session.backward(loss)
            return loss

        closure()
        optimizer.step(closure) if kind is torch.optim.LBFGS else optimizer.step()


def test_what_an_optimizer_remembers_goes_to_the_device_with_its_parameters(on_device):
    on_device(optimizers_with_a_state)


def batches_of_a_session():
    """Parts that stay on the CPU, and transforms of arrays, which run where the batch is."""
    import torch
    from torch.nn.utils.rnn import pack_sequence

    from paceline.train.data.batch import moved

    device = torch.device("emulated", 0)
    packed = [pack_sequence([torch.full((3,), float(n))]) for n in range(3)]
    for number, batch in enumerate(moved(iter(packed), device)):
        assert batch.data.device == device
        assert batch.batch_sizes.device.type == "cpu"
        assert batch.data.tolist() == [number] * 3


def test_a_packed_sequence_is_moved_with_its_sizes_left_on_the_cpu(on_device):
    on_device(batches_of_a_session)


def mistaken():
    import sys

    import torch
    from torch.utils.data import TensorDataset

    from paceline import Session

    mistake = sys.argv[1]
    session = Session(run_dir="run", loggers=())
    model = torch.nn.Linear(2, 1)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    total = torch.zeros(1, device=session.device)
    if mistake == "metric":
        total = torch.zeros(1)
    if mistake == "model":
        model.cpu()
    for (x,) in session.loader(TensorDataset(torch.ones(4, 2)), 2):
        if mistake == "batch":
            x = torch.ones(2, 2)
        y = model(x)
        total += y.detach().sum(0)
        session.backward(y.sum())
        optimizer.step()


@pytest.mark.parametrize(
    ("mistake", "line"),
    [("batch", "y = model(x)"), ("model", "y = model(x)"), ("metric", "total +=")],
)
def test_a_tensor_on_the_wrong_device_is_a_finding_with_its_line(start, mistake, line):
    ended = start(mistaken, mistake, ranks=1)
    assert ended.returncode == 1
    told = ended.stderr[ended.stderr.index("cause:") :]
    assert "tensors on emulated:0 and cpu" in told
    assert "device-mismatch]" in told
    assert line in told, told
    assert "fix: x = x.to(device)" in told


def too_large():
    import torch

    kept = []
    for _ in range(100):
        kept.append(torch.ones(1 << 20, device="emulated"))


def test_out_of_memory_is_a_finding(start):
    ended = start(too_large, ranks=1, memory=64 << 20)
    assert ended.returncode == 1
    assert "cuda-oom]" in ended.stderr, ended.stderr


def illegal_access():
    import torch

    x = torch.ones(4, device="emulated")
    for _ in range(100):
        x = x + 1


def test_a_device_that_fails_is_a_finding(start):
    ended = start(illegal_access, ranks=1, fault_after=20)
    assert ended.returncode == 1
    assert "illegal memory access" in ended.stderr
    assert "cause: rank 0" in ended.stderr, ended.stderr


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("example", "command", "expected"),
    [
        ("digits", "run --nproc-per-node auto", "(?s)accuracy 9[789].*done: 2 ranks"),
        ("digits_ddp", "run --nproc-per-node 2", "accuracy 9[789]"),
        ("digits_trainer", "run --nproc-per-node 2", "accuracy 9[789]"),
        ("digits", "run --prove --nproc-per-node 2", "mean over rows, proven on the first batch"),
        ("digits", "verify --steps 50 --world 1,2", "12 kept, 1 proven"),
    ],
)
def test_an_example_trains_and_is_proven(start, example, command, expected):
    program = (ROOT / f"examples/{example}.py").read_text()
    ended = start(program, command=command.split(), copy_ms=1)
    assert ended.returncode == 0, ended.stderr
    assert re.search(expected, ended.stdout + ended.stderr), ended.stdout + ended.stderr

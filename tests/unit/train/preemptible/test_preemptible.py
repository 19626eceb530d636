"""A plain loop in a world of one, stopped and resumed: what it computes is what it would have been."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

import paceline
from paceline import env
from paceline.errors import UsageError
from paceline.train.session.run_folder import reset
from refusals import refusal

LENGTH, BATCHES, EPOCHS = 23, 6, 3


@pytest.fixture(autouse=True)
def unlaunched(monkeypatch, tmp_path):
    for variable in env.variables():
        if variable.name not in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.chdir(tmp_path)


class Samples(Dataset):
    """Rows with noise, so that the random state is part of what is trained."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return index, torch.full((3,), float(index)) / LENGTH + 0.1 * torch.randn(3)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([Samples()[index] for index in range(LENGTH)])


class Backwards(Sampler):
    """A user's sampler with a counter of its own."""

    epoch = 0

    def __iter__(self):
        return iter([(index + self.epoch) % LENGTH for index in reversed(range(LENGTH))])

    def __len__(self):
        return LENGTH

    def set_epoch(self, epoch):
        self.epoch = epoch


def own_generator():
    return DataLoader(
        Samples(), 4, sampler=RandomSampler(Samples(), generator=torch.Generator().manual_seed(5))
    )


def loader_with_generator():
    return DataLoader(Samples(), 4, shuffle=True, generator=torch.Generator().manual_seed(5))


def weighted():
    weights = torch.arange(1.0, LENGTH + 1)
    return DataLoader(Samples(), 4, sampler=WeightedRandomSampler(weights, LENGTH))


def own_batches():
    return DataLoader(Samples(), batch_sampler=BatchSampler(Backwards(), 4, drop_last=False))


LOADERS = {
    "shuffled": lambda: DataLoader(Samples(), 4, shuffle=True),
    "in order": lambda: DataLoader(Samples(), 4),
    "generator of the sampler": own_generator,
    "generator of the loader": loader_with_generator,
    "weighted": weighted,
    "batches of one's own": own_batches,
    "a stream": lambda: DataLoader(Stream(), 4),
}


class Loop:
    """A script: what it makes, and the loop."""

    def __init__(self, loader, *, seed=0):
        reset()  # each stands for a process of its own
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.4), nn.Linear(4, 1)).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.loader, self.rows = loader, []

    def preemptible(self, **options):
        objects = (self.model, self.optimizer, self.scheduler)
        return paceline.preemptible(*objects, loader=self.loader, run_dir="run", **options)

    def train(self, *, stop_at=0, how="range(run.epoch)", between=lambda: None):
        """Return the epochs that were begun; SystemExit at the stop."""
        run = self.preemptible()
        epochs = {
            "range(run.epoch)": lambda: range(run.epoch, EPOCHS),
            "epochs": lambda: run.epochs(EPOCHS),
            "range": lambda: range(EPOCHS),
        }[how]()
        for epoch in epochs:
            if hasattr(getattr(self.loader.batch_sampler, "sampler", None), "set_epoch"):
                self.loader.batch_sampler.sampler.set_epoch(epoch)
            for indices, inputs in self.loader:
                self.step(epoch, indices, inputs)
                if run.step == stop_at:
                    run.stop()
            self.scheduler.step()
            between()
        self.result = [*self.model.parameters(), self.scheduler.get_last_lr()[0], torch.rand(3)]
        return run

    def step(self, epoch, indices, inputs):
        self.optimizer.zero_grad()
        self.model(inputs.double()).square().mean().backward()
        self.optimizer.step()
        self.rows += [(epoch, *indices.tolist())]


def alike(one, other):
    return all(
        torch.equal(torch.as_tensor(mine).cpu(), torch.as_tensor(theirs).cpu())
        for mine, theirs in zip(one, other, strict=True)
    )


def uninterrupted(make, **options):
    loop = Loop(make())
    loop.train(**options)
    return loop


def stop(make, step, **options):
    first = Loop(make())
    with pytest.raises(SystemExit) as ended:
        first.train(stop_at=step, **options)
    assert ended.value.code == 75
    return first


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("step", [4, BATCHES, BATCHES + 5])
def test_a_resumed_loop_computes_the_same(name, step):
    make = LOADERS[name]
    whole = uninterrupted(make)
    first = stop(make, step)
    second = Loop(make(), seed=99)
    second.train()
    assert first.rows + second.rows == whole.rows
    assert alike(second.result, whole.result)


@pytest.mark.parametrize("how", ["epochs", "range"])
@pytest.mark.parametrize("step", [2, BATCHES, BATCHES + 3])
def test_however_the_script_counts_epochs(how, step, capsys):
    make = LOADERS["shuffled"]
    whole = uninterrupted(make, how=how, between=lambda: torch.rand(1))
    first = stop(make, step, how=how, between=lambda: torch.rand(1))
    second = Loop(make(), seed=99)
    second.train(how=how, between=lambda: torch.rand(1))
    assert first.rows + second.rows == whole.rows
    assert alike(second.result, whole.result)
    repeats = how == "range" and step >= BATCHES
    assert ("what stands around them is repeated" in capsys.readouterr().err) == repeats


def test_a_run_may_be_stopped_again_and_again():
    make = LOADERS["shuffled"]
    whole = uninterrupted(make)
    parts = [stop(make, step) for step in (3, 4, BATCHES, BATCHES + 1, 3 * BATCHES - 1)]
    last = Loop(make())
    run = last.train()
    assert [row for part in (*parts, last) for row in part.rows] == whole.rows
    assert alike(last.result, whole.result)
    assert run.step == EPOCHS * BATCHES


@pytest.mark.parametrize("how", ["range(run.epoch)", "range", "epochs"])
def test_a_look_at_the_first_batch_is_no_epoch(how):
    class Looking(Loop):
        def train(self, **options):
            next(iter(self.loader))
            return super().train(**options)

        def preemptible(self):
            run = super().preemptible()
            next(iter(self.loader))
            with torch.no_grad():
                list(self.loader)
            return run

    make = LOADERS["in order"]
    first = Looking(make())
    with pytest.raises(SystemExit):
        first.train(stop_at=BATCHES + 2, how=how)
    second = Looking(make())
    second.train(how=how)
    indices = [index for _, *row in first.rows + second.rows for index in row]
    assert indices == list(range(LENGTH)) * EPOCHS


def test_a_sampler_that_cannot_repeat_its_order_is_named(capsys):
    class Wild(Backwards):
        def __iter__(self):
            return iter(torch.randperm(LENGTH, generator=torch.Generator().manual_seed(Wild.start)))

    def make():
        Wild.start = getattr(Wild, "start", 0) + 1
        return DataLoader(Samples(), 4, sampler=Wild())

    stop(make, 3)
    assert "repeats another order" not in capsys.readouterr().err
    Loop(make()).train()
    assert "repeats another order" in capsys.readouterr().err


def test_a_stream_is_read_again_and_that_is_said(capsys):
    stop(LOADERS["a stream"], 3)
    Loop(LOADERS["a stream"]()).train()
    assert "reads 3 batches again" in capsys.readouterr().err


def test_what_workers_draw_is_said_to_differ(capsys):
    def make():
        return DataLoader(Samples(), 4, shuffle=True, num_workers=1)

    whole = uninterrupted(make)
    first = stop(make, 4)
    second = Loop(make(), seed=99)
    second.train()
    assert first.rows + second.rows == whole.rows
    assert "draw at random in DataLoader workers" in capsys.readouterr().err
    del whole, first, second
    gc.collect()  # the traceback of SystemExit holds the loop, whose worker ends with it


def test_accumulated_gradients_are_not_cut_apart():
    class Accumulating(Loop):
        def step(self, epoch, indices, inputs):
            self.model(inputs.double()).square().mean().backward()
            self.rows += [(epoch, *indices.tolist())]
            if len(self.rows) % 3 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()

    first = Accumulating(LOADERS["in order"]())
    with pytest.raises(SystemExit):
        first.train(stop_at=1)
    assert len(first.rows) == 3
    second = Accumulating(LOADERS["in order"]())
    second.train()
    assert len(first.rows + second.rows) == EPOCHS * BATCHES


def test_two_optimizers_are_a_step_together():
    class Two(Loop):
        def __init__(self, loader):
            super().__init__(loader)
            self.other = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def preemptible(self):
            objects = (self.model, self.optimizer, self.other, self.scheduler)
            return paceline.preemptible(*objects, loader=self.loader, run_dir="run")

        def step(self, epoch, indices, inputs):
            super().step(epoch, indices, inputs)
            if len(self.rows) % 2 == 0:
                self.other.step()

    first = Two(LOADERS["in order"]())
    with pytest.raises(SystemExit):
        first.train(stop_at=3)
    assert len(first.rows) == 4


class Zipped(Loop):
    """Two loaders at once, of different lengths."""

    def __init__(self, *, seed=0):
        super().__init__(DataLoader(Samples(), 4, shuffle=True), seed=seed)
        self.other = DataLoader(Samples(), 6, shuffle=True)

    def train(self, *, stop_at=0):
        objects = (self.model, self.optimizer, self.scheduler)
        loaders = [self.loader, self.other]
        run = paceline.preemptible(*objects, loader=loaders, run_dir="run")
        for epoch in run.epochs(EPOCHS):
            for (first, inputs), (second, noise) in zip(self.loader, self.other, strict=False):
                self.step(epoch, torch.cat([first, second]), torch.cat([inputs, noise]))
                if run.step == stop_at:
                    run.stop()
        self.result = [*self.model.parameters(), torch.rand(3)]


@pytest.mark.parametrize("step", [1, 3, 5])
def test_two_loaders_at_once(step):
    whole = Zipped()
    whole.train()
    first = Zipped()
    with pytest.raises(SystemExit):
        first.train(stop_at=step)
    second = Zipped(seed=99)
    second.train()
    assert first.rows + second.rows == whole.rows
    assert alike(second.result, whole.result)


def test_a_session_reads_the_checkpoint():
    first = stop(LOADERS["in order"], 8)
    session = paceline.Session(run_dir="run")
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.4), nn.Linear(4, 1)).double()
    session.setup(model, torch.optim.AdamW(model.parameters()))
    reset()
    assert session.restore("latest")
    assert session.step == 8
    assert alike(model.parameters(), first.model.parameters())


def test_a_compiled_model_has_the_keys_of_the_users():
    loop = Loop(LOADERS["in order"]())
    plain, loop.model = loop.model, torch.compile(loop.model, backend="eager")
    with pytest.raises(SystemExit):
        loop.train(stop_at=2)
    again = Loop(LOADERS["in order"](), seed=1)
    again.preemptible()
    assert alike(again.model.parameters(), plain.parameters())


def test_a_loader_that_is_made_again_from_the_class_is_not_followed():
    """Fabric makes a new loader in ``setup_dataloaders``, of the class of the one that it gets."""
    loop = Loop(LOADERS["in order"]())
    loop.preemptible()
    assert isinstance(loop.loader, DataLoader)
    again = type(loop.loader)(Samples(), 4, sampler=range(5))
    assert [index for indices, _ in again for index in indices.tolist()] == [0, 1, 2, 3, 4]
    assert len(loop.loader) == BATCHES


def refused(*objects, **options):
    return refusal(UsageError, paceline.preemptible, *objects, run_dir="run", **options)


def test_what_cannot_be_saved_is_refused_with_a_line():
    loop = Loop(LOADERS["in order"]())
    model, optimizer, loader = loop.model, loop.optimizer, loop.loader
    assert "model is missing" in refused(optimizer, loader=loader).what
    assert "optimizer is missing" in refused(model, loader=loader).what
    assert "by name" in refused(model, optimizer, loader, loader=loader).fix
    assert "list" in refused(model, optimizer, loader=[[1, 2]]).what
    assert "has no state_dict" in refused(model, optimizer, loader=loader, ema=3).what
    of_other = torch.optim.SGD(torch.nn.Linear(5, 1).parameters(), lr=0.1)
    finding = refused(model, optimizer, of_other, loader=loader)
    assert (finding.name, "shape [1, 5]" in finding.what) == ("optimizer-of-other-model", True)


def test_under_a_launcher_without_a_process_group(monkeypatch):
    values = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    for name, value in {**values, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    loop = Loop(LOADERS["in order"]())
    found = refused(loop.model, loop.optimizer, loader=loop.loader)
    assert found.name == "process-group-not-initialized"


def test_another_object_than_in_the_checkpoint(capsys):
    stop(LOADERS["in order"], 2)
    loop = Loop(LOADERS["in order"]())
    average = torch.optim.swa_utils.AveragedModel(loop.model)
    scaler = torch.amp.GradScaler("cpu")
    finding = refusal(UsageError, loop.preemptible, scaler=scaler)
    assert finding.name == "checkpoint-other-model"
    assert "scaler" in finding.what
    del average


def test_a_loop_over_another_loader_is_said(capsys):
    loop = Loop(LOADERS["in order"]())
    loop.preemptible()
    loop.step(0, torch.tensor([0]), torch.zeros(1, 3))
    assert "outside of a loop over loader=" in capsys.readouterr().err

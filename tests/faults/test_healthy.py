"""Runs in which nothing is wrong: they end with 0, and nothing at all is found in them."""

from faults.stage import FRAMEWORKS, fault

QUICK = ("--hang-timeout", "10")


def healthy(title, *, options=QUICK, **expected):
    return fault(f"healthy: {title}", finding="", status=0, limit_s=60, options=options, **expected)


@healthy("training", frameworks=FRAMEWORKS)
def test_training(stage):
    stage.script(epochs=3)
    stage.launch()


@healthy("training on two nodes", frameworks=FRAMEWORKS, num_hosts=2, options=())
def test_two_nodes(stage):
    stage.script(epochs=3)
    stage.launch()


@healthy("loader workers, kept between epochs", frameworks=FRAMEWORKS)
def test_workers(stage):
    stage.script(epochs=3, settings="workers = 2")
    stage.launch()


@healthy("validation in each epoch, in order", frameworks=FRAMEWORKS)
def test_validation_each_epoch(stage):
    """The same order in each epoch is right where nothing is learnt from it."""
    stage.script(
        epochs=4,
        epoch="""
        with torch.no_grad():
            for inputs, _ in DataLoader(Samples(), 16, shuffle=False):
                model(inputs)
        """,
    )
    stage.launch()


@healthy("validation with a sampler, its figures summed")
def test_sharded_validation(stage):
    stage.script(
        epochs=4,
        epoch="""
        correct = torch.zeros(1)
        with torch.no_grad():
            for inputs, targets in DataLoader(samples, 8, sampler=DistributedSampler(samples, shuffle=False)):
                correct += (model(inputs).argmax(1) == targets).sum()
        dist.all_reduce(correct)
        """,
    )
    stage.launch()


@healthy("validation on rank 0 only, without a collective")
def test_validation_on_rank_0(stage):
    stage.script(
        epochs=4,
        model="net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))",
        epoch="""
        if rank == 0:
            model.eval()
            with torch.no_grad():
                for inputs, _ in DataLoader(samples, 16):
                    model.module(inputs)
            model.train()
        dist.barrier()
        """,
    )
    stage.launch()


@healthy("gradient accumulation")
def test_accumulation(stage):
    stage.script(
        epochs=3,
        step="""
        if step % 4 != 3:
            with model.no_sync():
                nn.functional.cross_entropy(model(x), y).backward()
            step += 1
            continue
        """,
    )
    stage.launch()


@healthy("a pause of rank 0, shorter than the hang timeout", frameworks=FRAMEWORKS)
def test_a_pause_of_rank_0(stage):
    stage.script(epochs=2, step="if rank == 0 and step == 5:\n    time.sleep(3)")
    stage.launch()


@healthy("rank 0 prints, logs and saves")
def test_rank_0_logs(stage):
    stage.script(
        epochs=3,
        loss="if rank == 0:\n    print(epoch, step, loss.item(), flush=True)",
        epoch="if rank == 0:\n    torch.save(model.module.state_dict(), 'model.pt')\ndist.barrier()",
    )
    stage.launch()


@healthy("a long first step", options=())
def test_a_long_first_step(stage):
    stage.script(epochs=2, step="if step == 0:\n    time.sleep(8)")
    stage.launch()


@healthy(
    "a first step of many seconds over a slow link", options=("--node-timeout", "90"), num_hosts=2
)
def test_a_first_step_over_a_slow_link(stage):
    """Its bytes move, so nobody calls it a hang; all deadlines are a twentieth of the usual ones.

    Heartbeats queue behind the gradients, and a node may be called silent after the half second that is left of ten.
    """
    stage.script(
        epochs=1,
        settings="length = 32",
        start="leave(f'here-{rank}', 1)\nwhile not os.path.exists('over'):\n    time.sleep(0.05)",
        model="net = nn.Sequential(nn.Linear(16, 16384), nn.ReLU(), nn.Linear(16384, 4))",
    )
    stage.launch(env={"PACELINE_TEST_TIME_FACTOR": "0.05"})
    for rank in range(2):
        stage.wait_for(f"here-{rank}")
    for host in stage.hosts:
        host.slow("1mbit")
    stage.write("over", "")
    assert stage.wait(150)
    assert not [
        line.text for launched in stage.launched for line in launched.err if "hang" in line.text
    ]


@healthy("rank 0 prepares the data while the others wait", options=("--hang-timeout", "8"))
def test_rank_0_prepares(stage):
    stage.script(epochs=2, data="if rank == 0:\n    time.sleep(4)\ndist.barrier()")
    stage.launch()


@healthy("torch.compile", options=())
def test_compile(stage):
    stage.script(epochs=2, model="net = torch.compile(net, backend='aot_eager')")
    stage.launch()


@healthy("a generator instead of a loader")
def test_a_generator(stage):
    stage.script(
        epochs=3,
        settings="""
        def batches():
            for _ in range(20):
                yield torch.rand(8, 16), torch.randint(4, (8,))

        def DataLoader(*args, **kwargs):
            class Loader:
                __iter__ = staticmethod(batches)
            return Loader()
        """,
    )
    stage.launch()


@healthy("two loaders at once")
def test_two_loaders(stage):
    stage.script(
        epochs=3,
        step="""
        if step % 8 == 0:
            sampler.seed = 1
            other = iter(DataLoader(samples, batch_size, sampler=sampler))
        x = x + next(other)[0]
        """,
    )
    stage.launch()


@healthy("an iterable dataset")
def test_an_iterable_dataset(stage):
    stage.script(
        epochs=3,
        settings="""
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                for index in range(rank, length, world_size):
                    yield torch.full((16,), index / length), index % 4

        shared = False
        shuffle = None
        """,
        data="samples = Stream()",
    )
    stage.launch()


@healthy("one batch, again and again")
def test_one_batch(stage):
    stage.script(epochs=20, settings="length = 16\nshuffle = False")
    stage.launch()


@healthy("evaluation only")
def test_evaluation_only(stage):
    stage.script(
        epochs=3,
        settings="shuffle = False",
        step="""
        with torch.no_grad():
            correct = (model(x).argmax(1) == y).sum()
        dist.all_reduce(correct)
        continue
        """,
    )
    stage.launch()


ALONE = """
import torch

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(200):
    net(torch.rand(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SLEEPS = "import time\n\ntime.sleep(8)\nprint('slept')\n"
SESSION = """
import torch
import paceline

session = paceline.Session(seed=0)
samples = torch.utils.data.TensorDataset(torch.linspace(0, 1, 404).view(101, 4), torch.ones(101, 1))
net = torch.nn.Linear(4, 1)
model, optimizer = session.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
train = session.loader(samples, batch_size=8, shuffle=True)
held_out = session.loader(samples, batch_size=16)
for epoch in session.epochs(4):
    for x, y in train:
        session.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        loss = sum(float((model(x) - y).square().sum()) for x, y in held_out)
    session.log({"loss": session.reduce(loss) / len(samples)}, step=epoch)
    session.save()
"""
TRAINER = """
import torch
import paceline


class Task(paceline.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", (self.net(x) - y).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(shuffle):
    samples = torch.utils.data.TensorDataset(torch.linspace(0, 1, 404).view(101, 4), torch.ones(101, 1))
    return torch.utils.data.DataLoader(samples, batch_size=8, shuffle=shuffle)


trainer = paceline.Trainer(max_epochs=4, monitor="val_loss")
trainer.fit(Task(), loader(True), loader(False))
"""


@healthy("a script without torch.distributed")
def test_without_distributed(stage):
    stage.write("train.py", ALONE)
    stage.launch()


@healthy("a script that sleeps, shorter than the hang timeout", options=("--hang-timeout", "12"))
def test_a_script_that_sleeps(stage):
    stage.write("train.py", SLEEPS)
    stage.launch()


@healthy("paceline.Session")
def test_session(stage):
    stage.write("train.py", SESSION)
    stage.launch()


@healthy("paceline.Trainer")
def test_trainer(stage):
    stage.write("train.py", TRAINER)
    stage.launch()

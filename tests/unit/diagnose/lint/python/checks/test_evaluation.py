"""Figures of one rank's share, and of padded shares."""

import pytest

from unit.diagnose.lint.python.pairs import found, severity
from unit.diagnose.lint.python.sources import ACCELERATE, FABRIC, LIGHTNING, RAW

VAL = "val_loader = DataLoader(val_set, batch_size=8, sampler=DistributedSampler(val_set, shuffle=False{more}))\n"
INLINE = """
model.eval()
correct = torch.zeros(1)
with torch.no_grad():
    for x, y in val_loader:
        correct += (model(x).argmax(1) == y).sum()
{reduce}
{report}
"""
FUNCTION = """
@torch.no_grad()
def evaluate(net, loader, device):
    net.eval()
    correct, count = 0, 0
    for x, y in loader:
        correct += (net(x).argmax(1) == y).sum()
        count += len(y)
    {reduce}
    return correct / count

accuracy = evaluate(model, val_loader, "cuda")
if rank == 0:
    print(f"accuracy {{accuracy}}")
"""
CLASS = """
class Runner:
    def __init__(self, model, val_set):
        self.model = DDP(model)
        self.val_loader = DataLoader(val_set, batch_size=8, sampler=DistributedSampler(val_set))

    def validate(self):
        self.model.eval()
        total = 0.0
        with torch.inference_mode():
            for batch in self.val_loader:
                total += self.model(batch).mean()
        {reduce}
        print("loss", total / len(self.val_loader))
"""
EVALUATE_ACCELERATE = """
model, loader, val_loader = accelerator.prepare(model, loader, val_loader)
model.eval()
for batch in val_loader:
    with torch.no_grad():
        predictions = model(batch)
    metric.add_batch(accelerator.{gather}(predictions))
"""
FABRIC_EVALUATION = FABRIC + """
val_loader = fabric.setup_dataloaders(DataLoader(val_set))
model.eval()
losses = []
with torch.no_grad():
    for x, y in val_loader:
        losses.append(model(x).mean())
loss = torch.stack(losses).mean()
{reduce}
print("loss", loss)
"""  # fmt: skip
LIT = LIGHTNING + """
class Lit(L.LightningModule):
    def validation_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("val_loss", loss{sync})

trainer = L.Trainer(devices={devices}, strategy="ddp")
trainer.fit(Lit(), loader, val_loader)
"""  # fmt: skip
SUM = "dist.all_reduce(correct)"
PRINT = "if rank == 0:\n    print('accuracy', correct / 10)"


def inline(reduce="", report=PRINT, more=""):
    return RAW + VAL.format(more=more) + INLINE.format(reduce=reduce, report=report)


def function(reduce="pass", more=""):
    return RAW + VAL.format(more=more) + FUNCTION.format(reduce=reduce)


NOT_REDUCED = [
    ("rank 0's share printed", inline(), inline(reduce=SUM)),
    ("every rank's share printed", inline(report="print(correct)"), inline(report="pass")),
    ("printed by a helper", "def show(x):\n    if rank == 0:\n        print(x)\n" + inline(report="show(correct / 10)"),
     "def show(x):\n    if rank == 0:\n        print(x)\n" + inline(reduce=SUM, report="show(correct / 10)")),
    ("function", function(), function("dist.all_reduce(correct)")),
    ("helper of the file", function(), RAW + "def mean(x):\n    dist.all_reduce(x)\n" + VAL.format(more="") + FUNCTION.format(reduce="mean(correct)")),
    ("helper from elsewhere", function(), function("correct = reduce_tensor(correct)")),
    ("meter from elsewhere", function(), function("meter.synchronize_between_processes()")),
    ("class", RAW + CLASS.format(reduce="pass"), RAW + CLASS.format(reduce="total = self.gather_mean(total)\n        dist.reduce(total, 0)")),
    ("whole set on each rank", inline(), RAW + "val_loader = DataLoader(val_set, batch_size=8)\n" + INLINE.format(reduce="", report=PRINT)),
    ("caller reduces", function(), RAW + VAL.format(more="") + FUNCTION.format(reduce="pass").replace("if rank", "dist.all_reduce(accuracy)\nif rank")),
    ("fabric", FABRIC_EVALUATION.format(reduce=""), FABRIC_EVALUATION.format(reduce="loss = fabric.all_reduce(loss)")),
    ("arguments in a dict", RAW + "options = {'batch_size': 8, 'sampler': DistributedSampler(val_set, shuffle=False)}\nval_loader = DataLoader(val_set, **options)\n" + INLINE.format(reduce="", report=PRINT),
     RAW + "options = {'batch_size': 8}\nval_loader = DataLoader(val_set, **options)\n" + INLINE.format(reduce="", report=PRINT)),
    ("factory", RAW + "def make(data):\n    return DataLoader(data, sampler=DistributedSampler(data, shuffle=False))\nval_loader = make(val_set)\n" + INLINE.format(reduce="", report=PRINT),
     RAW + "def make(data):\n    return DataLoader(data)\nval_loader = make(val_set)\n" + INLINE.format(reduce="", report=PRINT)),
    ("accelerate", ACCELERATE + "model, val_loader = accelerator.prepare(model, DataLoader(val_set))\nrank = accelerator.process_index\n" + INLINE.format(reduce="", report=PRINT),
     ACCELERATE + "model, val_loader = accelerator.prepare(model, DataLoader(val_set))\nrank = accelerator.process_index\n" + INLINE.format(reduce="correct = accelerator.reduce(correct)", report=PRINT)),
    ("session", "import paceline\nimport torch\nsession = paceline.Session()\nval_loader = session.loader(val_set, batch_size=8)\nrank = session.rank\n" + INLINE.format(reduce="", report=PRINT),
     "import paceline\nimport torch\nsession = paceline.Session()\nval_loader = session.loader(val_set, batch_size=8)\nrank = session.rank\n" + INLINE.format(reduce="correct = session.reduce(correct)", report=PRINT)),
    ("session, mean", "import paceline\nimport torch\nsession = paceline.Session()\nval_loader = session.loader(val_set, batch_size=8)\nrank = session.rank\n" + INLINE.format(reduce="correct = correct.mean()", report=PRINT),
     "import paceline\nimport torch\nsession = paceline.Session()\nval_loader = session.loader(val_set, batch_size=8)\nrank = session.rank\n" + INLINE.format(reduce="correct = session.mean(correct)", report=PRINT)),
    ("lightning", LIT.format(sync="", devices=2), LIT.format(sync=", sync_dist=True", devices=2)),
    ("lightning on one device", LIT.format(sync="", devices=2), LIT.format(sync="", devices=1)),
]  # fmt: skip
FACTORY = (
    RAW
    + "def make(data):\n    return DataLoader(data, sampler=DistributedSampler(data, shuffle=False{more}))\nval_loader = make(val_set)\n"
    + INLINE.format(reduce=SUM, report=PRINT)
)
TRIM = "predictions = predictions[: len(val_loader.dataset) - samples_seen]"
PADDED = [
    ("averaged over ranks", inline(reduce=SUM), inline(reduce=SUM, more=", drop_last=True")),
    ("function", function("dist.all_reduce(correct)"), function("dist.all_reduce(correct)", more=", drop_last=True")),
    ("unsharded", inline(reduce=SUM), RAW + "val_loader = DataLoader(val_set)\n" + INLINE.format(reduce=SUM, report=PRINT)),
    ("trimmed", inline(reduce=SUM), inline(reduce=SUM + "\ncorrect = correct[: len(val_loader.dataset)]")),
    ("own share", inline(reduce=SUM), RAW + "val_loader = DataLoader(Subset(val_set, range(rank, 9, 4)))\n" + INLINE.format(reduce=SUM, report=PRINT)),
    ("accelerate", ACCELERATE + EVALUATE_ACCELERATE.format(gather="gather"), ACCELERATE + EVALUATE_ACCELERATE.format(gather="gather_for_metrics")),
    ("accelerate, cut off", ACCELERATE + EVALUATE_ACCELERATE.format(gather="gather"), ACCELERATE + EVALUATE_ACCELERATE.format(gather="gather") + "    " + TRIM),
    ("lightning", LIT.format(sync="", devices=2) + "trainer.test(Lit())\n", LIT.format(sync="", devices=1) + "trainer.test(Lit())\n"),
    ("lightning without its sampler", LIT.format(sync="", devices=2) + "trainer.test(Lit())\n",
     LIT.format(sync="", devices=2).replace('"ddp")', '"ddp", use_distributed_sampler=False)') + "trainer.test(Lit())\n"),
    ("fabric", FABRIC_EVALUATION.format(reduce="loss = fabric.all_reduce(loss)"), FABRIC_EVALUATION.format(reduce="loss = fabric.all_reduce(loss)").replace("devices=4", "devices=1")),
    ("sampler without its rest, by position", inline(reduce=SUM), inline(reduce=SUM).replace("shuffle=False", "4, rank, False, 0, True")),
    ("factory", FACTORY.format(more=""), FACTORY.format(more=", drop_last=True")),
]  # fmt: skip
ALL = [
    pytest.param(name, yes, no, id=f"{name} {row}")
    for name, table in [("evaluation-not-reduced", NOT_REDUCED), ("evaluation-padded", PADDED)]
    for row, yes, no in table
]


@pytest.mark.parametrize(("name", "yes", "no"), ALL)
def test_the_mistake_is_found_and_its_neighbour_is_not(name, yes, no):
    assert name in found(yes)
    assert name not in found(no)


@pytest.mark.parametrize(
    ("row", "expected"), [(0, "warning"), (5, "hint"), (7, "hint"), (9, "hint")]
)
def test_padding_is_a_hint_where_the_framework_chose_it(row, expected):
    assert severity(PADDED[row][1], "evaluation-padded") == expected

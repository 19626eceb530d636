"""Methods that are not there, names that went, and texts that are no Python."""

import pytest

from paceline.diagnose.lint.python.judging import judge
from unit.diagnose.lint.python.pairs import found, severity
from unit.diagnose.lint.python.sources import ACCELERATE, FABRIC, LIGHTNING

MODULE = LIGHTNING + """
class Model({base}):
    def __init__(self):
        super().__init__()
        self.net = build()
        self.{call}()

    {more}
"""  # fmt: skip


def module(call="gradient_checkpointing_enable", base="L.LightningModule", more="pass"):
    return MODULE.format(call=call, base=base, more=more)


TRAINER = LIGHTNING + "trainer = L.Trainer(devices=2)\n"
SESSION = "import paceline\nsession = paceline.Session()\n"
METHODS = [
    ("gradient_checkpointing_enable", module(), module("net.gradient_checkpointing_enable")),
    ("nn.Module", module(base="nn.Module"), module(base="PreTrainedModel")),
    ("own method", module(), module(more="def gradient_checkpointing_enable(self): pass")),
    ("forwarded", module(), module(more="def __getattr__(self, name): return getattr(self.net, name)")),
    ("further base", module(), module(base="L.LightningModule, Mixin")),
    ("instance", module("net.eval") + "model = Model()\nmodel.gradient_checkpointing_enable()\n", module("net.eval") + "model = Model()\nmodel.net.gradient_checkpointing_enable()\n"),
    ("instance of the module", module("net.eval") + "model = Model()\ndef main():\n    model.gradient_checkpointing_enable()\n", module("net.eval") + "model = Model()\ndef main(model):\n    model.gradient_checkpointing_enable()\n"),
    ("fabric", FABRIC + "fabric.gather(x)\n", FABRIC + "fabric.all_gather(x)\n"),
    ("accelerator", ACCELERATE + "accelerator.all_reduce(x)\n", ACCELERATE + "accelerator.reduce(x)\n"),
    ("trainer", TRAINER + "trainer.run(model)\n", TRAINER + "trainer.fit(model)\n"),
    ("session", SESSION + "session.prepare(model)\n", SESSION + "session.setup(model)\n"),
    ("known to be uncertain", TRAINER + "trainer.run(model)\n", TRAINER + "if hasattr(trainer, 'run'):\n    trainer.run(model)\n"),
    ("two classes", TRAINER + "trainer.run(model)\n", TRAINER + "if x:\n    trainer = own.Trainer()\ntrainer.run(model)\n"),
    ("other library", TRAINER + "trainer.run(model)\n", "from transformers import Trainer\ntrainer = Trainer(model)\ntrainer.train()\n"),
    ("attribute of the file", TRAINER + "trainer.run(model)\n", TRAINER + "trainer.run = own\ntrainer.run(model)\n"),
]  # fmt: skip
OLD = [
    ("torch", "import torch.distributed as dist\ndist.all_reduce_multigpu([x])\n", "import torch.distributed as dist\ndist.all_reduce(x)\n"),
    ("gpus", LIGHTNING + "L.Trainer(gpus=2)\n", LIGHTNING + "L.Trainer(devices=2)\n"),
    ("pytorch_lightning", "import pytorch_lightning as pl\npl.Trainer(replace_sampler_ddp=False)\n", "import pytorch_lightning as pl\npl.Trainer(use_distributed_sampler=False)\n"),
    ("hook", module("net.eval", more="def training_epoch_end(self, outputs): pass"), module("net.eval", more="def on_train_epoch_end(self): pass")),
    ("own hook", module("net.eval", more="def on_epoch_end(self): pass"), module("net.eval", base="Own", more="def on_epoch_end(self): pass")),
    ("accelerate", "from accelerate import Accelerator\nAccelerator(fp16=True)\n", "from accelerate import Accelerator\nAccelerator(mixed_precision='fp16')\n"),
    ("tune", TRAINER + "trainer.tune(model)\n", TRAINER + "trainer.fit(model)\n"),
    ("argparse", "import pytorch_lightning as pl\npl.Trainer.add_argparse_args(parser)\n", "import pytorch_lightning as pl\npl.Trainer(devices=2)\n"),
]  # fmt: skip
ALL = [
    *(
        pytest.param("method-does-not-exist", yes, no, id=f"method: {row}")
        for row, yes, no in METHODS
    ),
    *(pytest.param("deprecated-name", yes, no, id=f"old: {row}") for row, yes, no in OLD),
]
NO_PYTHON = [
    ("python 2", "print 'x'\n", "error", "Python 2"),
    ("python 2 except", "try:\n    pass\nexcept Error, e:\n    pass\n", "error", ""),
    ("async as a name", "x = y.cuda(async=True)\n", "error", ""),
    ("unclosed", "def f(:\n    pass\n", "error", ""),
    ("notebook", "import torch\n!pip install torch\n", "error", "notebook"),
    ("template", "x = {{ name }}\n}", "error", ""),
    ("null bytes", "x = 1\0\n", "error", ""),
    ("newer Python", "type X = int = 3\n", "warning", ""),
]


@pytest.mark.parametrize(("name", "yes", "no"), ALL)
def test_the_mistake_is_found_and_its_neighbour_is_not(name, yes, no):
    assert name in found(yes)
    assert name not in found(no)


@pytest.mark.parametrize("yes", [pytest.param(yes, id=row) for row, yes, _ in METHODS])
def test_a_method_that_is_not_there_is_an_error(yes):
    assert severity(yes, "method-does-not-exist") == "error"


@pytest.mark.parametrize("yes", [pytest.param(yes, id=row) for row, yes, _ in OLD])
def test_an_old_name_is_no_error(yes):
    assert severity(yes, "deprecated-name") == "warning"


@pytest.mark.parametrize(
    ("source", "expected", "says"), [pytest.param(*row[1:], id=row[0]) for row in NO_PYTHON]
)
def test_what_is_no_python_is_said_with_its_line(source, expected, says):
    (finding,) = judge(source, "train.py")
    assert (finding.name, finding.severity) == ("script-syntax-error", expected)
    assert finding.where.startswith("train.py:")
    assert says in finding.why


def test_what_was_not_meant_to_be_python_is_a_warning():
    (finding,) = judge("[section]\nkey: value = 3 4", "settings.cfg")
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "source",
    ["", "\n", "#", "\ufeffimport torch\n", "x = " + "(" * 5000, "x = " + "[" * 150 + "]" * 150, "a" + ".b" * 50000,
     "if x:\n    pass\n" + "elif x:\n    pass\n" * 3000, "-" * 3000 + "1", "torch\n" * 20000, "\x1b\x00\xff" * 100],
    ids=["empty", "newline", "comment", "mark", "open", "nested", "chain", "elif", "signs", "long", "binary"],
)  # fmt: skip
def test_any_text_ends_in_findings(source):
    assert all(finding.name == "script-syntax-error" for finding in judge(source, "train.py"))

"""Calls for all ranks in blocks for some."""

import pytest

from unit.diagnose.lint.python.pairs import found, severity
from unit.diagnose.lint.python.sources import ACCELERATE, FABRIC, LIGHTNING, RAW

NAME = "collective-in-rank-block"
SPAWNED = """
import torch.distributed as dist

def report(rank, loss):
    {body}
"""
TRAINER = LIGHTNING + "trainer = L.Trainer(devices=4, strategy='ddp')\ntrainer.fit(model, loader)\n"
SESSION = "import torch\nimport paceline\nsession = paceline.Session()\n"
ENGINE = "import torch\nimport deepspeed\nengine, optimizer, _, _ = deepspeed.initialize(model=model, config=c)\n"
HOROVOD = "import torch\nimport horovod.torch as hvd\nhvd.init()\n"
MODULE = """
class Model(L.LightningModule):
    def on_validation_epoch_end(self):
        {before}
        if self.trainer.is_global_zero:
            {inside}
"""

PAIRS = [
    ("barrier", RAW + "if rank == 0:\n    dist.barrier()\n", RAW + "if rank == 0:\n    print('x')\ndist.barrier()\n"),
    ("all_reduce", RAW + "if dist.get_rank() == 0:\n    dist.all_reduce(loss)\n", RAW + "dist.all_reduce(loss)\nif dist.get_rank() == 0:\n    print(loss)\n"),
    ("variable", RAW + "r = dist.get_rank()\nif r == 0:\n    dist.barrier()\n", RAW + "r = results['rank']\nif r == 0:\n    dist.barrier()\n"),
    ("variable of the environment", RAW + "r = 0\nif 'RANK' in os.environ:\n    r = int(os.environ['RANK'])\nif not r:\n    dist.barrier()\n", RAW + "r = int(os.environ['RETRIES'])\nif not r:\n    dist.barrier()\n"),
    ("rest", RAW + "if rank != 0:\n    dist.broadcast(x, 0)\n", RAW + "if rank != 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(y, 0)\n"),
    ("not rank", RAW + "if not rank:\n    dist.all_reduce(loss)\n", RAW + "if not rank:\n    print(loss)\n"),
    ("and", RAW + "if step % 10 == 0 and rank == 0:\n    dist.all_reduce(loss)\n", RAW + "if step % 10 == 0:\n    dist.all_reduce(loss)\n"),
    ("in", RAW + "if local_rank in (-1, 0):\n    dist.barrier()\n", RAW + "if local_rank not in (-1, 0):\n    dist.barrier()\nload()\nif local_rank == 0:\n    dist.barrier()\n"),
    ("master name", RAW + "is_main = rank == 0\nif is_main:\n    dist.barrier()\n", RAW + "is_main = rank == 0\nif not is_main:\n    dist.barrier()\nload()\nif is_main:\n    dist.barrier()\n"),
    ("early return", SPAWNED.format(body="if rank != 0:\n        return\n    dist.all_reduce(loss)"), SPAWNED.format(body="dist.all_reduce(loss)\n    if rank != 0:\n        return\n    print(loss)")),
    ("roles", RAW + "if rank == 0:\n    dist.barrier()\nelse:\n    print('x')\n",
     RAW + "def lead():\n    dist.barrier()\ndef follow():\n    dist.barrier()\nif rank == 0:\n    lead()\nelse:\n    follow()\n"),
    ("roles with return", SPAWNED.format(body="if rank == 0:\n        dist.barrier()\n        return\n    print(loss)"), SPAWNED.format(body="if rank == 0:\n        dist.barrier()\n        return\n    dist.barrier()")),
    ("two ranks", RAW + "if rank == 0:\n    dist.broadcast(x, 0)\n", RAW + "if rank == 0:\n    dist.broadcast(x, 0)\nelif rank == 1:\n    dist.broadcast(y, 0)\n"),
    ("gather", RAW + "if rank == 0:\n    dist.gather(x, parts)\n", RAW + "if rank == 0:\n    dist.gather(x, parts)\nelse:\n    dist.gather(x)\n"),
    ("subgroup", RAW + "if rank == 0:\n    dist.barrier()\n", RAW + "group = dist.new_group([0])\nif rank == 0:\n    dist.barrier(group=group)\n"),
    ("new_group", RAW + "if rank == 0:\n    g = dist.new_group([0, 1])\n", RAW + "g = dist.new_group([0, 1])\nif rank == 0:\n    print(g)\n"),
    ("environment", RAW + "if int(os.environ['RANK']) == 0:\n    dist.barrier()\n", RAW + "if int(os.environ['WORLD_SIZE']) > 1:\n    dist.barrier()\n"),
    ("is_initialized", RAW + "if dist.is_initialized() and dist.get_rank() == 0:\n    dist.barrier()\n", RAW + "if dist.is_initialized() and dist.get_world_size() > 1:\n    dist.barrier()\n"),
    ("wrap", RAW + "if rank == 0:\n    model = DDP(net)\n", RAW + "if dist.is_initialized():\n    model = DDP(net)\n"),
    ("one process", RAW + "if rank == 0:\n    dist.barrier()\n", RAW + "if dist.get_world_size() == 1 and rank == 0:\n    dist.barrier()\n"),
    ("loop variable", RAW + "if rank == 0:\n    dist.barrier()\n", RAW + "for rank in range(4):\n    if rank == 0:\n        dist.barrier()\n"),
    ("flag", RAW + "if rank == 0:\n    dist.barrier()\n", RAW + "if args.as_rank:\n    dist.barrier()\n"),
    ("tensor rank", RAW + "if rank == 0:\n    dist.all_reduce(x)\n", RAW + "if lora_rank == 0:\n    dist.all_reduce(x)\n"),
    ("accelerate", ACCELERATE + "if accelerator.is_main_process:\n    accelerator.wait_for_everyone()\n", ACCELERATE + "accelerator.wait_for_everyone()\nif accelerator.is_main_process:\n    accelerator.save(x, 'f')\n"),
    ("accelerate gather", ACCELERATE + "if accelerator.is_main_process:\n    print(accelerator.gather(x))\n", ACCELERATE + "y = accelerator.gather(x)\nif accelerator.is_main_process:\n    print(y)\n"),
    ("decorator", ACCELERATE + "@accelerator.on_main_process\ndef show(x):\n    print(accelerator.gather(x))\n", ACCELERATE + "@accelerator.on_main_process\ndef show(x):\n    print(x)\n"),
    ("fabric", FABRIC + "if fabric.global_rank == 0:\n    fabric.barrier()\n", FABRIC + "fabric.barrier()\nif fabric.global_rank == 0:\n    print('x')\n"),
    ("fabric save", FABRIC + "if fabric.is_global_zero:\n    fabric.save('f', state)\n", FABRIC + "fabric.save('f', state)\n"),
    ("trainer", TRAINER + "if trainer.is_global_zero:\n    trainer.save_checkpoint('f')\n", TRAINER + "trainer.save_checkpoint('f')\nif trainer.is_global_zero:\n    print('saved')\n"),
    ("trainer of one device", TRAINER + "if trainer.is_global_zero:\n    trainer.test(model)\n", TRAINER + "if trainer.is_global_zero:\n    trainer = L.Trainer(devices=1)\n    trainer.test(model)\n"),
    ("module", LIGHTNING + MODULE.format(before="pass", inside="x = self.all_gather(self.x)"), LIGHTNING + MODULE.format(before="x = self.all_gather(self.x)", inside="print(x)")),
    ("rank_zero_only", "import torch.distributed as dist\nfrom lightning.pytorch.utilities import rank_zero_only\n@rank_zero_only\ndef f(x):\n    dist.barrier()\n",
     "import torch.distributed as dist\nfrom lightning.pytorch.utilities import rank_zero_only\n@rank_zero_only\ndef f(x):\n    print(x)\ndist.barrier()\n"),
    ("session", SESSION + "if session.is_main:\n    session.save(metric=1)\n", SESSION + "session.save(metric=1)\nif session.is_main:\n    session.print('x')\n"),
    ("deepspeed", ENGINE + "if torch.distributed.get_rank() == 0:\n    engine.save_checkpoint('d')\n", ENGINE + "engine.save_checkpoint('d')\n"),
    ("horovod", HOROVOD + "if hvd.rank() == 0:\n    hvd.allreduce(x)\n", HOROVOD + "hvd.allreduce(x)\nif hvd.rank() == 0:\n    print(x)\n"),
]  # fmt: skip


@pytest.mark.parametrize(("yes", "no"), [pytest.param(yes, no, id=row) for row, yes, no in PAIRS])
def test_the_mistake_is_found_and_its_neighbour_is_not(yes, no):
    assert NAME in found(yes)
    assert NAME not in found(no)


@pytest.mark.parametrize("yes", [pytest.param(yes, id=row) for row, yes, _ in PAIRS])
def test_a_hang_is_an_error(yes):
    assert severity(yes, NAME) == "error"


@pytest.mark.parametrize(
    "condition", ["gpu == 0", "rank == source", "tp_rank == 0", "self.stage_rank == 0"]
)
def test_a_condition_that_may_be_about_something_else_is_no_error(condition):
    assert severity(RAW + f"if {condition}:\n    dist.barrier()\n", NAME) != "error"


def test_where_the_others_call_another_file_it_is_a_warning_at_most():
    source = (
        RAW
        + "from peers import answer\nif rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    answer(x)\n"
    )
    assert severity(source, NAME) == "warning"
    assert severity(source.replace("answer(x)", "print(x)"), NAME) == "error"

"""The order of fully_shard, parallelize_module and the optimizer; each wrong row beside a right one."""

import pytest

from unit.diagnose.lint.python.pairs import found

NAME = "wrapping-order"
BEGIN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module, ColwiseParallel
from torch.optim import AdamW

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 2)

dist.init_process_group("nccl")
model = Net().cuda()
"""
SHARD = "for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)\n"
MADE = "optimizer = AdamW(model.parameters())\n"
CUT = "parallelize_module(model, mesh['tp'], plan)\n"
ROWS = [
    ("optimizer before fully_shard", BEGIN + MADE + SHARD, BEGIN + SHARD + MADE),
    ("optimizer before parallelize_module", BEGIN + MADE + CUT, BEGIN + CUT + MADE),
    ("of a part", BEGIN + MADE + "parallelize_module(model.head, mesh, ColwiseParallel())\n", BEGIN + "parallelize_module(model.head, mesh, ColwiseParallel())\n" + MADE),
    ("result kept", BEGIN + MADE + "model = fully_shard(model)\n", BEGIN + "model = fully_shard(model)\n" + MADE),
    ("groups of parameters", BEGIN + "optimizer = torch.optim.SGD([{'params': [p for n, p in model.named_parameters()]}], lr=0.1)\n" + SHARD, BEGIN + MADE + SHARD + MADE),
    ("memory given later", BEGIN.replace(".cuda()", "") + MADE + "model.to_empty(device='cuda')\n", BEGIN + "model.to_empty(device='cuda')\n" + MADE),
    ("renewed by hand", BEGIN + MADE + SHARD, BEGIN + MADE + SHARD + "optimizer.param_groups[0]['params'] = list(model.parameters())\n"),
    ("only where sharded", BEGIN + "if sharded:\n    " + MADE + "    fully_shard(model)\n", BEGIN + "if sharded:\n    fully_shard(model)\nelse:\n    " + MADE),
    ("another model", BEGIN + MADE + SHARD, BEGIN + "teacher = Net()\n" + MADE.replace("model", "teacher") + SHARD),
    ("the name of another model", BEGIN + MADE + SHARD, BEGIN + MADE + "train(model, optimizer)\nmodel = Net()\n" + SHARD),
    ("attributes", BEGIN + "class Work:\n    def begin(self):\n        self.optimizer = AdamW(self.model.parameters())\n        fully_shard(self.model)\n",
     BEGIN + "class Work:\n    def begin(self):\n        fully_shard(self.model)\n        self.optimizer = AdamW(self.model.parameters())\n"),
    ("a library that does it", BEGIN + MADE + SHARD, "from accelerate import Accelerator\n" + BEGIN + MADE + SHARD),
    ("another fully_shard", BEGIN + MADE + SHARD, BEGIN.replace("torch.distributed.fsdp", "mine") + MADE + SHARD),
    ("numbered blocks", BEGIN + MADE + SHARD.replace("block in model.blocks", "n, block in enumerate(model.blocks)"), BEGIN + SHARD.replace("block in model.blocks", "n, block in enumerate(model.blocks)")),
    ("the model left out", BEGIN + SHARD.replace("fully_shard(model)\n", ""), BEGIN + SHARD),
    ("nothing outside of the blocks", BEGIN + SHARD.replace("fully_shard(model)\n", ""), BEGIN.replace("self.head = nn.Linear(8, 2)", "self.act = nn.GELU()") + SHARD.replace("fully_shard(model)\n", "")),
    ("a function does the rest", BEGIN + SHARD.replace("fully_shard(model)\n", ""), BEGIN + "def finish(module):\n    pass\n" + SHARD.replace("fully_shard(model)\n", "finish(model)\n")),
    ("averaged by hand", BEGIN + SHARD.replace("fully_shard(model)\n", ""), BEGIN + SHARD.replace("fully_shard(model)\n", "") + "dist.all_reduce(model.head.weight.grad)\n"),
    ("a model of another file", BEGIN + SHARD.replace("fully_shard(model)\n", ""), BEGIN.replace("Net()", "models.Net()").replace("class Net", "class Mine") + SHARD.replace("fully_shard(model)\n", "")),
    ("the head apart", BEGIN + SHARD.replace("fully_shard(model)\n", ""), BEGIN + SHARD.replace("fully_shard(model)\n", "fully_shard(model.head)\n")),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "right"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_the_order_is_found_and_its_right_form_is_not(wrong, right):
    assert NAME in found(wrong)
    assert NAME not in found(right)

"""Who writes a checkpoint."""

import pytest

from unit.diagnose.lint.python.pairs import found
from unit.diagnose.lint.python.sources import RAW

SAVE = 'torch.save(model.module.state_dict(), "model.pt")\n'
FUNCTION = RAW + """
def save(state, path="model.pt"):
    torch.save(state, path)

{call}
"""  # fmt: skip
CLASS = RAW + """
class Runner:
    def __init__(self, model):
        self.model = DDP(model)

    def _save(self, epoch):
        torch.save(self.model.module.state_dict(), "model.pt")

    def train(self, epochs):
        for epoch in range(epochs):
            {call}
"""  # fmt: skip
SPAWN = """
import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def work(rank, model):
    model = DistributedDataParallel(model)
    {inside}

if __name__ == "__main__":
    mp.spawn(work, args=(model,), nprocs=2)
    {outside}
"""
ENGINE = """
import deepspeed
import torch

engine, optimizer, _, _ = deepspeed.initialize(model=net, config="ds.json")
for x, y in loader:
    engine.backward(engine(x))
    engine.step()
"""
EVERY_RANK = [
    ("with DeepSpeed", ENGINE + 'torch.save(net.state_dict(), "net.pt")', ENGINE + 'engine.save_checkpoint("checkpoints")'),
    ("plain", RAW + SAVE, RAW + "if rank == 0:\n    " + SAVE),
    ("own file", RAW + SAVE, RAW + SAVE.replace('"model.pt"', 'f"model-{rank}.pt"')),
    ("own file by name", RAW + SAVE, RAW + 'path = f"model-{rank}.pt"\n' + SAVE.replace('"model.pt"', "path")),
    ("function", FUNCTION.format(call="save(model.module.state_dict())"), FUNCTION.format(call="if rank == 0:\n    save(model.module.state_dict())")),
    ("method", CLASS.format(call="self._save(epoch)"), CLASS.format(call="if self.gpu_id == 0 and epoch % 3 == 0: self._save(epoch)")),
    ("early return", FUNCTION.format(call="def end():\n    save(model.state_dict())\nend()"),
     FUNCTION.format(call="def end():\n    if dist.get_rank() != 0:\n        return\n    save(model.state_dict())\nend()")),
    ("or alone", RAW + SAVE, RAW + "if not args.distributed or rank % 8 == 0:\n    " + SAVE),
    ("master", RAW + SAVE, RAW + "master_process = rank == 0\nif master_process:\n    " + SAVE),
    ("spawned", SPAWN.format(inside='torch.save(model.module.state_dict(), "m.pt")', outside="pass"),
     SPAWN.format(inside="pass", outside='torch.save(model.state_dict(), "m.pt")')),
    ("in memory", RAW + SAVE, RAW + "import io\nbuffer = io.BytesIO()\n" + SAVE.replace('"model.pt"', "buffer")),
    ("no ranks", RAW + SAVE, "import torch\ntorch.save(model.state_dict(), 'model.pt')\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("yes", "no"), [pytest.param(yes, no, id=row) for row, yes, no in EVERY_RANK]
)
def test_the_mistake_is_found_and_its_neighbour_is_not(yes, no):
    assert "save-on-every-rank" in found(yes)
    assert "save-on-every-rank" not in found(no)

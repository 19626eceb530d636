"""Who writes a checkpoint, and with which keys."""

import pytest

from unit.diagnose.lint.python.pairs import found, severity
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
KEYS = [
    ("plain", "torch.save(model.state_dict(), 'm.pt')", "torch.save(model.module.state_dict(), 'm.pt')"),
    ("in a dict", "torch.save({'model': model.state_dict()}, 'm.pt')", "torch.save({'model': model.module.state_dict()}, 'm.pt')"),
    ("dict by name", "state = {'model': model.state_dict()}\ntorch.save(state, 'm.pt')", "raw = model.module\nstate = {'model': raw.state_dict()}\ntorch.save(state, 'm.pt')"),
    ("attribute", "self.net = DDP(net)\ntorch.save(self.net.state_dict(), 'm.pt')", "self.net = DDP(net)\ntorch.save(self.net.module.state_dict(), 'm.pt')"),
    ("unwrapped", "torch.save(model.state_dict(), 'm.pt')", "model = model.module\ntorch.save(model.state_dict(), 'm.pt')"),
    ("both known", "torch.save(model.state_dict(), 'm.pt')", "if dist.is_initialized():\n    state = model.module.state_dict()\nelse:\n    state = model.state_dict()\ntorch.save(state, 'm.pt')"),
    ("asked for", "torch.save(model.state_dict(), 'm.pt')", "if hasattr(model, 'module'):\n    model = model.module\ntorch.save(model.state_dict(), 'm.pt')"),
    ("not saved", "torch.save(model.state_dict(), 'm.pt')", "print(model.state_dict().keys())"),
    ("maybe wrapped", "torch.save(model.state_dict(), 'm.pt')", "other = load()\nif x:\n    other = other.module\ntorch.save(other.state_dict(), 'm.pt')"),
]  # fmt: skip
ALL = [
    *(
        pytest.param("save-on-every-rank", yes, no, id=f"every rank: {row}")
        for row, yes, no in EVERY_RANK
    ),
    *(
        pytest.param("save-wrapped-model", RAW + yes, RAW + no, id=f"keys: {row}")
        for row, yes, no in KEYS
    ),
]


@pytest.mark.parametrize(("name", "yes", "no"), ALL)
def test_the_mistake_is_found_and_its_neighbour_is_not(name, yes, no):
    assert name in found(yes)
    assert name not in found(no)


def test_keys_with_a_prefix_are_a_hint_where_they_are_loaded_into_the_wrapper():
    source = (
        RAW + "model.load_state_dict(torch.load('m.pt'))\ntorch.save(model.state_dict(), 'm.pt')\n"
    )
    assert severity(source, "save-wrapped-model") == "hint"

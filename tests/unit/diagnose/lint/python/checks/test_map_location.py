"""Checkpoints that every rank loads onto the GPU of one."""

import pytest

from unit.diagnose.lint.python.pairs import found
from unit.diagnose.lint.python.sources import ACCELERATE, RAW

NAME = "map-location-missing"
SAVE = "if rank == 0:\n    torch.save(model.module.state_dict(), 'm.pt')\n"
LOAD = "model.module.load_state_dict(torch.load('m.pt'{}))\n"
RANKS = RAW + SAVE
WRONG = {
    "nested": RANKS + LOAD.format(""),
    "by a name": RANKS + "state = torch.load('m.pt')\nmodel.load_state_dict(state['model'])\n",
    "of the optimizer": RANKS
    + "s = torch.load('m.pt', weights_only=True)\noptimizer.load_state_dict(s)\n",
    "in a method": RANKS
    + "class T:\n    def resume(self):\n        self.s = torch.load('m.pt')\n        self.m.load_state_dict(self.s)\nT().resume()\n",
}
RIGHT = {
    "a device": RANKS + LOAD.format(", map_location='cpu'"),
    "the second argument": RANKS + LOAD.format(", 'cpu'"),
    "unknown arguments": RANKS + LOAD.format(", **options"),
    "saved elsewhere": RAW + LOAD.format(""),
    "data": RANKS + "images = torch.load('images.pt')\n",
    "one rank": RANKS + "if rank == 0:\n    " + LOAD.format(""),
    "one process": RANKS + "if dist.get_world_size() == 1:\n    " + LOAD.format(""),
    "on CPUs": (RANKS + LOAD.format("")).replace("nccl", "gloo"),
    "not parallel": ACCELERATE
    + "torch.save(net.state_dict(), 'm.pt')\nnet.load_state_dict(torch.load('m.pt'))\n",
    "another load": RANKS + "model.load_state_dict(safetensors.torch.load_file('m.pt'))\n",
}


@pytest.mark.parametrize("source", WRONG.values(), ids=WRONG)
def test_a_checkpoint_of_another_rank_is_found(source):
    assert NAME in found(source)


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT)
def test_what_no_rank_takes_from_another_is_left_alone(source):
    assert NAME not in found(source)

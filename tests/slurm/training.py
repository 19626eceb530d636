"""Small trainings whose result is known: each step takes all samples, so neither order nor number of ranks matters."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import nn

from places import filled

HERE = Path(__file__).parent / "scripts"
PEERS = Path(__file__).parents[1] / "faults" / "scripts"
SCRIPTS = {
    "raw": PEERS / "raw_train.py",
    "fabric": PEERS / "fabric_train.py",
    "lightning": PEERS / "lightning_train.py",
    "accelerate": PEERS / "accelerate_train.py",
    "session": HERE / "session_train.py",
    "lightning_alone": HERE / "lightning_alone.py",
}
FIVE = ("raw", "fabric", "lightning", "accelerate", "session")
LENGTH, EPOCHS = 32, 3

# Whatever a framework has wrapped the model in, its parameters are in the order in which they were made.
_LEAVE_PARAMETERS = """
if epoch == epochs - 1:
    total = sum(float(each.detach().abs().double().sum()) for each in model.parameters())
    leave(f"result-{rank}", f"{world_size} {total:.6f}")
    if rank == 0:
        print(f"trained by {world_size} ranks: {total:.4f}", flush=True)
"""


def write(
    folder: Path, kind: str, *, name: str = "train.py", epochs: int = EPOCHS, **places: str
) -> Path:
    """Write a script whose ranks leave ``result-RANK``: the number of ranks and the sum of all parameters' sizes.

    Args:
        folder: Where to.
        kind: One of SCRIPTS.
        name: Its file's name.
        epochs: Steps that it makes, as each epoch is one.
        **places: Code for its places, ``{place: lines}``.
    """
    settings = f"epochs = {epochs}\n"
    if kind in FIVE[:4]:
        settings += f"length = {LENGTH}\nbatch_size = {LENGTH} // world_size\n"
    places["settings"] = settings + places.get("settings", "")
    places["epoch"] = places.get("epoch", "") + _LEAVE_PARAMETERS
    path = folder / name
    path.write_text(filled(SCRIPTS[kind].read_text(), places))
    return path


@cache
def expected(epochs: int = EPOCHS) -> float:
    """Return what one process without any framework comes to."""
    generator = torch.random.get_rng_state()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    torch.random.set_rng_state(generator)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.stack([torch.full((16,), (index % 7) / 7) for index in range(LENGTH)])
    y = torch.arange(LENGTH) % 4
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return sum(float(each.detach().abs().double().sum()) for each in net.parameters())


def assert_trained(folder: Path, *, ranks: int, epochs: int = EPOCHS) -> None:
    """Check that this many ranks have made one training of all, with the result of one process."""
    results = sorted(path.read_text().split() for path in folder.glob("result-*"))
    assert len(results) == ranks, (
        f"ranks that finished: {sorted(path.name for path in folder.glob('result-*'))}"
    )
    for world_size, total in results:
        assert int(world_size) == ranks
        assert abs(float(total) - expected(epochs)) < 2e-4, f"{total} for {expected(epochs):.6f}"

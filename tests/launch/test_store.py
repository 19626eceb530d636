"""The run's store: ranks meet in it again and again, and what others write into it changes nothing."""

from __future__ import annotations

import contextlib
import json
import re
import threading

import pytest
import torch
from torch.distributed import TCPStore

GROUPS = """
import os, time, datetime, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
def has_come(name):
    deadline = time.monotonic() + 30
    while not os.path.exists(name):
        assert time.monotonic() < deadline, name
        time.sleep(.01)
for turn in range(3):
    limit = datetime.timedelta(seconds=20 + turn)
    dist.init_process_group("cpu:gloo" if turn % 2 else "gloo", timeout=limit)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == dist.get_world_size() == 3
    if rank != turn % 3:  # one rank still has this group while the others make the next
        has_come(f"begun-{turn}")
    else:
        open(f"begun-{turn}", "w").close()
    dist.destroy_process_group()
    if rank < 2:  # a smaller world in between, which one rank is not in
        dist.init_process_group("gloo", world_size=2, rank=rank, timeout=limit)
        dist.broadcast(x, 0)
        dist.destroy_process_group()
open(f"done-{rank}", "w").close()
"""


def test_a_process_makes_and_destroys_its_default_group_again_and_again(command):
    """The addresses of the first group stayed in the store, and the second one waited for them."""
    command.script(GROUPS)
    ended = command.run("--nproc-per-node", 3, "train.py")
    assert ended.status == 0, ended.err
    assert len(list(command.folder.glob("done-*"))) == 3


WAITS = """
import os, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
if rank == 0:
    open("port", "w").write(os.environ["MASTER_PORT"] + "\\n")
while not os.path.exists("attacked"):
    time.sleep(.01)
"""
SCRIPTS = {
    "session": """
import paceline
session = paceline.Session(seed=0)
data = torch.arange(64, dtype=torch.float64).reshape(32, 2) / 64
model = torch.nn.Linear(2, 1).double()
loader = session.loader(data, batch_size=8)
checked = session.loader(data, batch_size=8)
model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), 0.1))
session.restore("latest")
told = session.once(lambda: time.sleep(.5) or "told")
with torch.no_grad():
    seen = [model(batch).sum().item() for batch in checked]  # compares datasets in the store
for epoch in session.epochs(3):
    for batch in loader:
        session.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    session.save()
session.print("result", told, len(seen), *(f"{p.sum().item():.12f}" for p in model.parameters()))
""",
    "preemptible": """
import paceline
dist.init_process_group("gloo")
torch.manual_seed(0)
data = torch.arange(64, dtype=torch.float64).reshape(32, 2) / 64
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1).double())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = torch.utils.data.DataLoader(data[rank::2], batch_size=2)
run = paceline.preemptible(model, optimizer, loader=loader)
for epoch in range(run.epoch, 5):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(.05)
if rank == 0:
    print("result", run.step, *(f"{p.sum().item():.12f}" for p in model.parameters()))
dist.destroy_process_group()
""",
}
WORDS = re.compile(r"(.*/)(paceline/(?:place|loader|once|preemptible)/.*)", re.DOTALL)
COUNTERS = re.compile(r".*/(here|know)|paceline/(places|once/calls)/.*|paceline/loader/[^/]*/\d")


class Stranger:
    """Another user's process at the store of a run: it forges what ranks read, early and late."""

    def __init__(self, port, evil):
        self.store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        token = json.loads(self.store.get("paceline/run"))["token"]
        failure = json.dumps({"what": "forged", "place": "forged"})
        finding = json.dumps({"name": "forged", "severity": "error", "what": "forged"})
        self.forged = {
            **{f"paceline/place/1/{number}": str(evil) for number in (1, 2)},
            "paceline/place/1/3": finding,
            **{f"paceline/once/1/0/{kind}": failure for kind in ("end", "failure")},
            "paceline/preemptible/1/asked": "forged",
            "paceline/preemptible/1/at": "0 5",
            **{f"paceline/loader/train.py:{n}/1/dataset": "1" for n in range(9, 20)},
        }
        keys = self.store.list_keys() if hasattr(self.store, "list_keys") else []
        own = {f"paceline/{token}", *(key for key in keys if re.fullmatch(r"paceline/\w{64}", key))}
        for prefix in own:
            for group in ("0", "0/2.0"):
                self.forge(f"{prefix}/{group}/default_pg/0//")
        self.written = set(self.keys())
        other = {"token": "t", "run_id": "", "script": "s", "user": "u", "host": "h", "pid": 1}
        self.store.set("paceline/run", json.dumps(other))

    def forge(self, prefix):
        for key, value in self.forged.items():
            self.store.set(prefix + key, value)

    def keys(self):
        listed = self.store.list_keys() if hasattr(self.store, "list_keys") else []
        return [key for key in listed if WORDS.fullmatch(key)]

    def write_over(self, ended):
        """Write over each key that ranks read, once, as soon as a rank has written it."""
        with contextlib.suppress(RuntimeError):  # the run has ended, and its store
            while not ended.wait(0.01):
                for key in set(self.keys()) - self.written:
                    self.written.add(key)
                    if not COUNTERS.fullmatch(WORDS.fullmatch(key)[2]):
                        self.store.set(key, self.forged.get(WORDS.fullmatch(key)[2], "forged"))


class Payload:
    def __reduce__(self):
        return exec, ("open('payload', 'w').close()",)


@pytest.mark.parametrize(
    "number", [1, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize("kind", SCRIPTS)
def test_what_a_stranger_writes_into_the_store_changes_nothing(command, kind, number):
    """The ranks took the name of their run folder from there, and unpickled what it held."""
    command.script(WAITS + SCRIPTS[kind])
    attacked, evil = command.folder / "attacked", command.folder / "evil"
    (evil / "checkpoints" / "step-1").mkdir(parents=True)
    torch.save(Payload(), evil / "checkpoints" / "step-1" / "state.pt")
    attacked.touch()
    usual = command.run("--nproc-per-node", 2, "train.py")
    assert usual.status == 0, usual.err
    before = sorted(path for path in evil.rglob("*"))
    for _ in range(number):
        for path in (attacked, command.folder / "port"):
            path.unlink()
        running = command.start("--nproc-per-node", 2, "train.py")
        stranger = Stranger(int(command.wait_for(command.folder / "port")), evil)
        ended = threading.Event()
        late = threading.Thread(target=stranger.write_over, args=(ended,))
        late.start()
        attacked.touch()
        end = running.wait()
        ended.set()
        late.join()
        assert (end.status, end.out) == (0, usual.out), end.err
        assert "forged" not in end.err
        assert sorted(path for path in evil.rglob("*")) == before
        assert not (command.folder / "payload").exists()

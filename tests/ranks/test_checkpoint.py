"""Checkpoints of real gloo ranks: written together, read at any world size, failed together."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from paceline.errors import PacelineError
from paceline.rundir import manifest
from paceline.train.checkpoint import Checkpoints, verify
from paceline.world import World

CPU = torch.device("cpu")


def checkpoints(folder):
    """The checkpoints as this rank sees them."""
    if not dist.is_initialized():
        return Checkpoints(Path(folder), world=World(), device=CPU)
    world = World(
        rank=dist.get_rank(), world_size=dist.get_world_size(), local_rank=dist.get_rank()
    )
    return Checkpoints(Path(folder), world=world, device=CPU)


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def tensors(step, *, num=6):
    """A state of tensors in many sizes whose values tell the step."""
    generator = torch.Generator().manual_seed(step)
    weights = {
        f"model/{i}.weight": torch.randn(8 * i + 3, 5, generator=generator) for i in range(num)
    }
    return {
        **weights,
        "model/count": torch.tensor(step),
        "optimizer/0/0.weight/step": torch.tensor(float(step)),
    }


def same(left, right):
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def refused(deed):
    """The finding that a deed is refused with, and how long that took."""
    begin = time.monotonic()
    try:
        deed()
    except PacelineError as error:
        return error.finding.to_json() | {"seconds": time.monotonic() - begin}
    return None


# The same state at any world size


def save_and_find(folder, step):
    here = checkpoints(folder)
    state = {
        **tensors(step),
        "session": {"step": step},
        f"rank/{rank()}/rng": torch.tensor([rank(), step]),
    }
    here.save(state, step=step, epoch=step // 10)
    here.wait()
    saved = here.find("latest")
    here.close()
    here.close()
    return saved


def load_latest(folder):
    here = checkpoints(folder)
    saved = here.find("latest")
    into = {
        name: torch.zeros_like(tensor)
        for name, tensor in tensors(0).items()
        if name.startswith("model/")
    }
    others = here.load(saved, into)
    here.close()
    return saved.step, into, others


def test_a_checkpoint_loads_at_any_world_size(ranks, tmp_path):
    for step, (writers, readers) in enumerate([(1, 3), (3, 2), (2, 4), (4, 1)], start=5):
        saved = ranks.run(save_and_find, tmp_path, step, world_size=writers)
        assert {(each.step, each.world_size) for each in saved} == {(step, writers)}
        for reader, (found, into, others) in enumerate(
            ranks.run(load_latest, tmp_path, world_size=readers)
        ):
            assert found == step
            expected = tensors(step)
            plain = expected.pop("optimizer/0/0.weight/step")
            assert same(into, expected)
            own = others.pop(f"rank/{reader}/rng", None)
            assert (own is None) == (reader >= writers), "each rank gets its own, if there is one"
            assert own is None or own.tolist() == [reader, step]
            assert others == {"optimizer/0/0.weight/step": plain, "session": {"step": step}}


def test_plain_dcp_reads_what_several_ranks_wrote(ranks, tmp_path):
    saved = ranks.run(save_and_find, tmp_path, 7, world_size=3)[0]
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors(7).items()}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(into, storage_reader=dcp.FileSystemReader(saved.path), no_dist=True)
    assert same(into, tensors(7))


def test_ranks_write_equal_shares(ranks, tmp_path):
    saved = ranks.run(save_wide, tmp_path, world_size=4)[0]
    sizes = [file.num_bytes for name, file in saved.files.items() if name.endswith(".distcp")]
    assert len(sizes) == 4
    assert max(sizes) < 1.05 * sum(sizes) / 4


def save_wide(folder):
    here = checkpoints(folder)
    here.save(
        {f"model/{i}": torch.zeros(1000 + 100 * i) for i in range(40)}, step=1, epoch=0, wait=True
    )
    return here.find("latest")


def copies_of_ranks(folder):
    """Bytes that this rank needs for its copies."""
    here = checkpoints(folder)
    here._staging.settle = lambda: None  # nothing is released
    here.save({f"model/{i}": torch.zeros(1000) for i in range(8)}, step=1, epoch=0)
    here.wait()
    return sum(tensor.nbytes for tensor in here._staging._buffers.values())


def resident_after_save(folder):
    """Bytes of this rank that are resident after a save, beyond those before, as a share of its copies."""
    here = checkpoints(folder)
    size = 80_000_000
    here.save({"model/0": torch.ones(1)}, step=0, epoch=0, wait=True)  # imports
    large = {f"model/{i}": torch.ones(size // 40) for i in range(20)}  # two ranks' shares
    before = resident_bytes()
    here.save(large, step=1, epoch=0)
    here.wait()
    here._staging.clear()  # the buffers stay for a minute, for the next save, and nothing else
    return (resident_bytes() - before) / size


def resident_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_rank_keeps_its_copies(ranks, tmp_path):
    assert max(ranks.run(resident_after_save, tmp_path, world_size=2)) < 0.3


def test_each_rank_copies_its_share_only(ranks, tmp_path):
    assert ranks.run(copies_of_ranks, tmp_path, world_size=2) == [16000, 16000]


# Sharded


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5, bias=False), nn.Linear(5, 1))


def sharded():
    """The net, sharded unevenly; the last layer has fewer rows than there are ranks. In a world of one plain."""
    model = net()
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def state_of(model):
    return {f"model/{name}": tensor for name, tensor in model.state_dict().items()}


def whole(state):
    return {
        name: getattr(tensor, "full_tensor", lambda tensor=tensor: tensor)()
        for name, tensor in state.items()
    }


def save_sharded(folder):
    here = checkpoints(folder)
    here.save({**state_of(sharded()), "plain": torch.arange(3)}, step=1, epoch=0)
    here.close()


def save_plain(folder):
    here = checkpoints(folder)
    here.save({**state_of(net()), "plain": torch.arange(3)}, step=1, epoch=0)
    here.close()


def load_sharded(folder):
    here, model = checkpoints(folder), sharded()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    state = state_of(model)
    others = here.load(here.find("latest"), state)
    return {name: tensor.tolist() for name, tensor in whole(state).items()}, others[
        "plain"
    ].tolist()


@pytest.mark.parametrize(
    ("save", "writers", "readers"), [(save_sharded, 2, 3), (save_sharded, 3, 1), (save_plain, 2, 3)]
)
def test_sharded_and_plain_are_the_same_checkpoint(ranks, tmp_path, save, writers, readers):
    ranks.run(save, tmp_path, world_size=writers)
    expected = {name: tensor.tolist() for name, tensor in state_of(net()).items()}
    assert (
        ranks.run(load_sharded, tmp_path, world_size=readers) == [(expected, [0, 1, 2])] * readers
    )


# What changes after save returns


def train_on(folder):
    here, state = checkpoints(folder), tensors(3)
    for step in (1, 2, 3):
        for tensor in state.values():
            tensor.fill_(step)
        here.save({**state, "session": {"step": step}}, step=step, epoch=0, keep_last=3)
        for tensor in state.values():
            tensor.fill_(-1)
    into = {name: tensor for name, tensor in state.items() if name.startswith("model/")}
    found = []
    for step in (1, 2, 3):
        saved = here.find(f"0000{step}-step-{step}")
        others = here.load(saved, into)
        found.append(
            {tensor.max().item() for tensor in into.values()} | {others["session"]["step"]}
        )
    here.close()
    return found


def test_a_checkpoint_holds_what_was_when_save_was_called(ranks, tmp_path):
    assert ranks.run(train_on, tmp_path, world_size=2) == [[{1}, {2}, {3}]] * 2


# Failing together


class FullDisk:
    """A file on a disk that has space for a thousand bytes."""

    def __init__(self, file):
        self.file, self.num_bytes = file, 0

    def write(self, data):
        self.num_bytes += len(data)
        if self.num_bytes > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)

    def flush(self):
        self.file.flush()


def fill_the_disk(folder, wait):
    """A good save, one in which the last rank's disk is full, and one more when there is space again."""
    from paceline.train.checkpoint import write

    here = checkpoints(folder)
    here.save(tensors(1), step=1, epoch=0, wait=True)
    checked = write._Checked
    if rank() == dist.get_world_size() - 1:
        write._Checked = lambda file: checked(FullDisk(file))
    try:
        told = refused(lambda: (here.save(tensors(2), step=2, epoch=0, wait=wait), here.wait()))
    finally:
        write._Checked = checked
    here.wait()  # said once
    dist.barrier()
    left = names(folder)
    dist.barrier()
    here.save(tensors(3), step=3, epoch=0)
    here.close()
    dist.barrier()
    return told, left, names(folder)


@pytest.mark.parametrize("wait", [True, False])
def test_a_full_disk_on_one_rank_fails_the_save_of_all(ranks, tmp_path, wait):
    for told, left, after in ranks.run(fill_the_disk, tmp_path, wait, world_size=3):
        assert (told["name"], told["code"]) == ("disk-full", "ENV009")
        assert told["where"].startswith("rank 2 on ")
        assert any("needed by this rank" in line and "free: " in line for line in told["evidence"])
        assert told["seconds"] < 5
        assert left == ["00001-step-1"], "the earlier one stays, and nothing unfinished"
        assert after == ["00001-step-1", "00002-step-3"]


def unpicklable(folder):
    here = checkpoints(folder)
    state = {"model/x": torch.zeros(3), "user/it": (lambda: None) if rank() == 1 else None}
    state["rank/1/odd"] = (lambda: None) if rank() == 1 else 0
    return refused(lambda: here.save(state, step=1, epoch=0, wait=True))


def test_what_one_rank_cannot_pickle_fails_the_save_of_all(ranks, tmp_path):
    for told in ranks.run(unpicklable, tmp_path, world_size=2):
        assert told["name"] == "option-invalid"
        assert "cannot be saved" in told["what"]
        assert told["where"].startswith("rank 1 on")
    assert names(tmp_path) == []


def differing(folder):
    here = checkpoints(folder)
    state = {"model/x": torch.zeros(3 + rank()), **({"user/main": 1} if rank() == 0 else {})}
    return refused(lambda: here.save(state, step=1, epoch=0, wait=True))


def test_ranks_that_save_different_things_get_their_names(ranks, tmp_path):
    for told in ranks.run(differing, tmp_path, world_size=2):
        assert told["name"] == "collective-mismatch"
        assert told["evidence"] == [
            "model/x torch.float32 [3]: on rank 0 only",
            "model/x torch.float32 [4]: on rank 1 only",
            "user/main: on rank 0 only",
        ]
    assert names(tmp_path) == []


def save_elsewhere(folder):
    from paceline.train.checkpoint import checkpoints as module

    module._SEEN_S = 0.2
    own = Path(folder) / f"of-{rank() % 2}"
    here = checkpoints(own)
    told = refused(lambda: here.save(tensors(1), step=1, epoch=0, wait=True))
    dist.barrier()
    return told, names(own) if own.exists() else None


def test_folders_that_are_not_the_same_are_refused_before_anything_is_written(ranks, tmp_path):
    results = ranks.run(save_elsewhere, tmp_path, world_size=3)
    for told, _ in results:
        assert told["name"] == "run-folder-not-shared"
        assert [line.split(" on ")[0] for line in told["evidence"]] == ["rank 1"]
        assert "--run-dir" in told["fix"]
    assert [left for _, left in results] == [[], None, []]


def save_into_a_file(folder):
    return refused(lambda: checkpoints(folder).save(tensors(1), step=1, epoch=0, wait=True))


def test_a_folder_that_cannot_be_made_is_reported_on_all_ranks(ranks, tmp_path):
    (tmp_path / "file").write_text("")
    for told in ranks.run(save_into_a_file, tmp_path / "file" / "checkpoints", world_size=2):
        assert told["name"] == "folder-not-writable"
        assert str(tmp_path / "file") in told["evidence"][0]


def load_into_other(folder):
    """One rank's model is another one: none may be overwritten."""
    here, into = (
        checkpoints(folder),
        {name: torch.zeros_like(tensor) for name, tensor in tensors(1).items()},
    )
    if rank() == 1:
        into["model/0.weight"] = torch.zeros(2, 5)
        del into["model/1.weight"]
        into["model/new"] = torch.zeros(1)
    told = refused(lambda: here.load(here.find("latest"), into))
    return told, sum(tensor.abs().sum().item() for tensor in into.values())


def test_a_checkpoint_of_another_model_overwrites_nothing_anywhere(ranks, tmp_path):
    ranks.run(save_and_find, tmp_path, 1, world_size=1)
    for told, total in ranks.run(load_into_other, tmp_path, world_size=2):
        assert told["name"] == "checkpoint-other-model"
        assert told["evidence"] == [
            "model/0.weight is [2, 5] here and [3, 5] in the checkpoint",
            "model/new [1] is not in the checkpoint",
            "model/1.weight [11, 5] is in the checkpoint only",
        ]
        assert total == 0


def load_anyhow(folder):
    here, into = (
        checkpoints(folder),
        {name: torch.zeros_like(tensor) for name, tensor in tensors(1).items()},
    )
    told = refused(lambda: here.load(here.find("latest"), into))
    return told, sum(tensor.abs().sum().item() for tensor in into.values())


def test_a_damaged_file_is_named_on_all_ranks_and_nothing_is_overwritten(ranks, tmp_path):
    saved = ranks.run(save_and_find, tmp_path, 1, world_size=3)[0]
    file = saved.path / "__2_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for told, total in ranks.run(load_anyhow, tmp_path, world_size=2):
        assert told["name"] == "checkpoint-damaged"
        assert [line.split()[0] for line in told["evidence"]] == ["__2_0.distcp"]
        assert total == 0


def test_what_is_in_the_folder_is_what_the_manifest_says(ranks, tmp_path):
    saved = ranks.run(save_and_find, tmp_path, 1, world_size=3)[0]
    told = json.loads((saved.path / "manifest.json").read_text())
    assert {name: file["bytes"] for name, file in told["files"].items()} == {
        path.name: path.stat().st_size
        for path in saved.path.iterdir()
        if path.name != "manifest.json"
    }
    assert told["world_size"] == 3


# The end of a script

LAST_WORDS = """
import pathlib, sys, torch
from paceline.rundir import manifest
from paceline.train.checkpoint import Checkpoints
from paceline.world import World
here = Checkpoints(pathlib.Path(sys.argv[1]), world=World(), device=torch.device("cpu"))
here.save({f"model/{n}": torch.ones(500_000) for n in range(20)}, step=1, epoch=0)
"""


def test_a_script_that_ends_leaves_its_last_checkpoint_committed(tmp_path):
    words = [
        sys.executable,
        "-W",
        "ignore:TypedStorage is deprecated",
        "-c",
        LAST_WORDS,
        str(tmp_path),
    ]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert verify(tmp_path / "00001-step-1").num_bytes > 40_000_000


# Kills


def save_forever(folder, report):
    """Save and save again; tell each step that was committed."""
    here = checkpoints(folder)
    saved = here.find("latest")
    step = saved.step if saved else 0
    while True:
        step += 1
        state = {f"model/{n}": torch.full((30_000 + n,), float(step)) for n in range(8)}
        here.save({**state, "session": step}, step=step, epoch=0)
        here.wait()
        os.write(report, step.to_bytes(4, "little"))


def fork_savers(folder, meeting, world_size):
    """Start ranks that save; return their ids and a file that tells what they have committed."""
    told, report = os.pipe()
    pids = []
    for number in range(world_size):
        pids.append(os.fork())
        if pids[-1] == 0:
            os.close(told)
            if world_size > 1:
                store = dist.FileStore(meeting, world_size)
                dist.init_process_group(
                    "gloo",
                    store=store,
                    rank=number,
                    world_size=world_size,
                    timeout=timedelta(seconds=20),
                )
            try:
                save_forever(folder, report if number == 0 else os.open(os.devnull, os.O_WRONLY))
            except BaseException:  # a rank whose peer was killed
                os._exit(1)
    os.close(report)
    return pids, told


def kill_savers(pids, told, random):
    """Kill them at a random moment after a first commit; return the last step that was told."""
    first = os.read(told, 4)
    assert len(first) == 4, "the savers ended by themselves"
    time.sleep(random.uniform(0, 0.06))
    for pid in random.sample(pids, len(pids)):
        os.kill(pid, signal.SIGKILL)
        time.sleep(random.choice((0, 0.005)))
    for pid in pids:
        os.waitpid(pid, 0)
    rest = first
    while part := os.read(told, 4096):
        rest += part
    os.close(told)
    return int.from_bytes(rest[-4:], "little")


def kill_and_look(folder, num_kills, world_size):
    """Kill savers again and again; return what was found each time: told, latest, newest, unfinished, loaded."""
    random, found = Random(world_size), []
    for number in range(num_kills):
        pids, told = fork_savers(folder, f"{folder}-store-{number}", world_size)
        last_told = kill_savers(pids, told, random)
        here = checkpoints(folder)
        saved = here.find("latest")
        into = {f"model/{n}": torch.zeros(30_000 + n) for n in range(8)}
        others = here.load(saved, into)
        steps = {others["session"]} | {
            value for tensor in into.values() for value in tensor.unique().tolist()
        }
        serials = {
            parsed: name
            for name in os.listdir(folder)
            if (parsed := manifest.parse_committed(name))
        }
        unfinished = sum(name.startswith(".") for name in os.listdir(folder))
        found.append((last_told, saved.step, max(serials)[1], unfinished, sorted(steps)))
        for name in os.listdir(folder):
            if manifest.parse_committed(name):
                verify(Path(folder) / name)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("num_kills", "world_size"), [(50, 1), (50, 2)])
def test_a_kill_at_any_moment_leaves_the_newest_committed_one_whole(
    tmp_path, num_kills, world_size
):
    program = (
        "import sys, json, importlib.util as u\n"
        "spec = u.spec_from_file_location('kills', sys.argv[1]); kills = u.module_from_spec(spec)\n"
        "sys.modules['kills'] = kills; spec.loader.exec_module(kills)\n"
        "import torch; torch.set_num_threads(1)\n"
        "print(json.dumps(kills.kill_and_look(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))\n"
    )
    words = [
        sys.executable,
        "-c",
        program,
        __file__,
        str(tmp_path / "c"),
        str(num_kills),
        str(world_size),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True, text=True)
    try:
        out, _ = process.communicate(timeout=280)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0
    found = json.loads(out)
    assert len(found) == num_kills
    before = 0
    for told, latest, newest, _, steps in found:
        assert latest == newest
        assert steps == [latest], "all values are of one step, and of the one it says"
        assert told <= latest <= told + 1, "what was committed is not lost"
        assert latest > before
        before = latest
    interrupted = sum(unfinished > 0 for *_, unfinished, _ in found)
    assert interrupted > num_kills // 5, "most kills have to fall into a save"
    assert max(unfinished for *_, unfinished, _ in found) <= 3, (
        "what dead ones left is removed by the next"
    )

"""Checkpoints in a world of one: no process group, one folder."""

import errno
import os
import resource
import socket
import sys
import threading
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from paceline.errors import PacelineError, RunError, SetupError, UsageError
from paceline.rundir import committed, manifest
from paceline.rundir.manifest import TensorInfo
from paceline.train.checkpoint import Checkpoints, folder, read, resolve, staging, write
from paceline.train.checkpoint.checkpoints import Checkpoints as Same
from paceline.world import World
from refusals import refusal

CPU = torch.device("cpu")


@pytest.fixture
def here(tmp_path):
    made = Checkpoints(tmp_path / "run" / "checkpoints", world=World(), device=CPU)
    yield made
    made.close()
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("paceline-check")
    ]


@pytest.fixture
def place(tmp_path):
    return tmp_path / "run" / "checkpoints"


def state(step):
    return {
        "model/w": torch.full((5, 3), float(step)),
        "model/b": torch.zeros(0),
        "session": {"step": step},
    }


def save(here, step, **options):
    here.save(state(step), step=step, epoch=step // 10, wait=True, **options)


def load(here, which="latest"):
    into = {
        name: torch.full_like(value, -1)
        for name, value in state(0).items()
        if name.startswith("model/")
    }
    others = here.load(here.find(which), into)
    assert set(into["model/w"].flatten().tolist()) == {others["session"]["step"]}
    return others["session"]["step"]


def names(place):
    return sorted(path.name for path in place.iterdir())


def test_nothing_happens_before_the_first_save(here, place):
    assert here.find("latest") is None
    assert here.find("best") is None
    assert not place.exists()


def test_the_latest_is_the_one_committed_last_even_with_fewer_steps(here, place):
    for step in (30, 40, 7):
        save(here, step)
    assert names(place) == ["00002-step-40", "00003-step-7"]
    assert load(here) == 7
    save(here, 8)
    assert names(place) == ["00003-step-7", "00004-step-8"]


@pytest.mark.parametrize(("mode", "kept", "best"), [("max", [2, 4, 5], 2), ("min", [1, 4, 5], 1)])
def test_the_last_and_the_best_are_kept(here, place, mode, kept, best):
    for step, metric in enumerate([0.1, 0.9, 0.5, None, float("nan")], start=1):
        save(here, step, metric=metric, mode=mode)
    assert [manifest.parse_committed(name)[0] for name in names(place)] == kept
    assert load(here, "best") == best
    assert load(here, "latest") == 5


def test_bests_of_both_directions_are_kept_and_not_compared(here, place):
    save(here, 1, metric=0.9)
    for step, loss in enumerate([2.5, 2.0, 3.0, 4.0], start=2):
        save(here, step, metric=loss, mode="min", keep_last=1)
        if loss == 3.0:
            (place / names(place)[-1] / "keep").touch()  # by the user
    save(here, 6, keep_last=1)  # without a metric, in the direction of whoever names none
    assert [manifest.parse_committed(name)[0] for name in names(place)] == [1, 3, 4, 6]
    assert load(here, "best") == 3


def test_a_checkpoint_in_which_a_user_has_put_a_file_stays_and_is_said_once(here, place, capfd):
    save(here, 1, keep_last=1)
    (place / names(place)[0] / "notes.txt").write_text("mine")
    for step in (2, 3):
        save(here, step, keep_last=1)
    assert len(names(place)) == 2
    said = capfd.readouterr().err
    assert said.count("notes.txt is not a file of paceline") == 1, said


def test_trainings_that_begin_with_one_checkpoint_of_another_folder_are_apart(
    here, place, tmp_path
):
    save(here, 5)
    began = here.find("latest")
    into = {name: value for name, value in state(0).items() if name.startswith("model/")}
    tuned = tmp_path / "tuned"
    for metric in (0.9, 0.1):
        tuning = Checkpoints(tuned, world=World(), device=CPU)
        tuning.load(tuning.find(place), into)
        save(tuning, 1, metric=metric, keep_last=1, keep_best=0)
    assert names(tuned) == ["00001-step-1", "00002-step-1"]
    assert tuning.find("best").metric == 0.1
    going_on = Checkpoints(place.parent / "." / "checkpoints", world=World(), device=CPU)
    going_on.load(going_on.find("latest"), into)
    save(going_on, 6, keep_last=1, keep_best=0)
    assert not began.path.exists(), "in its own folder it is one training"


def test_a_checkpoint_tells_what_it_is(here):
    here.save(
        {**state(3), "rank/0/rng": torch.tensor([1])},
        step=3,
        epoch=2,
        metric=0.5,
        mode="min",
        wait=True,
    )
    saved = here.find("latest")
    assert (saved.step, saved.epoch, saved.metric, saved.mode, saved.world_size) == (
        3,
        2,
        0.5,
        "min",
        1,
    )
    assert saved.tensors == {
        "model/w": TensorInfo((5, 3), "float32"),
        "model/b": TensorInfo((0,), "float32"),
        "rank/0/rng": TensorInfo((1,), "int64"),
    }
    assert saved.objects == {"session"}


def test_values_and_types_come_back(here):
    values = {
        "a": torch.arange(6).reshape(2, 3).t(),  # not contiguous
        "b": torch.tensor(True),
        "c": torch.randn(3, dtype=torch.complex64),
        "d": torch.randn(4).bfloat16(),
        "e": torch.randn(10)[3:5],  # a part of a larger one
        "f": torch.nn.Parameter(torch.randn(2)),
    }
    for wait in (True, False):
        here.save(values, step=1, epoch=0, wait=wait)
        found = here.load(here.find("latest"), {})
        assert list(found) == list(values)
        for name, value in values.items():
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)
    saved = here.find("latest")
    assert sum(file.num_bytes for file in saved.files.values()) < 30_000, (
        "parts are saved and not what they are of"
    )


def test_a_loaded_tensor_keeps_its_own_type_and_place(here):
    save(here, 3)
    weight = torch.zeros(3, 5, dtype=torch.float64).t().requires_grad_()
    pointer = weight.data_ptr()
    here.load(here.find("latest"), {"model/w": weight, "model/b": torch.zeros(0)})
    assert weight.data_ptr() == pointer
    assert weight.requires_grad
    assert weight.tolist() == [[3.0] * 3] * 5


def test_a_save_holds_what_was_when_it_was_called(here):
    changing, told = state(1), {"step": 1}
    here.save({**changing, "session": told}, step=1, epoch=0)
    changing["model/w"].fill_(-5)
    told["step"] = -5
    here.wait()
    assert load(here) == 1


def test_buffers_are_used_again_while_saves_are_near(here, monkeypatch):
    monkeypatch.setattr(staging, "choose_hold_s", lambda **_: 60.0)
    here.save(state(1), step=1, epoch=0)
    here.wait()
    before = {name: tensor.data_ptr() for name, tensor in here._staging._buffers.items()}
    here.save(state(2), step=2, epoch=0)
    here.wait()
    assert {name: tensor.data_ptr() for name, tensor in here._staging._buffers.items()} == before
    here.save({"model/w": torch.ones(2)}, step=3, epoch=0)
    here.wait()
    assert {name: tuple(tensor.shape) for name, tensor in here._staging._buffers.items()} == {
        "model/w": (2,)
    }
    here.close()
    assert here._staging._buffers == {}


def test_buffers_are_released_when_the_next_save_is_overdue(here, monkeypatch):
    monkeypatch.setattr(staging.processes, "available_bytes", lambda: 10**9)
    for step in (1, 2):
        here.save(state(step), step=step, epoch=0)
        here.wait()
    deadline = time.monotonic() + 10
    while here._staging._buffers and time.monotonic() < deadline:
        time.sleep(0.02)
    assert here._staging._buffers == {}
    here.save(state(3), step=3, epoch=0)
    assert load(here) == 3


@pytest.mark.parametrize(
    ("num_bytes", "interval_s", "available_bytes", "hold_s"),
    [
        (100, None, 10_000, 60),
        (100, None, 399, 0),
        (100, 0.5, 10_000, 1),
        (100, 60, 10_000, 120),
        (100, 61, 10_000, 0),
        (100, 10, 400, 20),
        (100, 10, 399, 0),
    ],
)
def test_how_long_buffers_stay(num_bytes, interval_s, available_bytes, hold_s):
    choice = staging.choose_hold_s(
        num_bytes=num_bytes, interval_s=interval_s, available_bytes=available_bytes
    )
    assert choice == hold_s


def faults():
    """Pages that the system had to give to this thread until now."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


LARGE = 64 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
@pytest.mark.parametrize("more", [-4096, 0, 1 << 20])
def test_the_first_save_finds_its_pages_cleared(here, monkeypatch, more):
    monkeypatch.setattr(staging.processes, "available_bytes", lambda: 100 * LARGE)
    large = {"model/w": torch.arange(LARGE // 4, dtype=torch.int32)}
    here.prepare(LARGE + more)  # what is prepared need not be what is saved
    here._staging._pages._thread.join()
    before = faults()
    copies, _ = here._staging.copy(large)
    least_without = LARGE // (2 << 20)  # were all pages huge ones
    assert faults() - before < least_without
    assert torch.equal(copies["model/w"], large["model/w"])
    here.close()


def test_a_save_does_not_wait_until_all_pages_are_cleared(here, monkeypatch):
    monkeypatch.setattr(staging.processes, "available_bytes", lambda: 100 * LARGE)
    monkeypatch.setattr(staging, "_CHUNK_BYTES", 1 << 20)
    here.prepare(4 * LARGE)
    here.save(state(4), step=1, epoch=0)
    assert load(here) == 4


def test_pages_are_released_without_a_save(here, monkeypatch):
    monkeypatch.setattr(staging.processes, "available_bytes", lambda: 100 * LARGE)
    monkeypatch.setattr(staging, "_NEAR_S", 0.05)
    here.prepare(LARGE)
    here._staging._release.join(10)
    assert here._staging._pages is None
    here.save(state(2), step=1, epoch=0)
    assert load(here) == 2


@pytest.mark.parametrize("content", [{"model/w": torch.ones(2)}, {"session": 1}])
@pytest.mark.parametrize("wait", [True, False])
def test_no_pages_are_left_after_a_save_that_copies_nothing(here, monkeypatch, content, wait):
    monkeypatch.setattr(staging.processes, "available_bytes", lambda: 100 * LARGE)
    here.prepare(LARGE)
    here.save(content, step=1, epoch=0, wait=wait)
    here.wait()
    assert here._staging._pages is None


@pytest.mark.parametrize(("num_bytes", "available"), [(1000, 10**12), (LARGE, 4 * LARGE)])
def test_little_and_scarce_memory_is_not_prepared(here, monkeypatch, num_bytes, available):
    monkeypatch.setattr(staging.processes, "available_bytes", lambda: available)
    here.prepare(num_bytes)
    assert here._staging._pages is None


def resident_bytes():
    """Memory of this process that is its own and resident."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_copy_is_not_resident_after_its_commit(here, monkeypatch):
    size = 160_000_000
    large = {f"model/{number}": torch.ones(size // 80) for number in range(20)}
    here.save({"model/0": torch.ones(1)}, step=0, epoch=0, wait=True)  # imports
    gate, write_one = threading.Event(), write.write

    def write_later(*args, **options):
        gate.wait(20)
        write_one(*args, **options)

    monkeypatch.setattr(write, "write", write_later)
    monkeypatch.setattr(
        staging.processes, "available_bytes", lambda: 2 * size
    )  # too little to keep it
    before = resident_bytes()
    here.save(large, step=1, epoch=0)
    assert resident_bytes() - before > 0.8 * size
    gate.set()
    here.wait()
    assert resident_bytes() - before < 0.3 * size
    into = {name: torch.zeros_like(tensor) for name, tensor in large.items()}
    here.load(here.find("latest"), into)
    assert torch.equal(into["model/7"], large["model/7"])


def test_one_save_is_in_flight_at_most(here, place, monkeypatch):
    gate, entered = threading.Event(), []
    write_one = write.write

    def slow(*args, **options):
        entered.append(len(names(place)))
        gate.wait(20)
        write_one(*args, **options)

    monkeypatch.setattr(write, "write", slow)
    save_it = threading.Thread(
        target=lambda: [here.save(state(step), step=step, epoch=0) for step in (1, 2)]
    )
    save_it.start()
    save_it.join(0.3)
    assert save_it.is_alive(), "the second waits for the first"
    assert entered == [0]
    gate.set()
    save_it.join(20)
    here.wait()
    assert entered == [0, 1]


def test_a_save_of_another_session_is_waited_for_before_the_latest_is_sought(
    here, place, monkeypatch
):
    write_one = write.write
    monkeypatch.setattr(
        write, "write", lambda *args, **options: time.sleep(0.3) or write_one(*args, **options)
    )
    here.save(state(1), step=1, epoch=0)
    assert load(Checkpoints(place, world=World(), device=CPU)) == 1


# What goes wrong


class Full:
    """A file on a disk without space."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self):
        self.file.flush()


@pytest.fixture
def full_disk(monkeypatch):
    checked = write._Checked
    monkeypatch.setattr(write, "_Checked", lambda file: checked(Full(file)))


@pytest.mark.parametrize("raiser", ["wait", "save", "find", "close"])
def test_what_goes_wrong_in_the_background_is_said_once_by_what_is_called_next(
    here, place, full_disk, monkeypatch, raiser
):
    here.save(state(1), step=1, epoch=0)
    calls = {
        "wait": here.wait,
        "save": lambda: save(here, 2),
        "find": lambda: here.find("latest"),
        "close": here.close,
    }
    finding = refusal(RunError, calls[raiser])
    assert finding.name == "disk-full"
    assert str(place) in finding.where
    assert "there is no earlier one" in finding.what
    assert names(place) == []
    monkeypatch.undo()
    here.wait()
    save(here, 3)
    assert load(here) == 3


def test_the_disk_has_to_be_full_for_that_finding(here, place, monkeypatch):
    save(here, 1)
    monkeypatch.setattr(
        os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error"))
    )
    finding = refusal(SetupError, save, here, 2)
    assert finding.name == "folder-not-writable"
    assert "Input/output error" in finding.evidence[0]
    assert names(place) == ["00001-step-1"]


def test_a_kill_between_the_steps_of_a_commit_leaves_nothing_visible(here, place, monkeypatch):
    save(here, 1)
    for place_of, function in ((folder.owned, "write_whole"), (folder, "sync_folder")):
        monkeypatch.setattr(folder, "remove", lambda path: None)  # a killed process cleans nothing
        monkeypatch.setattr(
            place_of, function, lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            save(here, 2)
        monkeypatch.undo()
        assert load(here) == 1
    left = [name for name in names(place) if name.startswith(".")]
    assert len(left) == 2
    assert refusal(UsageError, here.find, place / left[0]).name == "checkpoint-unfinished"


def test_everything_is_on_the_disk_before_the_rename(here, monkeypatch):
    log, sync, rename, replace = [], os.fsync, os.rename, os.replace

    def synced(handle):
        log.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    path_type = type(here._folder)
    monkeypatch.setattr(
        path_type,
        "rename",
        lambda self, to: log.append(f"-> {os.path.basename(to)}") or rename(self, to),
    )
    monkeypatch.setattr(
        os,
        "replace",
        lambda old, to, **folders: log.append(f"-> {to.name}") or replace(old, to, **folders),
    )
    save(here, 1)
    kinds = [word if not word.startswith(".00001") else "the folder" for word in log]
    kinds = [".manifest" if word.startswith(".manifest.json.") else word for word in kinds]
    assert kinds == [
        "__0_0.distcp",
        ".metadata.tmp",
        "-> .metadata",
        ".manifest",
        "-> manifest.json",
        "the folder",
        "-> 00001-step-1",
        "checkpoints",
    ]


def test_what_dead_runs_left_is_removed_at_the_first_save(here, place):
    place.mkdir(parents=True)
    host = socket.gethostname()
    dead = manifest.temporary_name(1, 5, token="ab", pid=2**22 + 5, host=host)
    alive = manifest.temporary_name(1, 5, token="cd", pid=os.getppid(), host=host)
    elsewhere = manifest.temporary_name(1, 5, token="ef", pid=1, host="another")
    for name in (dead, alive, elsewhere, ".trash-00001-step-1.ab", ".snapshot"):
        (place / name).mkdir()
        (place / name / "__0_0.distcp").write_text("x")
    save(here, 1)
    assert names(place) == sorted([alive, elsewhere, ".snapshot", "00001-step-1"])


def test_what_cannot_be_deleted_is_no_failure_of_the_save(here, place, monkeypatch):
    def refused(*_, **__):
        raise PermissionError

    save(here, 1)
    monkeypatch.setattr(os, "rmdir", refused)
    save(here, 2, keep_last=1)
    assert [name.split("-")[0] for name in names(place)] == [".trash", "00002"]
    assert load(here) == 2


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"mode": "best"}, "mode"),
        ({"keep_last": 0}, "keep_last"),
        ({"keep_last": 1.5}, "keep_last"),
        ({"keep_best": -1}, "keep_best"),
        ({"metric": "good"}, "metric"),
        ({"metric": torch.zeros(2)}, "metric"),
    ],
)
def test_options_without_sense_are_refused(here, place, options, where):
    finding = refusal(UsageError, save, here, 1, **options)
    assert (finding.name, where in finding.where) == ("option-invalid", True)
    assert not place.exists()


def test_an_object_that_cannot_be_pickled_is_named(here):
    with pytest.raises(UsageError) as error:
        here.save({**state(1), "user/clock": lambda: 0}, step=1, epoch=0, wait=True)
    assert "user/clock" in error.value.finding.what


# Finding


def test_a_path_means_a_checkpoint_or_the_latest_of_a_folder(here, place, monkeypatch, tmp_path):
    for step in (1, 2):
        save(here, step)
    for which in (place / "00002-step-2", place, place.parent, str(place), "00002-step-2"):
        assert here.find(which).step == 2
    assert here.find(place / "00001-step-1").step == 1
    assert here.find("00001-step-1").step == 1
    monkeypatch.chdir(tmp_path)
    assert here.find("run").step == 2


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda place: place / "nowhere", "checkpoint-missing"),
        (lambda place: place.parent.parent, "checkpoint-missing"),
        (lambda place: place / "00009-step-9", "checkpoint-unfinished"),
        (lambda place: place / "parts", "checkpoint-unfinished"),
    ],
)
def test_a_path_without_a_checkpoint_is_refused(here, place, make, name):
    save(here, 1)
    (place / "00009-step-9").mkdir()
    (place / "parts").mkdir()
    (place / "parts" / "__0_0.distcp").write_text("")
    finding = refusal(UsageError, here.find, make(place))
    assert finding.name == name
    assert finding.fix


def test_a_folder_without_a_manifest_is_not_the_latest(here, place):
    save(here, 1)
    (place / "00002-step-2").mkdir()
    (place / "00002-step-2" / "file").write_text("")
    assert here.find("latest").step == 1
    save(here, 2)
    assert names(place)[-1] == "00003-step-2"
    assert load(here) == 2


def test_the_best_of_checkpoints_without_a_metric_is_refused(here):
    save(here, 1)
    finding = refusal(UsageError, here.find, "best")
    assert finding.name == "checkpoint-missing"
    assert "metric" in finding.what


# Damage


def damage(path, how):
    if how == "flipped":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-2])
    elif how == "missing":
        path.unlink()


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "manifest.json"])
def test_damage_is_named_and_nothing_is_overwritten(here, place, name, how):
    save(here, 1)
    saved = here.find("latest")
    into = {"model/w": torch.full((5, 3), -1.0), "model/b": torch.zeros(0)}
    path = place / "00001-step-1"
    damage(path / name, how)
    if name == "manifest.json" and how == "missing":
        with pytest.raises(UsageError, match="checkpoint-unfinished"):
            here.find(path)
        return
    if name == "manifest.json" and how == "flipped":
        (path / name).write_text((path / name).read_text().replace("crc32", "crc33"))
    with pytest.raises(RunError) as error:
        here.load(here.find(path) if name != "__0_0.distcp" else saved, into)
    assert error.value.finding.name == "checkpoint-damaged"
    assert error.value.finding.evidence[0].startswith(name)
    assert into["model/w"].max() == -1


def test_an_old_manifest_that_is_damaged_stops_neither_saving_nor_the_latest(here, place):
    save(here, 1, metric=0.5)
    (place / "00001-step-1" / "manifest.json").write_text("{")
    for step in (2, 3, 4):
        save(here, step, keep_last=1, keep_best=0)
    assert names(place) == ["00001-step-1", "00004-step-4"], "what cannot be judged is not deleted"
    assert load(here) == 4
    with pytest.raises(RunError, match="checkpoint-damaged"):
        here.find("best")


def test_a_damaged_index_is_not_unpickled(here, place, monkeypatch):
    save(here, 1)
    damage(place / "00001-step-1" / ".metadata", "flipped")
    monkeypatch.setattr(read.unpickling, "IndexReader", lambda path: pytest.fail("opened"))
    with pytest.raises(RunError):
        here.find("latest")


def test_another_model_is_refused_before_anything_is_overwritten(here):
    save(here, 1)
    into = {"model/w": torch.zeros(5, 3), "model/b": torch.zeros(1)}
    finding = refusal(UsageError, here.load, here.find("latest"), into)
    assert finding.name == "checkpoint-other-model"
    assert finding.evidence == ("model/b is [1] here and [0] in the checkpoint",)
    assert into["model/w"].abs().sum() == 0


def test_a_folder_that_is_gone_is_not_shared(here):
    save(here, 1)
    saved = replace(here.find("latest"), path=here._folder / "gone")
    with pytest.raises(SetupError, match="run-folder-not-shared"):
        here.load(
            saved, {name: value for name, value in state(0).items() if name.startswith("model/")}
        )


def test_checksums_are_of_what_was_written(here, place):
    save(here, 1)
    path = place / "00001-step-1"
    told = committed.read_manifest(path)
    assert set(told.files) == {".metadata", "__0_0.distcp"}
    assert {name: folder.checksum(path / name) for name in told.files} == dict(told.files)


def test_large_writes_are_summed_as_small_ones_are(here, place, monkeypatch):
    monkeypatch.setattr(write, "_LARGE_BYTES", 100)
    monkeypatch.setattr(write, "_WRITEBACK_BYTES", 1000)
    here.save({f"model/{n}": torch.randn(100 + n) for n in range(20)}, step=1, epoch=0, wait=True)
    told = committed.read_manifest(resolve(place))
    assert {name: folder.checksum(resolve(place) / name) for name in told.files} == dict(told.files)


def test_the_users_own_torch_save_keeps_its_checksums(here, monkeypatch):
    inside = []
    writer = write.FileSystemWriter.write_data
    monkeypatch.setattr(
        write.FileSystemWriter,
        "write_data",
        lambda *args: inside.append(torch.serialization.get_crc32_options()) or writer(*args),
    )
    save(here, 1)
    assert inside == [False]
    assert torch.serialization.get_crc32_options() is True


def test_the_door_gives_the_class():
    assert Checkpoints is Same
    assert issubclass(RunError, PacelineError)
    with pytest.raises(AttributeError, match="nothing_here"):
        import_module("paceline.train.checkpoint").nothing_here  # noqa: B018


def test_buffers_are_released_while_the_interpreter_ends(monkeypatch):
    """Python 3.12 and newer refuse a new thread then; the save before the end must not fail by it."""

    def refuse(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    monkeypatch.setattr(staging, "choose_hold_s", lambda **_: 5.0)
    buffers = staging.Staging(torch.device("cpu"))
    buffers.copy({"weight": torch.ones(4)})
    buffers.settle()
    assert buffers._buffers == {}

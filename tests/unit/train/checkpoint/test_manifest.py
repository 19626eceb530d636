"""What a checkpoint says of itself, and what follows from it: tables of cases."""

import itertools
import json
from pathlib import Path

import pytest

from paceline.rundir import manifest
from paceline.rundir.manifest import Committed, FileInfo, Manifest, Saved, TensorInfo
from paceline.train.checkpoint import division


def manifest_of(*, step=1, metric=None, mode="max", files=None, run=""):
    return Manifest(step, 0, metric, mode, 1, 5, "2.13.0", files or {}, run)


def committed(*metrics, mode="max"):
    """Checkpoints 1, 2, 3, ... with these metrics."""
    return [
        Committed(Path(f"/c/{n}"), n, manifest_of(metric=each, mode=mode))
        for n, each in enumerate(metrics, start=1)
    ]


def serials(checkpoints):
    return [each.serial for each in checkpoints]


# Names


def test_a_committed_name_tells_serial_and_step():
    assert manifest.committed_name(3, 1200) == "00003-step-1200"
    assert manifest.parse_committed("00003-step-1200") == (3, 1200)
    assert manifest.parse_committed(manifest.committed_name(123456, 0)) == (123456, 0)


@pytest.mark.parametrize(
    "name",
    [
        ".00003-step-12.ab12-7-host",
        "00003-step-12.ab",
        "3-step-12",
        "00003-step-",
        "x00003-step-1",
        "plan.json",
    ],
)
def test_other_names_are_not_committed(name):
    assert manifest.parse_committed(name) is None


@pytest.mark.parametrize(
    ("pid", "host", "age_s", "stale"),
    [
        (7, "here", 1, False),  # alive
        (8, "here", 1, True),  # dead
        (8, "there", 1, False),  # on another machine: it cannot be asked
        (8, "there", 601, True),
        (7, "here", 601, True),  # the number has gone to another process, or it is stuck
        (7, "he-re.x-y", 1, False),
    ],
)
def test_an_unfinished_folder_is_stale_when_its_writer_is_gone(pid, host, age_s, stale):
    name = manifest.temporary_name(3, 12, token="ab12", pid=pid, host=host)
    here = host if host.startswith("he") else "here"
    assert manifest.is_temporary(name)
    assert manifest.is_stale(name, host=here, is_alive=lambda pid: pid == 7, age_s=age_s) is stale


def test_trash_is_always_stale_and_what_is_not_ours_never():
    def stale(name):
        return manifest.is_stale(name, host="here", is_alive=lambda pid: True, age_s=1e9)

    assert stale(manifest.trash_name("00001-step-1", token="ab"))
    assert not any(map(stale, (".nfs0001", ".probe-12", "00001-step-1", ".snapshot")))


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank/3/rng", 3), ("rank/12/a/b", 12), ("rank/x/rng", None), ("model/rank/3/a", None)],
)
def test_what_belongs_to_a_rank(name, rank):
    assert division.rank_of(name) == rank


# The file


def test_a_manifest_comes_back_as_it_was():
    files = {"__0_0.distcp": FileInfo(10, 123), ".metadata": FileInfo(2, 0)}
    before = Manifest(120, 3, 0.25, "min", 4, 99, "2.13.0", files)
    assert manifest.parse(manifest.dump(before)) == before
    assert json.loads(manifest.dump(before))["files"]["__0_0.distcp"] == {"bytes": 10, "crc32": 123}
    assert before.num_bytes == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"files": None}, "not a manifest"),
        ({"files": {"a": {}}}, "not a manifest"),
        ({"step": None}, "not a manifest"),
        ({"step": "x"}, "invalid literal"),
    ],
)
def test_what_is_not_a_manifest_is_refused(change, message):
    text = json.dumps(json.loads(manifest.dump(manifest_of())) | change)
    with pytest.raises(ValueError, match=message):
        manifest.parse(text)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"a"', "{}"])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ValueError):
        manifest.parse(text)


@pytest.mark.parametrize(
    ("metric", "kept"),
    [(None, None), (1, 1.0), (0, 0.0), (float("nan"), None), (float("inf"), None), (-2.5, -2.5)],
)
def test_a_metric_is_kept_if_it_is_finite(metric, kept):
    assert manifest.clean_metric(metric) == kept


# The best, and what to delete


@pytest.mark.parametrize(
    ("metrics", "mode", "count", "best"),
    [
        ((0.1, 0.9, 0.2), "max", 1, [2]),
        ((0.1, 0.9, 0.2), "min", 1, [1]),
        ((0.1, 0.9, 0.2), "max", 2, [2, 3]),
        ((0.1, 0.9, 0.2), "max", 9, [2, 3, 1]),
        ((0.5, 0.5, 0.1), "max", 1, [2]),  # the later of equals
        ((0.5, 0.5, 0.7), "min", 1, [2]),
        ((None, -3.0, None), "max", 1, [2]),
        ((None, 0.0, -1.0), "max", 1, [2]),  # zero is a metric
        ((None, None), "max", 1, []),
        ((0.1,), "max", 0, []),
        ((), "max", 1, []),
    ],
)
def test_the_best(metrics, mode, count, best):
    assert serials(manifest.choose_best(committed(*metrics), mode, count=count)) == best


@pytest.mark.parametrize(
    ("metrics", "keep_last", "keep_best", "mode", "doomed"),
    [
        ((None,) * 5, 2, 1, "max", [1, 2, 3]),
        ((None,) * 2, 2, 1, "max", []),
        ((None,) * 2, 5, 1, "max", []),
        ((0.9, 0.1, 0.2, 0.3), 2, 1, "max", [2]),
        ((0.9, 0.1, 0.2, 0.3), 2, 1, "min", [1]),
        ((0.9, 0.1, 0.2, 0.3), 1, 0, "max", [1, 2, 3]),
        (
            (0.9, 0.1, 0.2, 0.3),
            1,
            2,
            "max",
            [2, 3],
        ),  # the latest is one of the best: no other takes its place
        ((0.9, None, None, None), 1, 1, "max", [2, 3]),
        ((), 1, 1, "max", []),
    ],
)
def test_what_is_deleted(metrics, keep_last, keep_best, mode, doomed):
    checkpoints = committed(*metrics, mode=mode)[::-1]
    found = manifest.choose_doomed(checkpoints, run="", keep_last=keep_last, keep_best=keep_best)
    assert serials(found) == doomed


def test_the_best_is_one_of_those_judged_as_the_latest_that_has_a_metric():
    first, second = committed(0.1, 0.9)
    other = Committed(Path("/c/3"), 3, manifest_of(metric=0.5, mode="min"))
    blank = Committed(Path("/c/4"), 4, manifest_of(mode="max"))
    assert manifest.find_best([first, second]) is second
    assert manifest.find_best([blank, other, second, first]) is other, (
        "an accuracy of 0.1 is no loss of 0.1"
    )
    assert manifest.find_best([blank]) is None
    assert manifest.find_best([]) is None


def test_what_another_training_left_is_neither_deleted_nor_best():
    left = [Committed(Path(f"/c/{n}"), n, manifest_of(metric=0.9, run="old")) for n in (1, 2, 3)]
    own = [Committed(Path(f"/c/{n}"), n, manifest_of(metric=0.1 * n, run="new")) for n in (4, 5, 6)]
    found = manifest.choose_doomed(left + own, run="new", keep_last=1, keep_best=0)
    assert serials(found) == [4, 5]
    assert manifest.find_best(left + own) is own[-1]
    assert manifest.find_best([*left, Committed(Path("/c/7"), 7, manifest_of(run="new"))]) is None


# What fits


def saved(objects=(), files=None, **shapes):
    tensors = {
        name.replace("__", "/"): TensorInfo(shape, "float32") for name, shape in shapes.items()
    }
    return Saved(
        Path("/c/00001-step-1"), 1, 0, None, "max", 1, 5, tensors, frozenset(objects), files or {}
    )


@pytest.mark.parametrize(
    ("here", "lines"),
    [
        ({"model/a": (2, 3), "model/b": ()}, []),
        ({"model/a": (2, 3), "model/b": (), "optimizer/x": (4,)}, []),
        (
            {"model/a": (3, 2), "model/b": ()},
            ["model/a is [3, 2] here and [2, 3] in the checkpoint"],
        ),
        ({"model/a": (6,), "model/b": ()}, ["model/a is [6] here and [2, 3] in the checkpoint"]),
        ({"model/a": (2, 3)}, ["model/b [] is in the checkpoint only"]),
        (
            {"model/c": (1,), "model/b": ()},
            ["model/c [1] is not in the checkpoint", "model/a [2, 3] is in the checkpoint only"],
        ),
        (
            {"model/a": (2, 3), "model/b": (), "optimizer/y": (1,)},
            ["optimizer/y [1] is not in the checkpoint"],
        ),
        (
            {"model/a": (2, 3), "model/b": (), "model/extra": (1,)},
            ["model/extra [1] is not in the checkpoint"],
        ),
    ],
)
def test_a_checkpoint_is_compared_with_what_it_is_loaded_into(here, lines):
    checkpoint = saved(model__a=(2, 3), model__b=(), optimizer__x=(4,), objects=["model/extra"])
    assert (
        manifest.compare(
            checkpoint, {name: TensorInfo(shape, "float64") for name, shape in here.items()}
        )
        == lines
    )


def test_a_rank_loads_what_is_for_all_and_what_is_its_own():
    checkpoint = saved(
        model__a=(), rank__0__rng=(), rank__1__rng=(), objects=["session", "rank/1/x", "rank/10/x"]
    )
    assert division.names_for(checkpoint, 1) == ["model/a", "rank/1/rng", "rank/1/x", "session"]
    assert division.names_for(checkpoint, 7) == ["model/a", "session"]


@pytest.mark.parametrize(
    ("sizes", "num_ranks", "owners"),
    [
        ({"a": 10, "b": 6, "c": 5}, 2, {"a": 0, "b": 1, "c": 1}),
        ({"b": 1, "a": 1}, 2, {"a": 0, "b": 1}),
        ({"a": 1}, 3, {"a": 0}),
        ({}, 3, {}),
    ],
)
def test_shares_are_even(sizes, num_ranks, owners):
    assert division.share_out(sizes, num_ranks) == owners


def test_ranks_check_every_file_once():
    files = {f"{n}": FileInfo(n % 7, 0) for n in range(20)}
    parts = [division.share_files(files, rank, 3) for rank in range(3)]
    assert sorted(itertools.chain(*parts)) == sorted(files)
    assert max(map(len, parts)) < 10


def test_sizes_are_compared():
    files = {"a": FileInfo(1, 0), "b": FileInfo(2, 0), "c": FileInfo(3, 0)}
    assert manifest.check_sizes(files, {"a": 1, "b": 5, "c": None}) == [
        "b has 5 bytes instead of 2",
        "c is missing",
    ]


def test_differences_between_ranks_are_reported():
    assert division.differences([("a", "b"), ("a", "b")]) == []
    assert division.differences([("a", "b"), ("a",), ("a", "b", "c")]) == [
        "b: on ranks 0, 2 only",
        "c: on rank 2 only",
    ]

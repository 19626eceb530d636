"""What is said of ranks that have waited for long while nothing is proven."""

from dataclasses import replace

import pytest

from paceline.errors import Finding
from paceline.launch.monitor import waiting
from paceline.launch.monitor.position import Frame, Position


def standing(rank, host, file="train.py", line=40):
    return Position(
        rank=rank, host=host, frames=(Frame(file, line, "urlopen"),), idle_s=130.0, still=True
    )


def test_hosts_are_named_where_there_are_several():
    apart = waiting.picture([standing(0, "node-a"), standing(1, "node-b")])
    assert [line.split(" is in ")[0] for line in apart.notice.details] == [
        "rank 0 (node-a)",
        "rank 1 (node-b)",
    ]
    together = waiting.picture([standing(0, "node-a"), standing(1, "node-a")])
    assert [line.split(" is in ")[0] for line in together.notice.details] == ["rank 0", "rank 1"]


def waiting_in(rank, function, **more):
    frames = (
        Frame("train.py", 5, "<module>", user=True),
        Frame("/venv/torch/distributed/distributed_c10d.py", 9, function),
    )
    return Position(rank=rank, frames=frames, idle_s=130.0, **more)


def test_one_collective_is_called_the_same_only_where_it_is():
    flying = {"call": "all_reduce", "seq": 3, "group": "0", "flying": True}
    receiving = waiting.picture([waiting_in(rank, "recv", peer=1 - rank) for rank in range(2)])
    assert "have been waiting for each other for 130 s" in receiving.notice.what
    assert receiving.notice.details[0] == "rank 0: recv from rank 1, train.py:5"
    reducing = waiting.picture([waiting_in(rank, "all_reduce", **flying) for rank in range(2)])
    assert "in the same collective" in reducing.notice.what


def test_an_absent_rank_is_named_as_the_peer_of_those_that_wait_for_it():
    reducing = {"call": "all_reduce", "seq": 3, "flying": True}
    of_data = waiting_in(
        1, "all_reduce", group="1", group_name="mesh_dp", members=(1, 3), **reducing
    )
    of_model = waiting_in(
        2, "all_reduce", group="4", group_name="mesh_tp", members=(2, 3), **reducing
    )
    apart = waiting.picture([of_data, of_model, standing(3, "node-a")])
    expected = "ranks 1-2 have been waiting for rank 3"
    expected += " (data-parallel peer of rank 1, tensor-parallel peer of rank 2) for 130 s (hang?)"
    assert apart.notice.what.startswith(expected)
    elsewhere = waiting_in(0, "all_reduce", group="0", group_name="default_pg", **reducing)
    assert "peer" not in waiting.picture([elsewhere, standing(3, "node-a")]).notice.what


def test_what_the_start_has_found_out_is_in_the_notice_if_all_wait():
    closed = Finding("interface-not-routed", "node 1 is not reached", fix="open the ports")
    both = [waiting_in(rank, "all_reduce") for rank in range(2)]
    said = waiting.picture(both, unreached=closed).notice.details
    known = "known since the start: node 1 is not reached [NET017]"
    assert said[-2:] == (known, "fix: open the ports")
    absent = [both[0], standing(1, "node-a")]
    assert "not reached" not in str(waiting.picture(absent, unreached=closed))


CODE = (Frame("train.py", 5, "<module>", user=True),)
REDUCER = replace(waiting_in(0, "all_reduce"), idle_s=11.0)
STUCK = Position(rank=1, frames=CODE, idle_s=11.0, still=True, printed="its log shows OSError: x")


@pytest.mark.parametrize(
    "positions",
    [
        [replace(REDUCER, idle_s=9.0), STUCK],
        [REDUCER, replace(STUCK, idle_s=9.0)],
        [REDUCER, replace(STUCK, still=False)],
        [REDUCER, replace(STUCK, moving=True)],
        [REDUCER, replace(STUCK, printed="")],
        [REDUCER, STUCK, Position(rank=2, frames=CODE, idle_s=11.0)],  # perhaps it is this one
        [replace(STUCK, rank=0), STUCK],
        [replace(REDUCER, printed=STUCK.printed), replace(REDUCER, rank=1)],
    ],
)
def test_only_an_exception_of_an_idle_rank_that_others_wait_for_is_said_early(positions):
    said = waiting.after_exception([REDUCER, STUCK])
    assert said.notice.details[-1] == "in rank 1, its log shows OSError: x"
    assert waiting.after_exception(positions) is None

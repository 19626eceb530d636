"""What is said of ranks that have waited for long while nothing is proven."""

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

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

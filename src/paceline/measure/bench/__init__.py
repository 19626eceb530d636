"""``paceline bench``: the speed of a script on several numbers of ranks, and what holds it back.

request      what is measured, and whether this node can
rounds       starts the script again and again, collects its steps, and leaves out the warm-up
settings     what can be tried, and what each setting is worth
brake        what holds scaling back
table        the result as text
command      all of it, from the command line to the run folder; it tries the settings
"""

from paceline.measure.bench.command import bench
from paceline.measure.bench.request import (
    EXAMPLE,
    PER_RANK,
    BenchRequest,
    batch_unknown,
    check_division,
    no_effect,
    parse_worlds,
)

__all__ = [
    "EXAMPLE",
    "PER_RANK",
    "BenchRequest",
    "batch_unknown",
    "bench",
    "check_division",
    "no_effect",
    "parse_worlds",
]

"""Objects whose destructor is not safe are never freed."""

import subprocess
import sys

CODE = """
import sys
from paceline.machine.references import keep_until_exit

class Thing:
    def __del__(self):
        print("freed")

thing = Thing()
if sys.argv[1] == "kept":
    keep_until_exit(thing)
del thing
print("end")
"""


def lines(how):
    ended = subprocess.run(
        [sys.executable, "-c", CODE, how], capture_output=True, text=True, timeout=50, check=True
    )
    return ended.stdout.split()


def test_a_kept_object_is_not_freed_at_the_end_either():
    assert lines("freed") == ["freed", "end"]
    assert lines("kept") == ["end"]

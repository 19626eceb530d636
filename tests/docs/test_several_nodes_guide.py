"""docs/guides/several-nodes.md: its commands start a launcher on each of two hosts, literally but for the address."""

import shutil
import subprocess
from pathlib import Path

import pytest

from faults.hosts import hosts
from pages import blocks, replaced, surroundings

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "guides" / "several-nodes.md"
HEAD = "10.0.0.1"
FEWER = {"--nproc-per-node 8": "--nproc-per-node 1"}  # for a machine without eight GPUs

pytestmark = [pytest.mark.slow, pytest.mark.namespaces]


def pairs():
    """The commands of the first and of the second node; one that is for every node is both."""
    for block in blocks(GUIDE.read_text()):
        typed = [
            line for line in block.commands if line.startswith("paceline run") and HEAD in line
        ]
        if typed:
            yield pytest.param(typed[0], typed[-1], id=f"line {block.line}")


def test_there_are_five_pairs():
    assert len(list(pairs())) == 5


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("first", "second"), list(pairs()))
def test_its_commands_run_on_two_hosts(tmp_path, first, second):
    shutil.copy(HERE / "programs" / "train.py", tmp_path)
    environ = {**surroundings(), "OMP_NUM_THREADS": "1"}
    with hosts(2) as nodes:
        here = {**FEWER, HEAD: nodes[0].address}
        started = [
            subprocess.Popen(
                node.inside(["bash", "-c", f"exec {replaced(command, here)}"]),
                cwd=tmp_path,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for node, command in zip(nodes, (first, second), strict=True)
        ]
        try:
            printed = [process.communicate(timeout=150)[0] for process in started]
        finally:
            for process in started:
                process.terminate()  # of a launcher that has not ended: it ends its ranks
                process.wait()
        assert [process.returncode for process in started] == [0, 0], printed
    assert "2 nodes" in printed[0], printed

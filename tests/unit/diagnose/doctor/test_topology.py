"""The matrix of ``nvidia-smi topo -m`` as people paste it, judged as the machine itself."""

from __future__ import annotations

import pytest

from paceline.diagnose.doctor import examine_topology
from paceline.diagnose.doctor.collectors.topology import read_topology
from paceline.diagnose.explain import judge
from unit.diagnose.doctor.machines import found

# NVIDIA/nccl issue 1608, kubernetes issue 53497, a colored one with NICs, one of 2017.
PASTED = {
    "nvlink and sys": """
        GPU0    GPU1    GPU2    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV12    SYS     0-15,32-47      0               N/A
GPU1    NV12     X      SYS     0-15,32-47      0               N/A
GPU2    SYS     SYS      X      16-31,48-63     1               N/A
""",
    "no numa": "       GPU0    GPU1    mlx4_0  CPU Affinity\n"
    "GPU0     X      PIX     PHB     0-9,20-29\nGPU1    PIX      X      PHB     0-9,20-29\n"
    "mlx4_0  PHB     PHB      X \n",
    "colors": "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tSYS\tPXB\t32-47\t2\t\tN/A\nGPU1\tSYS\t X \tSYS\t64-79\t4\t\tN/A\n"
    "NIC0\tPXB\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n",
    "old": "GPU0  X  SOC\nGPU1  SOC  X\n",
    "sixteen": "".join(
        f"GPU{row}\t"
        + "\t".join(" X " if row == column else "NV6" for column in range(16))
        + "\tPIX\tSYS\t0-23,48-71\n"
        for row in range(16)
    ),
}
TWO = PASTED["colors"]


@pytest.mark.parametrize(
    ("name", "links", "nodes"),
    [
        ("nvlink and sys", ["NV12", "SYS", "SYS"], [0, 0, 1]),
        ("no numa", ["PIX"], [None, None]),
        ("colors", ["SYS"], [2, 4]),
        ("old", ["SYS"], [None, None]),
        ("sixteen", ["NV6"] * 120, [None] * 16),
    ],
)
@pytest.mark.parametrize("label", ["", "[rank0]: ", "0: "])
def test_a_pasted_matrix_is_read(name, links, nodes, label):
    text = "".join(label + line for line in PASTED[name].splitlines(keepends=True))
    facts = read_topology(text + text, {})
    assert [pair.link for pair in facts.pairs] == links
    assert [gpu.numa_node for gpu in facts.gpus] == nodes


@pytest.mark.parametrize(
    "text", ["GPU0\tX\tOK\t\nGPU1\tOK\tX\t\n", "GPU0 SYS 3\n", "GPU 0: SYS X\n", ""]
)
def test_what_only_looks_alike_is_no_matrix(text):
    assert read_topology(text, {}).pairs == ()


def test_a_sys_row_gets_the_findings_of_the_machine_by_doctor_and_explain():
    report = examine_topology(TWO)
    assert found(report.findings) == ["warning p2p-across-sockets"]
    assert "NUMA nodes 2 and 4" in report.render()
    assert "RDMA" not in report.render()
    assert found(judge([TWO]).findings) == ["warning p2p-across-sockets"]
    assert found(examine_topology(PASTED["nvlink and sys"]).findings) == ["hint p2p-across-sockets"]


def test_beside_a_fault_of_the_log_it_comes_second():
    start = "distributed_backend=nccl\nAll distributed processes registered. Starting with 2\n"
    names = [finding.name for finding in judge([TWO + start]).findings]
    assert names == ["nccl-hang-at-init", "p2p-across-sockets"]


def test_what_is_set_already_is_not_advised(monkeypatch):
    line = "n1:1:2 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n"
    assert found(judge([TWO + line]).findings) == ["hint no-error-in-log"]
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert examine_topology(TWO).findings == []

"""The report from a machine with GPUs: what runs where, what is written of it, and what must not be in it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from paceline.diagnose.explain.redaction import Known, Redactor
from repository_scripts import script


@pytest.fixture(scope="module")
def gpu_report():
    with script("gpu_report") as module:
        yield module


@pytest.fixture
def part(gpu_report):
    return gpu_report.Part("some", "something", ("python", "-c", "print('passed')"), 20)


def machine(gpu_report, number, kind="cuda"):
    return gpu_report.Machine(kind, ("NVIDIA H200",) * number, {"torch": "2.13.0", "nccl": ""})


@pytest.mark.parametrize(
    ("number", "kind", "needs", "reason"),
    [
        (0, "none", {}, "no GPU"),
        (1, "cuda", {}, ""),
        (1, "cuda", {"num_gpus": 2}, "needs 2 GPUs, there is 1"),
        (2, "cuda", {"num_gpus": 2, "only_cuda": True}, ""),
        (2, "xpu", {"only_cuda": True}, "needs CUDA, this is xpu"),
    ],
)
def test_a_part_that_cannot_run_says_why(gpu_report, part, number, kind, needs, reason):
    assert gpu_report.missing(replace(part, **needs), machine(gpu_report, number, kind)) == reason


def test_every_part_is_on_the_page(gpu_report):
    page = (gpu_report.ROOT / "docs" / "reference" / "gpu-readiness.md").read_text()
    table = page.partition("## A report from two GPUs")[2]
    assert [part.name for part in gpu_report.PARTS if f"`{part.name}`" not in table] == []
    assert "runs ten parts" in table and len(gpu_report.PARTS) == 10


@pytest.mark.parametrize(
    ("code", "limit_s", "state"),
    [
        ("print('fine')", 20, "ok"),
        ("import sys; print('fine'); sys.exit(3)", 20, "failed (status 3)"),
        ("import time; print('fine', flush=True); time.sleep(60)", 1, "failed (no end within 1 s)"),
    ],
)
def test_a_part_is_run_to_its_end_or_its_limit(gpu_report, part, tmp_path, code, limit_s, state):
    asked = replace(part, command=("python", "-c", code), limit_s=limit_s)
    came = gpu_report.run(asked, tmp_path, 2)
    assert (came.state, came.result) == (state, "fine")


def test_a_program_that_is_missing_fails_alone(gpu_report, part, tmp_path):
    came = gpu_report.run(replace(part, command=("no-such-program",)), tmp_path, 2)
    assert came.state == "failed (No such file or directory)"


def test_the_report_has_figures_first_and_outputs_at_its_end(gpu_report, part):
    long = "".join(f"line {number}\n" for number in range(10_000))
    parts = [
        gpu_report.Came(replace(part, name="tests"), "ok", 61.2, "....\n4 passed in 2.1s\n"),
        gpu_report.Came(replace(part, name="rates", num_lines=2), "ok", 3.0, long),
        gpu_report.Came(replace(part, name="pair"), "needs 2 GPUs, there is 1"),
    ]
    text = gpu_report.report(machine(gpu_report, 1), parts, Redactor(Known()))
    assert "1 x cuda: NVIDIA H200" in text
    assert "- torch: 2.13.0\n- nccl: -" in text
    assert "| tests | something | ok: 4 passed in 2.1s | 61 |" in text
    assert "| pair | something | needs 2 GPUs, there is 1 |  |" in text
    assert "## rates: ok\n\n````text\nline 9998\nline 9999\n````" in text
    assert "characters are left out" in text
    assert len(text) < 2 * gpu_report.MOST_CHARACTERS
    assert text.index("## rates: ok") < text.index("## Output of tests")


def test_names_and_places_are_not_in_the_report(gpu_report, part):
    output = (
        f"node gpu-17: {gpu_report.ROOT}/src of anna in /home/anna/x, 10.3.4.5\n"
        "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123\nGPU-12345678-1234-1234-1234-123456789abc\n"
    )
    known = Known(users=("anna",), homes=("/home/anna",), hosts=("gpu-17",))
    parts = [gpu_report.Came(part, "ok", 1.0, output)]
    text = gpu_report.report(machine(gpu_report, 1), parts, Redactor(known))
    told = ("gpu-17", "anna", "10.3.4.5", "hf_abc", "12345678-1234", str(gpu_report.ROOT))
    assert [word for word in told if word in text] == []
    assert "<checkout>/src" in text


def test_a_machine_without_gpus_says_so_in_each_part(gpu_report, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_report, "look", gpu_report.Machine)
    out = tmp_path / "report.md"
    assert gpu_report.main(out, ()) == 0
    assert out.read_text().count("| no GPU |") == len(gpu_report.PARTS)
    assert "0 GPUs: no GPU" in capsys.readouterr().out


def test_this_machine_is_looked_at(gpu_report):
    found = gpu_report.look()
    assert found.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (found.kind == "none") is not bool(found.names)

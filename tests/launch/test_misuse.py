"""Misuse: one Finding, exit status 2 (1 for a fault in the user's own script), no traceback, quickly."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cold  # a refusal comes before torch is imported


@pytest.mark.parametrize(
    ("args", "status", "expected"),
    [
        (["--nproc-per-node", "0", "train.py"], 2, "option-invalid: --nproc-per-node 0: "),
        (
            ["--nproc-per-node", "gpu", "train.py"],
            2,
            "gpus-fewer-than-processes: --nproc-per-node gpu: there is no GPU",
        ),
        (["--nproc-per-node", "gpus", "train.py"], 2, "fix: --nproc-per-node gpu"),
        (["--nnodes", "0", "train.py"], 2, "option-invalid: --nnodes 0: "),
        (["--nnodes", "2:1", "train.py"], 2, "option-invalid: --nnodes 2:1: "),
        (["--nporc-per-node", "2", "train.py"], 2, "did you mean --nproc-per-node?"),
        (["."], 2, "script-missing: . is a folder, not a script"),
        (["--master-port", "70000", "train.py"], 2, "option-invalid: --master-port 70000: "),
        (
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", "head:99999", "train.py"],
            2,
            "option-invalid: --rdzv-endpoint",
        ),
        (["--rdzv-backend", "c10d", "--nnodes", "2", "train.py"], 2, "c10d-without-rdzv-endpoint"),
        (
            ["--standalone", "--nnodes", "2", "train.py"],
            2,
            "--standalone and --nnodes exclude each other",
        ),
        (["--no-python", "-m", "train"], 2, "--no-python and --module exclude each other"),
        (["--numa-binding", "nod", "train.py"], 2, "fix: --numa-binding node"),
        (["--signals-to-handle", "SIGUSR3", "train.py"], 2, "fix: --signals-to-handle SIGUSR"),
        (["trian.py"], 2, "did you mean train.py?"),
        (["notes.txt"], 2, "script-not-python: notes.txt is not Python"),
        (["noise"], 2, "script-not-python: noise is not Python"),
        (["broken.py"], 1, "user-exception: the script has a syntax error"),
        (
            ["--no-python", "no-such-program"],
            2,
            "script-missing: there is no program no-such-program",
        ),
        (["-m", "no_such_module"], 2, "module-not-found: there is no module no_such_module"),
        ([], 2, "Missing argument 'SCRIPT'"),
        (
            # a name is awaited as a node is: that of a service may come late
            [
                "--rdzv-endpoint",
                "no-such-host.invalid:29500",
                "--nnodes",
                "2",
                "--roll-call-timeout",
                "3",
                "train.py",
            ],
            2,
            "hostname-unresolvable",
        ),
        (["--run-dir", "/proc/nowhere", "train.py"], 2, "folder-not-writable"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, list) else "",
)
def test_one_finding_and_nothing_is_started(command, args, status, expected):
    command.script("open('started', 'w')")
    command.script("def f(:\n    pass\n", name="broken.py")
    command.script("buy milk", name="notes.txt")
    (command.folder / "noise").write_bytes(bytes(range(256)))
    ended = command.run(*args)
    assert ended.status == status, ended.err
    assert expected in ended.err
    assert ended.err.count("error ") == 1
    assert "Traceback" not in ended.err + ended.out
    assert not (command.folder / "started").exists()


def test_a_run_folder_that_cannot_be_made_here_moves_away_with_a_word(command):
    (command.folder / "paceline-runs").write_text("a file is in the way")
    command.script("print('trained')")
    ended = command.run("train.py")
    assert ended.status == 0
    assert ended.out == "trained\n"
    assert "because paceline-runs/ cannot be written here" in ended.err

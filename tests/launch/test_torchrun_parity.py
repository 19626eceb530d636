"""A command that torchrun runs, paceline runs: the status, the ranks' environment and the output are compared.

First the cases of torch's own tests of its command line, written anew; then what else torchrun takes.
"""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from starting import free_port

pytestmark = [pytest.mark.ci, pytest.mark.cold]  # the whole start is compared

SCRIPT = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK")
names += ("ROLE_NAME", "ROLE_WORLD_SIZE", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_VISIBLE_DEVICES")
names += tuple(name for name in os.environ if name.startswith("TORCHELASTIC_"))
seen = {name: os.environ.get(name) for name in names}
seen |= {"argv": sys.argv[1:], "globals": sorted(globals()), "stdout": sys.stdout.name, "flags": str(sys.flags)}
seen |= {"warnings": sys.warnoptions, "assert": __debug__, "annotations": str(globals().get("__annotations__"))}
with open(os.path.join(os.environ["REPORTS"], os.environ["RANK"] + ".json"), "w") as file:
    json.dump(seen, file)
# in one write: under torchrun the lines of ranks mix
sys.stdout.write(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} {sys.argv[1:]}\\n")
"""
PROGRAM = """#!/bin/sh
echo "{\\"RANK\\": \\"$RANK\\", \\"WORLD_SIZE\\": \\"$WORLD_SIZE\\", \\"argv\\": \\"$*\\"}" > "$REPORTS/$RANK.json"
echo "rank $RANK of $WORLD_SIZE $*"
"""
ALL_HAVE = "import time\nwhile len(os.listdir(os.environ['REPORTS'])) < int(os.environ['WORLD_SIZE']):\n    time.sleep(0.01)\n"
FAILS = SCRIPT + ALL_HAVE + "raise ValueError('on purpose')\n"
FAILS_ONCE = (
    SCRIPT + ALL_HAVE + "sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)\n"
)
MEETS = SCRIPT + (
    "import torch.distributed as dist\n"
    "rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
    "dist.init_process_group('gloo', init_method=sys.argv[1], rank=rank, world_size=size)\n"
    "dist.barrier()\n"
    "sys.stdout.write(f'rank {rank} launched {dist.is_torchelastic_launched()}\\n')\n"
    "dist.destroy_process_group()\n"
)
SETS_EARLY = (
    "import os\n"
    "os.environ['TORCH_DISTRIBUTED_DEBUG'] = 'INFO'\n"
    "os.environ['TORCH_COMPILE_DISABLE'] = '1'\n"
    + SCRIPT
    + "import torch.distributed as dist, torch._dynamo\n"
    "print('rank 0', dist.get_debug_level(), torch._dynamo.config.disable)\n"
)
# torchrun runs --run-path as a function, in a child that multiprocessing has started.
OF_A_FUNCTION = {"flags", "globals", "annotations"}
C10D = "--rdzv-backend=c10d --rdzv-endpoint=localhost:{port}"


@dataclass(frozen=True)
class Case:
    """A command line for both launchers."""

    words: str  # what follows the command, split at blanks; ``{port}`` is a free port
    ranks: int = 1  # that report
    script: str = SCRIPT  # what ``t.py`` has
    more: tuple[str, ...] = ()  # command lines of further nodes, on this host
    env: dict[str, str] = field(default_factory=dict)
    python: str = ""  # the command of each launcher starts by Python with these flags
    same_run_id: bool = False  # the run has the same id under both


def start(command, case: Case, program: str, words: str):
    folder = command.folder / program
    environ = {
        "REPORTS": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(command.folder / "path"),
        **case.env,
    }
    if not case.python:
        return command.start(*words.split(), program=program, env=environ)
    module = ["torch.distributed.run"] if program == "torchrun" else ["paceline", "run"]
    return command.start(
        *case.python.split(), "-m", *module, *words.split(), program=sys.executable, env=environ
    )


@dataclass
class Run:
    """What came of a case under one launcher; its port is written as PORT."""

    status: list[int]  # of each node
    reports: dict[str, dict]  # what each rank saw
    shown: list[str]  # what rank 0 printed: the console of paceline shows no other
    err: str  # what the first node's launcher printed


def run(command, case: Case) -> dict[str, Run]:
    """Run a case under both launchers at once."""
    for name in ("t.py", "t.txt", "path/package/train.py"):
        (command.folder / name).parent.mkdir(parents=True, exist_ok=True)
        command.script(case.script, name)
    command.script(PROGRAM, "t.sh").chmod(0o755)
    ports = {"torchrun": str(free_port()), "paceline": str(free_port())}
    running = {}
    for program, port in ports.items():
        (command.folder / program).mkdir()
        words = [line.replace("{port}", port) for line in (case.words, *case.more)]
        running[program] = [start(command, case, program, line) for line in words]
    return {
        program: outcome(command.folder / program, running[program], ports[program], case)
        for program in ports
    }


def outcome(folder: Path, running, port: str, case: Case) -> Run:
    ended = [each.wait(120) for each in running]
    left_out = OF_A_FUNCTION if "--run-path" in case.words else set()
    if not case.same_run_id:
        left_out = left_out | {"TORCHELASTIC_RUN_ID"}
    reports = {
        path.stem: json.loads(path.read_text().replace(port, "PORT"))
        for path in sorted(folder.glob("*.json"))
    }
    for report in reports.values():
        for name in left_out | {"TORCHELASTIC_ERROR_FILE"}:
            report.pop(name, None)
    shown = [
        line.replace(port, "PORT")
        for each in ended
        for line in each.out.splitlines()
        if "rank 0" in line
    ]
    return Run([each.status for each in ended], reports, shown, ended[0].err)


def agree(command, case: Case) -> Run:
    """Assert that both launchers run a case alike; return what paceline made of it."""
    both = run(command, case)
    theirs, ours = both["torchrun"], both["paceline"]
    assert ours.status == theirs.status, ours.err + theirs.err
    assert ours.reports == theirs.reports
    assert len(ours.reports) == case.ranks
    assert ours.shown == theirs.shown
    assert "launcher-fault" not in ours.err
    assert "ResourceWarning: unclosed" not in ours.err
    return ours


def cases(quick: dict[str, Case], slow: dict[str, Case]):
    marked = [pytest.param(case, id=name, marks=pytest.mark.slow) for name, case in slow.items()]
    return [*(pytest.param(case, id=name) for name, case in quick.items()), *marked]


# ---------------------------------------------------------------------------------------------- torch's own cases

OF_TORCH = cases(
    {
        "redirect and tee": Case(
            "--nproc-per-node=2 --rdzv-id=7 --redirect=3 --tee=3 --monitor-interval=1 --start-method=spawn --no-python"
            " ./t.sh out",
            ranks=2,
            env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]: "},
        ),
        "elastic with quotes": Case(
            f"--nnodes=1:2 --nproc-per-node=2 {C10D} --rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'"
            " --rdzv-id=9 --monitor-interval=1 --start-method=spawn t.py --touch=x",
            ranks=2,
            same_run_id=True,
        ),
        "master address and port": Case(
            "--nnodes=1 --nproc-per-node=2 --monitor-interval=1 --start-method=spawn --master-addr=localhost"
            " --master-port={port} --node-rank=0 t.py a",
            ranks=2,
        ),
        "variables": Case(
            "./t.sh a b",
            ranks=2,
            env={
                **{
                    "PET_NNODES": "1",
                    "PET_NPROC_PER_NODE": "2",
                    "PET_RDZV_ID": "7",
                    "PET_MONITOR_INTERVAL": "1",
                },
                **{"PET_START_METHOD": "spawn", "PET_NO_PYTHON": "1", "PET_MODULE": "0"},
            },
        ),
    },
    {
        "script": Case(
            "--nnodes=1 --nproc-per-node=4 --rdzv-id=7 --monitor-interval=1 --start-method=spawn t.py --touch=x",
            ranks=4,
        ),
        "program": Case("--nnodes=1 --nproc-per-node=4 --rdzv-id=7 --no-python ./t.sh x", ranks=4),
        "one rank by default": Case(
            "--nnodes=1 --rdzv-id=7 --monitor-interval=1 --no-python ./t.sh x"
        ),
        "standalone": Case(
            "--nnodes=1 --nproc-per-node=4 --standalone --monitor-interval=1 t.py a", ranks=4
        ),
        "two agents": Case(
            f"--nnodes=1:2 --nproc-per-node=2 {C10D} --rdzv_conf=timeout=5,last_call_timeout=5 --rdzv-id=7 t.py a",
            more=(
                f"--nnodes=1:2 --nproc-per-node=2 {C10D} --rdzv_conf=timeout=5,last_call_timeout=5 --rdzv-id=7 t.py a",
            ),
            ranks=4,
            same_run_id=True,
        ),
        "a worker raises": Case(
            f"--nnodes=1:2 --nproc-per-node=2 {C10D} --rdzv-conf=last_call_timeout=1 --max-restarts=0 t.py",
            ranks=2,
            script=FAILS,
        ),
        "init by tcp": Case(
            "--run-path --nproc-per-node=2 --master-addr=localhost --master-port={port} t.py tcp://localhost:{port}",
            ranks=2,
            script=MEETS,
        ),
        "init by variables": Case(
            "--run-path --nproc-per-node=2 --master-addr=localhost --master-port={port} t.py env://",
            ranks=2,
            script=MEETS,
        ),
    },
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", OF_TORCH)
def test_torchs_own_cases(command, case):
    agree(command, case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "--no-python --module ./t.sh",
        "--nproc-per-node=unknown t.py",
        "--nnodes=2:20:30 t.py",
        "--logs_specs=DOESNOT_EXIST t.py",
        "--event-log-handler=nonsense t.py",
        f"{C10D} --rdzv-conf=join_timeout=soon t.py",
        f"{C10D} --rdzv-conf=is_host=perhaps t.py",
        "--nnodse=1 t.py",
        "--rdzv=c10d t.py",  # ambiguous
    ],
)
def test_what_torchrun_refuses_is_refused(command, words):
    both = run(command, Case(words))
    assert both["torchrun"].status != [0]
    assert both["paceline"].status == [2]
    assert "error USE" in both["paceline"].err


# ------------------------------------------------------------------------------------------ what else torchrun takes

TAKEN = cases(
    {
        "abbreviations": Case("--nnode=1 --nproc-per 2 --max-restart=0 t.py --nnode=3", ranks=2),
        "standalone beside its opposite": Case(
            "--standalone --master-port=1 --master-addr=no --rdzv-id=7 --rdzv-endpoint=nowhere:1 --node-rank=1 t.py"
        ),
        "flags of Python": Case(
            "--nproc-per-node=2 t.py", ranks=2, python="-O -W error::ResourceWarning"
        ),
        "warnings are errors": Case("-m package.train a", env={"PYTHONWARNINGS": "error"}),
    },
    {
        "leftovers beside c10d": Case(
            f"{C10D} --node-rank=1 --master-addr=nowhere --master-port=1 t.py"
        ),
        "script -- arguments": Case("t.txt -- a -- --b"),
        "separator first": Case("-- t.py -- a"),
        "short options": Case("-t3 -r=3 t.py"),
        "blanks around numbers": Case("t.py", env={"PET_NNODES": " 1 ", "PET_MAX_RESTARTS": " 0"}),
        "node rank on one node": Case("--node-rank=3 t.py"),
        "path beside module": Case("--run-path --module --no-python t.py"),
        "range with a static rendezvous": Case(
            "--nnodes=1:2 --node-rank=0 --master-addr=localhost --master-port={port} t.py",
            more=("--nnodes=1:2 --node-rank=1 --master-addr=localhost --master-port={port} t.py",),
            ranks=2,
        ),
        "standalone with a range": Case(
            "--standalone --nnodes=1:2 --rdzv-conf=last_call_timeout=1 t.py"
        ),
        "filter without tee": Case("--duplicate-stdout-filters=rank t.py"),
        "filter beyond the ranks": Case(
            "--nproc-per-node=2 --local-ranks-filter=0,3 t.py", ranks=2
        ),
        "virtual local rank": Case("--nproc-per-node=2 --virtual-local-rank t.py", ranks=2),
        "unknown settings": Case("--rdzv-conf=bla=1,timeout=x t.py"),
        "inherited opposite of standalone": Case(
            "--standalone t.py",
            env={
                "PET_RDZV_ENDPOINT": "nowhere:1",
                "PET_RDZV_BACKEND": "c10d",
                "PET_NODE_RANK": "1",
            },
        ),
        "restart": Case("--nproc-per-node=2 --max-restarts=1 t.py", ranks=2, script=FAILS_ONCE),
        "failure": Case("--nproc-per-node=2 t.py", ranks=2, script=FAILS),
        "static by variables": Case(
            "--nnodes=2 --node-rank=0 --master-port={port} t.py",
            more=("--nnodes=2 --node-rank=1 --master-port={port} t.py",),
            env={"PET_MASTER_ADDR": "localhost"},
            ranks=2,
        ),
        "static at the default address": Case(
            "--nnodes=2 --node-rank=0 --master-port={port} t.py",
            more=("--nnodes=2 --node-rank=1 --master-port={port} t.py",),
            ranks=2,
        ),
        "the script sets a variable": Case("t.py", script=SETS_EARLY),
    },
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", TAKEN)
def test_what_torchrun_takes_is_taken(command, case):
    agree(command, case)


def test_a_variable_that_a_module_sets_too_late_is_said(command):
    """The value has no effect where a rank has torch in memory; under torchrun it has."""
    (command.folder / "helper.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'\n")
    command.script("import helper, torch\nprint('ran')")
    ended = command.run("train.py", env={"OMP_NUM_THREADS": "2"})
    assert (ended.status, ended.out) == (0, "ran\n")
    assert (
        "OMP_NUM_THREADS=1 is set in helper.py:2, but torch has read OMP_NUM_THREADS already"
        in ended.err
    )
    assert "fix: export OMP_NUM_THREADS=1, or --start-method spawn" in ended.err


EDITABLE = """
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, {file!r}) if name == "editable_tool" else None

sys.meta_path.append(Finder)
"""


def test_a_package_in_editable_mode(command):
    """As ``pip install -e`` installs it: a finder that Python's start-up puts in place."""
    tool = command.script("print('ran')", "tool.py")
    (command.folder / "site").mkdir()
    (command.folder / "site" / "sitecustomize.py").write_text(EDITABLE.format(file=str(tool)))
    env = {"PYTHONPATH": str(command.folder / "site")}
    running = [
        command.start("-m", "editable_tool", program=program, env=env)
        for program in ("torchrun", "paceline")
    ]
    assert [(each.status, each.out) for each in (one.wait() for one in running)] == [
        (0, "ran\n")
    ] * 2


def test_pytest_as_the_script_warns_of_nothing(command):
    """A rank has imported paceline, which has a plugin of pytest, before pytest starts in it."""
    command.script("def test_it():\n    assert 1", "test_it.py")
    ended = command.run("-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "test_it.py")
    assert ended.status == 0, ended.out + ended.err
    assert "1 passed" in ended.out
    assert "warning" not in ended.out


@pytest.mark.slow
def test_events_reach_the_console(command):
    command.script("print('ran')")
    names = []
    for program in ("torchrun", "paceline"):
        ended = command.run("--event-log-handler=console", "train.py", program=program)
        assert ended.status == 0
        events = [json.loads(line) for line in ended.err.splitlines() if line.startswith('{"name"')]
        names.append(sorted({event["name"] for event in events}))
    assert "torchelastic.worker.status.SUCCEEDED" in names[1]
    assert set(names[1]) <= set(names[0])


@pytest.mark.slow
@pytest.mark.timeout(260)  # the waits below
def test_a_late_joiner_is_taken_in(command):
    """The ranks that run are started again, with those of the node that came later.

    torchrun is not run beside it: with 2.13 on one machine its first node ended with status 1 after a minute.
    """
    command.script(
        textwrap.dedent("""
        import os, time
        size = os.environ["WORLD_SIZE"]
        with open(f"seen-{os.environ['RANK']}-of-{size}", "w") as file:
            file.write(size + "\\n")
        if size == "1":
            time.sleep(60)
        """)
    )
    port = free_port()
    words = [
        "--nnodes=1:2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{port}",
        "--rdzv-id=7",
    ]
    words += ["--rdzv-conf=last_call_timeout=1", "--max-restarts=2", "train.py"]
    first = command.start(*words)
    command.wait_for(command.folder / "seen-0-of-1", timeout=60)
    second = command.start(*words)
    assert [first.wait(90).status, second.wait(90).status] == [0, 0]
    assert {path.name for path in Path(command.folder).glob("seen-*")} == {
        "seen-0-of-1",
        "seen-0-of-2",
        "seen-1-of-2",
    }

"""Several launchers that make one run: on one machine here, in network namespaces in test_two_hosts.py."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from starting import free_port

REDUCE = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.tensor([float(rank)])
dist.all_reduce(x)
with open(f"seen-{rank}", "w") as file:
    names = ("WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")
    print(x.item(), *(os.environ[name] for name in names), file=file)
dist.destroy_process_group()
"""


def nodes(command, sizes, *options, kind="static", port=None, script="train.py", env=None):
    """Start one launcher a node; return them, head first."""
    port = port or free_port()
    started = []
    for node, size in enumerate(sizes):
        where = (
            ["--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", port]
            if kind == "static"
            else ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
        )
        count = [] if "--nnodes" in options else ["--nnodes", len(sizes)]
        started.append(
            command.start(*count, *where, "--nproc-per-node", size, *options, script, env=env)
        )
    return started


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_nodes_of_different_sizes_train_together(command, kind):
    command.script(REDUCE)
    ended = [running.wait() for running in nodes(command, [2, 1], kind=kind)]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    seen = [(command.folder / f"seen-{rank}").read_text().split() for rank in range(3)]
    assert [line[0] for line in seen] == ["3.0"] * 3
    assert [line[1] for line in seen] == ["3"] * 3
    sizes = sorted((int(line[2]), int(line[5])) for line in seen)
    assert sorted(size for _, size in sizes) == [1, 2, 2]
    assert {end.run_dir for end in ended} == {ended[0].run_dir}  # the head's id is everybody's
    assert len(list((command.folder / ended[0].run_dir / "logs").glob("rank-*.out"))) == 3
    for end in ended:
        (roll_call,) = [line for line in end.err.splitlines() if "roll call" in line]
        assert re.fullmatch(r"paceline: roll call: 2 nodes alike, [0-9.]+ s", roll_call)
        assert "warning" not in end.err


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_every_node_ends_with_the_same_block_and_within_two_seconds(command, kind):
    command.script(
        "import os, signal, time\nrank = int(os.environ['RANK'])\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(f'up-{rank}', 'w').write('here\\n')\n"
        "while not all(os.path.exists(f'up-{r}') for r in range(3)): time.sleep(.01)\n"
        "if rank == 2:\n"
        "    open('failed-at', 'w').write(repr(time.time()))\n"
        "    raise ValueError('on the second node')\n"
        "time.sleep(60)\n"
    )
    started = nodes(command, [2, 1], kind=kind)
    ended = [running.wait() for running in started]
    failed_at = float((command.folder / "failed-at").read_text())
    assert [end.status for end in ended] == [1, 1]
    assert ended[0].block == ended[1].block
    assert "cause: rank 2 raised ValueError: on the second node" in ended[0].block
    assert "ranks 0-1: stopped because rank 2 failed" in ended[0].block

    records = (command.folder / ended[0].run_dir / "events.jsonl").read_text().splitlines()
    ends = next(event for event in map(json.loads, records) if event["kind"] == "end")["ends"]
    assert len(ends) == 3
    took = [end["time_ns"] / 1e9 - failed_at for end in ends]
    assert max(took) < 2, took


def test_a_victims_node_does_not_call_its_own_rank_the_cause(command):
    command.script(
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nx = torch.ones(1)\ndist.all_reduce(x)\n"
        "if dist.get_rank() == 1: raise OSError('disk of node 1 is gone')\n"
        "dist.all_reduce(x)\n"
    )
    ended = [running.wait() for running in nodes(command, [1, 1])]
    for end in ended:
        assert "cause: rank 1 raised OSError: disk of node 1 is gone" in end.block
        assert "rank 0: stopped because rank 1 failed" in end.block


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_a_failure_restarts_all_nodes_together(command, kind):
    command.script(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nx = torch.ones(1)\ndist.all_reduce(x)\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "if attempt == '0' and dist.get_rank() == 1: raise RuntimeError('first time')\n"
        "dist.all_reduce(x)\n"
        "open(f'done-{dist.get_rank()}', 'w').write(f'{attempt} {x.item()}')\n"
        "dist.destroy_process_group()\n"
    )
    ended = [running.wait() for running in nodes(command, [1, 1], "--max-restarts", "2", kind=kind)]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    assert [(command.folder / f"done-{rank}").read_text() for rank in range(2)] == [
        "1 4.0",
        "1 4.0",
    ]


@pytest.mark.parametrize("who", ["head", "other"])
def test_a_killed_launcher_is_named_by_the_others_within_15_s(command, who):
    command.script(
        "import os, time\nopen('up-' + os.environ['RANK'], 'w').write('here\\n')\ntime.sleep(120)\n"
    )
    started = nodes(command, [1, 1])
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    time.sleep(1.5)  # a few signs of life
    victim, left = (0, 1) if who == "head" else (1, 0)
    started[victim].signal(signal.SIGKILL)
    begun = time.monotonic()
    ended = started[left].wait()
    assert time.monotonic() - begun < 15
    assert ended.status == 1
    assert "agent-died" in ended.block
    assert "has gone: it was killed, or it crashed" in ended.block
    started[victim].process.wait()
    assert command.survivors(within_s=10) == []


@pytest.mark.slow
def test_the_run_goes_on_with_fewer_nodes_after_one_is_lost(command):
    command.script(
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "size, attempt = os.environ['WORLD_SIZE'], os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "open(f'up-{size}-{dist.get_rank()}', 'w').write('here\\n')\n"
        "if size == '1':\n    open('went-on', 'w').write(attempt + '\\n'); raise SystemExit\n"
        "time.sleep(120)\n"
    )
    port = free_port()
    first = nodes(
        command,
        [1],
        "--nnodes",
        "1:2",
        "--max-restarts",
        "2",
        "--rdzv-conf",
        "last_call_timeout=4",
        kind="c10d",
        port=port,
    )[0]
    time.sleep(2)
    second = nodes(command, [1], "--nnodes", "1:2", "--max-restarts", "2", kind="c10d", port=port)[
        0
    ]
    for rank in range(2):
        command.wait_for(command.folder / f"up-2-{rank}")
    time.sleep(1.5)
    second.signal(signal.SIGKILL)
    second.process.wait()
    begun = time.monotonic()
    ended = first.wait(timeout=45)
    assert ended.status == 0, ended.err
    assert (command.folder / "went-on").exists()
    assert time.monotonic() - begun < 30  # torchrun's defaults take 42 s
    assert command.survivors(within_s=10) == []


ELASTIC = """
import json, os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
done = json.loads(open("state").read()) if os.path.exists("state") else {"step": 0, "weight": [0.0, 0.0]}
rows = torch.arange(24, dtype=torch.float64).reshape(12, 2) / 7
weight = torch.tensor(done["weight"], dtype=torch.float64)
dist.barrier()  # all have read the state
open(f"up-{size}-{rank}-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w").close()
for step in range(done["step"], 100_000):
    error = rows[rank::size] @ weight - 1
    sums = torch.cat([rows[rank::size].T @ error, (error**2).sum()[None], torch.tensor([float(os.path.exists("over"))])])
    dist.all_reduce(sums)
    weight -= 0.01 / 12 * sums[:2]
    if rank == 0:
        with open("losses", "a") as file:
            print(json.dumps([step, sums[2].item() / 12]), file=file)
        with open("new", "w") as file:
            file.write(json.dumps({"step": step + 1, "weight": weight.tolist()}))
        os.replace("new", "state")
    if sums[3]:
        break
    time.sleep(.02)
dist.destroy_process_group()
"""


def expected_losses(number):
    """What one process computes that is never restarted."""
    rows, weight, losses = np.arange(24.0).reshape(12, 2) / 7, np.zeros(2), []
    for _ in range(number):
        error = rows @ weight - 1
        losses.append((error**2).mean())
        weight -= 0.01 / 12 * (rows.T @ error)
    return losses


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nodes_are_lost_and_come_back_again_and_again(command):
    """A node that came after a restart counted its own restarts, and met the others nowhere."""
    command.script(ELASTIC)
    port = free_port()
    options = ("--nnodes", "1:4", "--max-restarts", 4, "--rdzv-conf", "last_call_timeout=2")

    def node():
        return nodes(command, [1], *options, kind="c10d", port=port)[0]

    def ranks_run(size, *, after):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ups = [path.name.split("-") for path in command.folder.glob(f"up-{size}-*")]
            attempts = [int(up[3]) for up in ups if int(up[3]) > after]
            if len(attempts) == size:
                assert len(set(attempts)) == 1, ups
                return attempts[0]
            time.sleep(0.05)
        raise AssertionError(sorted(path.name for path in command.folder.iterdir()))

    head = node()
    command.wait_for(command.folder / "losses")
    attempt = -1
    for _ in range(2):
        other = node()
        attempt = ranks_run(2, after=attempt)
        other.signal(signal.SIGKILL)
        other.process.wait()
        attempt = ranks_run(1, after=attempt)
    others = [node(), node()]  # the second one comes while the first one joins
    attempt = ranks_run(3, after=attempt)
    others[0].signal(signal.SIGSTOP)  # it sees its ranks fail before it sees who joins
    others.append(node())
    time.sleep(4)
    others[0].signal(signal.SIGCONT)
    ranks_run(4, after=attempt)
    (command.folder / "over").touch()
    ended = [running.wait() for running in (head, *others)]
    assert [end.status for end in ended] == [0, 0, 0, 0], [end.err for end in ended]
    assert ended[0].err.count("another node has come; ranks were started again") >= 4
    failures = [line for end in ended for line in end.err.splitlines() if "started again (" in line]
    assert len(failures) == 2, failures  # those of the nodes that were killed
    losses = [json.loads(line) for line in (command.folder / "losses").read_text().splitlines()]
    expected = expected_losses(losses[-1][0] + 1)
    assert {step for step, _ in losses} == set(range(len(expected)))
    assert all(abs(loss - expected[step]) < 1e-12 for step, loss in losses)


def test_a_port_that_is_taken_names_its_holder(command):
    command.script("print('never')")
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        port = holder.getsockname()[1]
        ended = command.run("--master-port", port, "train.py")
    assert ended.status == 2
    assert f"port {port} is held by pid {os.getpid()} (" in ended.err
    assert "port-in-use" in ended.err
    assert "Traceback" not in ended.err


def test_a_node_of_another_run_is_told_whose_store_it_met(command):
    command.script(
        "import time\nopen('up', 'w').write('here\\n')\ntime.sleep(60)\n", name="first.py"
    )
    command.script("print('never')", name="second.py")
    port = free_port()
    head = command.start(
        "--nnodes",
        "2",
        "--node-rank",
        "0",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        port,
        "first.py",
    )
    other = command.start(
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        port,
        "second.py",
    )
    ended = other.wait()
    assert ended.status == 1
    assert "port-held-by-other" in ended.err
    assert "the run of first.py" in ended.err
    assert f"launcher pid {head.process.pid}" in ended.err
    head.signal(signal.SIGTERM)
    assert head.wait().status == 143


def test_a_rank_that_meets_a_foreign_store_names_the_run_and_ends(command):
    """A script that sets MASTER_PORT by itself finds another job's store there."""
    command.script(
        "import os, time\nopen('port', 'w').write(os.environ['MASTER_PORT'] + '\\n')\ntime.sleep(60)\n",
        name="first.py",
    )
    command.script(
        "import os, sys, torch.distributed as dist\nos.environ['MASTER_PORT'] = sys.argv[1]\n"
        "dist.init_process_group('gloo')\n",
        name="second.py",
    )
    first = command.start("--nproc-per-node", "2", "first.py")
    port = command.wait_for(command.folder / "port").strip()
    ended = command.run("--nproc-per-node", "2", "second.py", port)
    assert ended.status == 1
    assert "port-held-by-other" in ended.block
    assert "the run of first.py" in ended.block
    first.signal(signal.SIGTERM)
    assert first.wait().status == 143
    assert "Traceback" not in first.err if hasattr(first, "err") else True


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_nodes_that_disagree_about_their_number_are_all_told_both(command, kind):
    command.script("print('never')")
    port = free_port()
    (head,) = nodes(command, [1], "--nnodes", "2", kind=kind, port=port)
    where = ["--node-rank", 1, "--master-addr", "127.0.0.1", "--master-port", port] if kind == "static" else [
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"
    ]  # fmt: skip
    other = command.start("--nnodes", 3, *where, "train.py")
    ended = [head.wait(), other.wait()]
    assert [end.status for end in ended] == [1, 1]
    assert ended[0].block == ended[1].block
    sizes = set(re.findall("--nnodes [23]", ended[0].block.splitlines()[1]))
    assert "world-size-mismatch" in ended[0].block
    assert sizes == {"--nnodes 2", "--nnodes 3"}
    assert all(f"launcher pid {running.process.pid}" in ended[0].block for running in (head, other))
    assert max(end.seconds for end in ended) < 20


def test_the_plan_is_one_short_line_and_has_its_reasons_in_the_folder(command):
    command.script("import os; print(os.environ['OMP_NUM_THREADS'], os.environ['MASTER_ADDR'])")
    ended = command.run("--nproc-per-node", "2", "train.py")
    plan = ended.err.splitlines()[0]
    assert re.fullmatch(
        r"paceline: 1 node x 2 ranks · gloo · paceline-runs/\d{8}-\d{6}-train-\w{4}", plan
    )
    assert len(plan) <= 80
    kept = json.loads((command.folder / ended.run_dir / "plan.json").read_text())
    assert ended.out == f"{kept['threads']['value']} 127.0.0.1\n"
    assert re.fullmatch(r"\d+ usable CPUs? / 2 ranks", kept["threads"]["reason"])
    kept = command.run("--nproc-per-node", "2", "train.py", env={"OMP_NUM_THREADS": "3"})
    assert kept.out == "3 127.0.0.1\n"


def test_a_node_that_does_not_come_is_named_by_all(command):
    command.script("print('never')")
    started = nodes(command, [1, 1], "--nnodes", "3", "--roll-call-timeout", "4")
    ended = [running.wait() for running in started]
    assert [end.status for end in ended] == [1, 1]
    assert ended[0].block == ended[1].block
    assert "node-missing: node 2 of 3 did not come within 4 s" in ended[0].block
    assert "here: node 0 on" in ended[0].block
    assert not (command.folder / "paceline-runs" / ".roll-call").exists()


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("first", [0, 1])
def test_nodes_that_come_40_s_apart_train_together(command, first):
    """The wait ended after 30 s once."""
    command.script(REDUCE)
    where = [
        "--nnodes",
        2,
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        free_port(),
        "--nproc-per-node",
        1,
    ]
    one = command.start(*where, "--node-rank", first, "train.py")
    time.sleep(40)
    other = command.start(*where, "--node-rank", 1 - first, "train.py")
    ended = [one.wait(), other.wait()]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    assert len(re.findall("notice: waiting for", ended[0].err)) == 1, ended[0].err


@pytest.mark.alone
def test_a_wait_is_said_once_and_lasts_as_long_as_torchruns(command):
    """All deadlines are a fiftieth: 18 s instead of 15 minutes, refusals end after 1.2 s."""
    command.script("print('never')")
    env = {"PACELINE_TEST_TIME_FACTOR": "0.02"}
    (head,) = nodes(command, [1], "--nnodes", "2", env=env)
    ended = head.wait()
    assert "did not come within 18 s" in ended.block, ended.err
    assert ended.err.count("notice: waiting for node 1 of 2, for ") == 1
    where = [
        "--nnodes",
        2,
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        free_port(),
        "--node-rank",
        1,
    ]
    refused = command.run(*where, "train.py", env=env)
    assert "was not reached from" in refused.block
    assert "port-refused" in refused.block
    assert refused.seconds < 15


def test_a_second_launcher_with_node_rank_0_on_one_host(command):
    command.script("print('never')")
    where = [
        "--nnodes",
        2,
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        free_port(),
        "--node-rank",
        0,
        "train.py",
    ]
    ended = [running.wait() for running in [command.start(*where) for _ in range(2)]]
    assert [end.status for end in ended] == [1, 1], [end.err for end in ended]
    assert all("duplicate-ranks: two nodes have node rank 0" in end.block for end in ended), [
        end.err for end in ended
    ]


def test_a_stopped_fork_server_is_noticed(command):
    command.script(
        "import os, time\nopen('up-0', 'w').write(f'{os.getppid()}\\n')\n"
        "while not os.path.exists('over'): time.sleep(.05)\n"
    )
    running = command.start("--nproc-per-node", 1, "train.py")
    pid = int(command.wait_for(command.folder / "up-0"))
    os.kill(pid, signal.SIGSTOP)
    printed = ""
    while "fix: " not in printed:
        line = running.process.stderr.readline()
        assert line, printed
        printed += line
    os.kill(pid, signal.SIGCONT)
    (command.folder / "over").touch()
    assert running.wait().status == 0
    assert (
        f"notice: the fork server, which starts the ranks and sees how they end, is stopped (pid {pid}"
        in printed
    )
    assert f"fix: kill -CONT {pid}" in printed


def test_a_typed_join_timeout_is_the_limit(command):
    command.script("print('never')")
    (head,) = nodes(command, [1], "--nnodes", "2", "--rdzv-conf", "join_timeout=1")
    assert "did not come within 1 s" in head.wait().err


def test_without_a_roll_call_the_ranks_start_at_once(command):
    command.script(REDUCE)
    ended = [running.wait() for running in nodes(command, [1, 1], "--no-check")]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    assert "roll call" not in ended[0].err + ended[1].err


def test_nodes_with_another_script_do_not_begin(command):
    command.script("print('never')")
    (command.folder / "other").mkdir()
    command.script("print('never, ever')", name="other/train.py")
    port = free_port()
    where = [
        "--nnodes",
        2,
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        port,
        "--run-dir",
        command.folder / "run",
    ]
    head = command.start(*where, "train.py")
    other = command.start(*where, "--node-rank", 1, "train.py", cwd=command.folder / "other")
    ended = [head.wait(), other.wait()]
    assert [end.status for end in ended] == [1, 1]
    assert ended[0].block == ended[1].block
    assert "code-differs: train.py is not the same file on all nodes" in ended[0].block


def test_an_interface_that_does_not_exist_is_told_on_all_nodes(command):
    command.script("print('never')")
    ended = [
        running.wait() for running in nodes(command, [1, 1], env={"GLOO_SOCKET_IFNAME": "nope7"})
    ]
    assert [end.status for end in ended] == [1, 1]
    assert ended[0].block == ended[1].block
    assert "interface-missing-on-node: GLOO_SOCKET_IFNAME=nope7: node 0" in ended[0].block
    assert "lo (127.0.0.1)" in ended[0].block
    alone = command.run("--check", "train.py", env={"GLOO_SOCKET_IFNAME": "nope7"})
    assert alone.status == 1
    assert "interface-missing-on-node" in alone.block


def test_one_node_is_checked_when_asked_to(command):
    command.script("print('here')")
    ended = command.run("--check", "train.py", env={"GLOO_SOCKET_IFNAME": "lo"})
    assert ended.status == 0, ended.err
    assert re.search(
        r"roll call: 1 node, paceline-runs/\S+ can be written, GLOO_SOCKET_IFNAME=lo is here",
        ended.err,
    )


def test_two_nodes_with_one_rank_are_told_on_all(command):
    command.script("import time; time.sleep(60)")
    port = free_port()
    same = ["--nnodes", "3", "--master-addr", "127.0.0.1", "--master-port", port, "train.py"]
    head = command.start(*same)
    twins = [command.start("--node-rank", "1", *same) for _ in range(2)]
    ended = [running.wait() for running in (head, *twins)]
    assert [end.status for end in ended] == [1, 1, 1]
    assert len({end.block for end in ended}) == 1
    assert "duplicate-ranks: two nodes have node rank 1" in ended[0].block
    assert all(f"launcher pid {twin.process.pid}" in ended[0].block for twin in twins)


@pytest.mark.slow
def test_a_node_too_many_is_sent_away_and_the_run_goes_on(command):
    command.script(
        "import os, time\nopen('up-' + os.environ['RANK'], 'w').write('here\\n')\n"
        "while not os.path.exists('end'): time.sleep(.05)\n"
    )
    port = free_port()
    started = nodes(command, [1, 1], kind="c10d", port=port)
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    (third,) = nodes(command, [1], "--nnodes", "2", kind="c10d", port=port)
    ended = third.wait()
    (command.folder / "end").touch()
    assert ended.status == 1
    assert "extra-node: the run has its 2 nodes already" in ended.block
    assert [running.wait().status for running in started] == [0, 0]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_thousand_nodes_are_compared_within_20_s():
    script = Path(__file__).parents[2] / "benchmarks" / "roll_call.py"
    environ = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    ended = subprocess.run(
        [sys.executable, script], env=environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_node_that_comes_later_is_taken_in(command):
    command.script(
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nx = torch.ones(1)\ndist.all_reduce(x)\n"
        "if x.item() == 1:\n    open('alone', 'w').write('here\\n'); time.sleep(120)\n"
        "open(f'together-{dist.get_rank()}', 'w').write(str(x.item()))\ndist.destroy_process_group()\n"
    )
    port, options = free_port(), ("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=2")
    (first,) = nodes(command, [1], *options, kind="c10d", port=port)
    command.wait_for(command.folder / "alone")
    (second,) = nodes(command, [1], *options, kind="c10d", port=port)
    ended = [first.wait(), second.wait()]
    assert [end.status for end in ended] == [0, 0], [end.err for end in ended]
    assert [(command.folder / f"together-{rank}").read_text() for rank in range(2)] == [
        "2.0",
        "2.0",
    ]


def test_a_signal_to_one_launcher_gives_all_ranks_their_time(command):
    command.script(
        "import os, signal, sys, time\n"
        "def stop(number, frame):\n"
        "    time.sleep(1.5)\n"
        "    open('saved-' + os.environ['RANK'], 'w').write(signal.Signals(number).name + '\\n'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "open('up-' + os.environ['RANK'], 'w').write('here\\n')\ntime.sleep(120)\n"
    )
    started = nodes(command, [1, 1])
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    time.sleep(1)
    started[1].signal(signal.SIGTERM)
    ended = [running.wait() for running in started]
    assert [end.status for end in ended] == [143, 143], [end.err for end in ended]
    assert ended[0].block == ended[1].block
    assert [(command.folder / f"saved-{rank}").read_text() for rank in range(2)] == [
        "SIGTERM\n"
    ] * 2

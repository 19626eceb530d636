"""``paceline tune`` on unmodified scripts of every framework, with datasets that wait for something."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from printed_json import read_json
from starting import BIN, NEEDS

pytestmark = [pytest.mark.ci, pytest.mark.cold]
FAULTS = Path(__file__).parents[1] / "faults" / "scripts"
PROGRAMS = Path(__file__).parents[1] / "healthy" / "programs"
SLOW_SAMPLE_S = 0.005  # a sleep: workers wait in parallel on any number of CPUs
# Threads of torch wait for each other, which takes long where tests run side by side.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SESSION = """
import time
import paceline
import torch
from torch import nn

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((16,), (index % 7) / 7), index % 4

session = paceline.Session(seed=0)
model, optimizer = session.setup(net := nn.Linear(16, 4), torch.optim.SGD(net.parameters(), lr=0.1))
loader = session.loader(Samples(), batch_size=8, num_workers=0)
for epoch in session.epochs(3):
    for x, y in loader:
        if session.backward(nn.functional.cross_entropy(model(x), y)):
            optimizer.step()
            optimizer.zero_grad()
"""


def script_of(framework):
    """A script of the project with more samples, each of which takes a while."""
    if framework == "session":
        return SESSION
    if framework == "transformers":
        text = (PROGRAMS / "transformers_trainer.py").read_text()
        slow = f"class Slow(list):\n    def __getitem__(self, index):\n        import time\n        time.sleep({SLOW_SAMPLE_S})\n        return super().__getitem__(index)\n\n\ntrainer = Trainer("
        return text.replace("trainer = Trainer(", slow).replace(
            "samples(64)", "Slow(samples(9000))"
        )
    text = (FAULTS / f"{framework}_train.py").read_text()
    return text.replace(" = 128, 8, 3,", " = 9000, 8, 3,").replace(
        "# at: sample", f"time.sleep({SLOW_SAMPLE_S})"
    )


def tune(command, *words, env=None):
    return command.run("tune", *words, program=str(BIN / "paceline"), timeout=120, env=env)


OTHERS = ("fabric", "lightning", "accelerate", "transformers", "session")


def require(framework):
    """Skip the test where a framework is not installed."""
    if framework != "session" and importlib.util.find_spec(NEEDS.get(framework, framework)) is None:
        pytest.skip(f"{framework} is not installed")


@pytest.mark.timeout(150)
@pytest.mark.slow
@pytest.mark.parametrize("framework", ["raw", *OTHERS])
def test_data_is_found_to_hold_a_script_back(command, framework):
    require(framework)
    script = command.script(script_of(framework))
    ended = tune(command, "--json", "--nproc-per-node", 1, script, env=ONE_THREAD)
    assert ended.status == 0, ended.err
    answer = read_json("tune", ended.out)
    assert answer["data_is_bottleneck"]
    assert answer["waiting_share"]["value"] > 0.5
    assert {row["num_workers"] for row in answer["settings"]} >= {0, 1}
    assert answer["loader"]["batch_samples"] == 8
    maker = {"session": "paceline", "transformers": "transformers"}.get(framework, "")
    assert answer["loader"]["maker"] == maker


@pytest.mark.timeout(150)
@pytest.mark.slow
@pytest.mark.parametrize("framework", ["raw", *OTHERS])
def test_two_ranks_follow_the_commands_without_waiting_for_each_other(command, framework):
    require(framework)
    script = command.script(script_of(framework))
    ended = tune(command, "--json", "--nproc-per-node", 2, script, env=ONE_THREAD)
    assert ended.status == 0, ended.err
    answer = read_json("tune", ended.out)
    assert answer["ranks"] == 2
    assert answer["data_is_bottleneck"]


@pytest.mark.timeout(150)
def test_a_script_that_computes_has_nothing_to_tune(command):
    text = (FAULTS / "raw_train.py").read_text().replace(" = 128, 8, 3,", " = 9000, 8, 3,")
    script = command.script(text.replace("# at: loss", "time.sleep(0.05)"))
    ended = tune(command, script, env=ONE_THREAD)
    assert ended.status == 0, ended.err
    assert "there is nothing to tune" in ended.out
    assert "DataLoader(" not in ended.out


DATASET = """
import time

class Samples:
    def __len__(self):
        return 500

    def __getitem__(self, index):
        time.sleep(0.002)
        return index

train_set = Samples()
def make():
    return Samples()
empty = []
"""


@pytest.mark.timeout(150)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["train_set", "make"])
def test_a_dataset_without_a_script(command, name):
    command.script(DATASET, "samples.py")
    ended = tune(command, "--batch-size", 16, f"samples:{name}", env=ONE_THREAD)
    assert ended.status == 0, ended.err
    assert "no workers, the defaults" in ended.out
    assert "batches of 16 samples" in ended.out


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("samples:missing", "has no attribute 'missing'"),
        ("samples:empty", "has no samples"),
        ("samples:time", "is not a dataset but an object of type module"),
        ("no_such_module:data", "No module named 'no_such_module'"),
    ],
)
def test_what_is_no_dataset_is_refused(command, subject, reason):
    command.script(DATASET, "samples.py")
    ended = tune(command, subject)
    assert ended.status == 1
    assert "input-unreadable" in ended.err
    assert reason in ended.err


def test_a_script_that_fails_is_reported_with_its_reason(command):
    ended = tune(command, command.script("raise ValueError('no data')"))
    assert ended.status == 1
    assert "trial-failed" in ended.err
    assert "no data" in ended.err


def test_a_script_that_does_not_train_is_reported(command):
    ended = tune(command, command.script("print('hello')"))
    assert ended.status == 1
    assert "trial-without-steps" in ended.err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["missing.py"], "script-missing"),
        (["--batch-size", "4", "train.py"], "option-contradicted"),
        (["module:data", "argument"], "option-contradicted"),
        (["--seconds", "1", "train.py"], "option-invalid"),
        (["--batch-option", "--batch-size=8", "train.py"], "option-invalid"),
        (["--batch-option", "--b={batch}", "module:data"], "option-contradicted"),
    ],
)
def test_misuse(command, words, name):
    command.script("")
    ended = tune(command, *words)
    assert ended.status == 2
    assert name in ended.err
    assert "Traceback" not in ended.err


BATCHES = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--seed", type=int, default=8)
batch_size = parser.parse_args().batch_size
data = TensorDataset(torch.zeros(40, 64), torch.zeros(40, 1))
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1000000):
    for x, y in DataLoader(data, batch_size):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_batch_sizes_grow_until_the_data_has_no_more(command):
    script = command.script(BATCHES)
    ended = tune(command, "--json", "--batch-option", "--batch-size={batch}", script)
    assert ended.status == 0, ended.err
    batches = read_json("tune", ended.out)["batches"]
    assert [size["samples"] for size in batches["sizes"]][:2] == [8, 16]
    assert max(size["samples"] for size in batches["sizes"]) <= 40
    assert batches["knee"] in batches["sizes"]


OUT_OF_MEMORY = """
if batch_size > 16:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.77 GiB"
        " of which 9.12 GiB is free."
    )
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_batch_that_does_not_fit_on_a_gpu_ends_the_search_with_its_reason(command):
    text = BATCHES.replace("model = ", f"{OUT_OF_MEMORY}model = ")
    ended = tune(command, "--batch-option", "--batch-size={batch}", command.script(text))
    assert ended.status == 0, ended.err
    lines = ended.out.splitlines()
    last = next(line for line in lines if line.startswith("largest batch that was tried"))
    assert last.startswith("largest batch that was tried and fits: 16 (32: ")
    assert "GPU 0 (15.77 GiB) is out of memory: 20.00 GiB more were asked for" in last


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_an_option_that_does_not_change_the_batches_is_refused(command):
    ended = tune(command, "--batch-option", "--seed={batch}", command.script(BATCHES))
    assert ended.status == 2
    assert "does not change the batches: 8 samples a rank with 8 and with 16" in ended.err

"""The source names ``torch.cuda`` and waits for a device only where docs/reference/gpu-readiness.md says so, and why.

``src`` asks ``torch.accelerator`` for the device, so what is left of ``torch.cuda`` has a reason. A wait that can be
taken away without a test failing is a wait that nobody holds: each names its test, and scripts/device_mutants.py tries.
"""

import ast
import re
from pathlib import Path

import pytest

from accelerator_uses import (
    CUDA_HEADING,
    ONLY_A_GPU,
    PAGE,
    READERS,
    WAITS,
    WAITS_HEADING,
    cuda_uses,
    listed,
    waits,
)

ROOT = Path(__file__).parents[2]


def found(sources, finder, words):
    """Return the places that a finder finds in files with one of some words."""
    judged = (source for source in sources if not source.path.startswith(READERS))
    named = (source for source in judged if any(word in source.text for word in words))
    return {use.place for source in named for use in finder(source.path, source.tree)}


def test_what_is_left_of_torch_cuda_is_listed_with_its_reason(sources):
    table, used = set(listed(CUDA_HEADING)), found(sources, cuda_uses, ["cuda"])
    assert sorted(used - table) == [], "not on the page: use torch.accelerator"
    assert sorted(table - used) == [], "on the page, and gone"


def test_each_wait_for_the_device_is_listed_with_its_test(sources):
    table, used = set(listed(WAITS_HEADING)), found(sources, waits, [*WAITS, "Event"])
    assert sorted(used - table) == [], "not on the page: which test holds it?"
    assert sorted(table - used) == [], "on the page, and gone"


def test_each_wait_names_a_test():
    for place, last in listed(WAITS_HEADING).items():
        assert "::test_" in last or last.startswith(ONLY_A_GPU), place


def test_the_tests_that_the_page_names_exist():
    named = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 20
    for file, name in named:
        text = (ROOT / (file or "tests/device/test_waits.py")).read_text(encoding="utf-8")
        assert f"def {name}(" in text, name


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.cuda.synchronize()",
        "import torch\nuse = torch.cuda",
        "from torch import cuda",
        "from torch.cuda import Stream",
        "import torch.cuda",
        "import sys\nsys.modules['torch.cuda']",
        "import sys\nsys.modules.get('torch.cuda')",
        "import torch\ntorch.device('cuda', 1)",
        "import torch\ntorch.zeros(1, device='cuda:0')",
        "import torch\ntorch.zeros(1, device=f'cuda:{place}')",
        "batch.to('cuda')",
        "model.cuda()",
        "device.type == 'cuda'",
        "device.type in ('cpu', 'cuda')",
        "getattr(torch, 'cuda')",
        "torch.autocast('cuda')",
    ],
)
def test_a_use_of_torch_cuda_is_seen(text):
    assert cuda_uses("some.py", ast.parse(text)), text


@pytest.mark.parametrize(
    "text",
    [
        "'use torch.cuda.set_device(local_rank)'",
        "import re\nre.compile('torch.cuda')",
        "state['cuda']",
        "facts.driver.cuda",
        "software.torch_cuda == '12.4'",
        "torch.version.cuda",
        "names = {'gpu': 'gpu', 'cuda': 'cuda'}",
    ],
)
def test_a_text_that_names_it_is_none(text):
    assert cuda_uses("some.py", ast.parse(text)) == [], text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("torch.accelerator.synchronize()", ["torch.accelerator.synchronize"]),
        ("f(wait=torch.accelerator.synchronize)", ["torch.accelerator.synchronize"]),
        (
            "event = torch.Event()\nreturned = event.synchronize",
            ["torch.Event", "event.synchronize"],
        ),
        ("e = torch.Event()\ne.record(s)\ne.query()", ["torch.Event", "e.record", "e.query"]),
        ("a.wait_stream(b)\nx.record_stream(a)", ["a.wait_stream", "x.record_stream"]),
        ("from torch import Event", ["from torch import Event"]),
        ("ended = threading.Event()\nevents.record(1)\nsqueue.query()", []),
        ("'torch.cuda.synchronize'", []),
        ("self._synchronize = synchronize", []),
    ],
)
def test_a_wait_is_seen_called_or_passed_on(text, names):
    assert [use.text for use in waits("some.py", ast.parse(text))] == names

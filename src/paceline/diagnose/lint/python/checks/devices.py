"""Check which GPU a rank selects, and how it gets its local rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.objects import DOES_IT_ALL, argument, makes
from paceline.diagnose.lint.python.ranks import mentions_rank
from paceline.diagnose.lint.python.script import Script, arguments_of, keyword
from paceline.errors import Finding
from paceline.text.syntax import constant, dotted, last

_SELECTS = frozenset(
    {
        "set_device",
        "set_device_index",
        "set_default_device",
        "init_device_mesh",
        "local_rank_to_device",
    }
)


def device_not_set(script: Script) -> Iterator[Finding]:
    """Find NCCL scripts that move tensors to plain "cuda" and select no GPU per rank: all ranks use
    the first.

    Nothing is reported if anything in the file may select a GPU: set_device, device_ids, a device
    that depends on the
    rank, CUDA_VISIBLE_DEVICES.
    """
    if script.roots & (DOES_IT_ALL | {"deepspeed", "transformers", "horovod"}) or not makes(
        script, "ddp"
    ):
        return
    starts = [
        c for c in script.calls if script.full(c.func) == "torch.distributed.init_process_group"
    ]
    starts = [c for c in starts if _is_nccl(script, c) and keyword(c, "device_id") is None]
    if not starts or _selects(script):
        return
    first = next((call for call in script.calls if _takes_first(script, call)), None)
    if first is None or not loaders.runs_in_parallel(script, first):
        return
    yield script.finding(
        "device-not-set",
        first,
        "every rank uses the current GPU, and nothing selects one for each rank",
        why=(
            "all ranks of a node then share GPU 0: NCCL refuses that (Duplicate GPU detected), or"
            " memory runs out"
        ),
        fix='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before init_process_group',
    )


def _is_nccl(script: Script, call: ast.Call) -> bool:
    backend = argument(call, "backend", 0)
    if backend is None:
        return True
    values = [
        backend,
        *(
            value.value
            for value in (script.assigned(dotted(backend), call) if dotted(backend) else [])
        ),
    ]
    return any(
        isinstance(constant(value), str) and "nccl" in str(constant(value)) for value in values
    )


def _selects(script: Script) -> bool:
    if any(isinstance(n, ast.Constant) and n.value == "CUDA_VISIBLE_DEVICES" for n in script.nodes):
        return True
    for call in script.calls:
        name = last(call)
        device_ids = keyword(call, "device_ids")
        if name in _SELECTS or (device_ids is not None and constant(device_ids) is not None):
            return True
        if script.full(call.func) == "torch.cuda.device":
            return True
        if name in ("cuda", "to", "device", "DistributedDataParallel") and any(
            _may_be_own(script, a) for a in arguments_of(call)
        ):
            return True
    return False


def _may_be_own(script: Script, node: ast.expr) -> bool:
    """Return whether a device may depend on the rank: anything but plain "cuda", "cpu", a dtype or
    the model.
    """
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) and not isinstance(node.value, bool)
    if isinstance(node, ast.IfExp):
        return _may_be_own(script, node.body) or _may_be_own(script, node.orelse)
    if isinstance(node, ast.Call):
        if script.full(node.func) == "torch.device":
            return len(node.args) > 1 or any(_may_be_own(script, a) for a in node.args)
        return mentions_rank(node)
    if isinstance(node, ast.JoinedStr | ast.BinOp):
        return True
    name = dotted(node)
    if not name or script.full(node).startswith("torch."):
        return mentions_rank(node)
    if mentions_rank(node) or name.rpartition(".")[2] in ("gpu", "gpu_id", "local"):
        return True
    if "device" not in name.lower():
        return False
    values = script.assigned(name, node)
    return not values or any(_may_be_own(script, value.value) for value in values)


def _takes_first(script: Script, call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda" and not script.full(call.func):
        return not call.args and keyword(call, "device") is None
    if call.func.attr != "to" or not call.args:
        return False
    device = call.args[0]
    values = [
        device,
        *(
            value.value
            for value in (script.assigned(dotted(device), call) if dotted(device) else [])
        ),
    ]
    return any(_is_plain_cuda(script, value) for value in values)


def _is_plain_cuda(script: Script, node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_plain_cuda(script, node.body)
    if (
        isinstance(node, ast.Call)
        and script.full(node.func) == "torch.device"
        and len(node.args) == 1
    ):
        return _is_plain_cuda(script, node.args[0])
    return constant(node) == "cuda"


def local_rank_argument_unknown(script: Script) -> Iterator[Finding]:
    """Find scripts that parse --local_rank, which current launchers do not pass: torchrun sets
    LOCAL_RANK.

    torch.distributed.launch of torch 2 passes --local-rank, which argparse does not accept as
    --local_rank.
    """
    if "deepspeed" in script.roots or script.roots & DOES_IT_ALL:
        return
    if any(
        isinstance(n, ast.Constant) and n.value in ("LOCAL_RANK", "--local-rank", "--use-env")
        for n in script.nodes
    ):
        return
    for call in script.calls_of("add_argument"):
        forms = [constant(a) for a in call.args]
        if (
            "--local_rank" not in forms
            or not script.roots & {"torch"}
            or "deepspeed" in " ".join(script.imports)
        ):
            continue
        yield script.finding(
            "local-rank-argument-unknown",
            call,
            "--local_rank is no longer passed: torchrun sets LOCAL_RANK, torch.distributed.launch"
            " passes --local-rank",
            why="under torchrun every rank keeps the default and takes the same GPU",
            fix='local_rank = int(os.environ["LOCAL_RANK"])',
            severity="hint",
        )
        return

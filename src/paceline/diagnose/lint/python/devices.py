"""Which GPU a rank takes, and how it learns its local rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.objects import DOES_IT_ALL, argument, makes
from paceline.diagnose.lint.python.ranks import mentions_rank
from paceline.diagnose.lint.python.script import Script, keyword
from paceline.errors import Finding
from paceline.text.syntax import constant, dotted, last

_SELECTS = frozenset(
    {"set_device", "set_device_index", "set_default_device", "init_device_mesh", "local_rank_to_device"}
)


def device_not_set(script: Script) -> Iterator[Finding]:
    """NCCL is used, tensors go to plain "cuda", and nothing tells the ranks which GPU is theirs: all take the first.

    Silent as soon as anything in the file may choose one: set_device, device_ids, a device made from a rank,
    CUDA_VISIBLE_DEVICES.
    """
    if script.roots & (DOES_IT_ALL | {"deepspeed", "transformers", "horovod"}) or not makes(script, "ddp"):
        return
    starts = [c for c in script.calls if script.full(c.func) == "torch.distributed.init_process_group"]
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
        why="all ranks of a node then share GPU 0: NCCL refuses that (Duplicate GPU detected), or memory runs out",
        fix='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before init_process_group',
    )


def _is_nccl(script: Script, call: ast.Call) -> bool:
    given = argument(call, "backend", 0)
    if given is None:
        return True
    values = [given, *(v.value for v in (script.assigned(dotted(given), call) if dotted(given) else []))]
    return any(isinstance(constant(v), str) and "nccl" in str(constant(v)) for v in values)


def _selects(script: Script) -> bool:
    if any(isinstance(n, ast.Constant) and n.value == "CUDA_VISIBLE_DEVICES" for n in script.nodes):
        return True
    for call in script.calls:
        name = last(call)
        given = keyword(call, "device_ids")
        if name in _SELECTS or (given is not None and constant(given) is not None):
            return True
        if script.full(call.func) == "torch.cuda.device":
            return True
        if name in ("cuda", "to", "device", "DistributedDataParallel") and any(
            _may_be_own(script, a) for a in [*call.args, *(k.value for k in call.keywords)]
        ):
            return True
    return False


def _may_be_own(script: Script, node: ast.expr) -> bool:
    """Say whether a device may be the rank's own: anything but plain "cuda", "cpu", a dtype or the model."""
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
    given = call.args[0]
    values = [given, *(v.value for v in (script.assigned(dotted(given), call) if dotted(given) else []))]
    return any(_is_plain_cuda(script, value) for value in values)


def _is_plain_cuda(script: Script, node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_plain_cuda(script, node.body)
    if isinstance(node, ast.Call) and script.full(node.func) == "torch.device" and len(node.args) == 1:
        return _is_plain_cuda(script, node.args[0])
    return constant(node) == "cuda"


def local_rank_argument_unknown(script: Script) -> Iterator[Finding]:
    """The script takes --local_rank, which today's launchers do not pass: torchrun sets LOCAL_RANK instead.

    torch.distributed.launch of torch 2 passes --local-rank, which argparse does not take for --local_rank.
    """
    if "deepspeed" in script.roots or script.roots & DOES_IT_ALL:
        return
    if any(
        isinstance(n, ast.Constant) and n.value in ("LOCAL_RANK", "--local-rank", "--use-env") for n in script.nodes
    ):
        return
    for call in script.calls_of("add_argument"):
        forms = [constant(a) for a in call.args]
        if "--local_rank" not in forms or not script.roots & {"torch"} or "deepspeed" in " ".join(script.imports):
            continue
        yield script.finding(
            "local-rank-argument-unknown",
            call,
            "--local_rank is no longer passed: torchrun sets LOCAL_RANK, torch.distributed.launch passes --local-rank",
            why="under torchrun every rank keeps the default and takes the same GPU",
            fix='local_rank = int(os.environ["LOCAL_RANK"])',
            severity="hint",
        )
        return

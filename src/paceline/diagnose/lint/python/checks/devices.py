"""Check that something selects a GPU for each rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python.objects import DOES_IT_ALL, makes
from paceline.diagnose.lint.python.ranks import depends_on_rank, is_in_every_rank
from paceline.diagnose.lint.python.script import Script, argument, arguments_of, keyword, words_of
from paceline.errors import Finding
from paceline.text.syntax import constant, dotted, last

_SELECTS = words_of(
    "set_device set_device_index set_default_device init_device_mesh local_rank_to_device"
)
_MOVES = words_of("cuda to device DistributedDataParallel")
_OWN = re.compile(r"device|^(gpu|gpu_id|local)$", re.I)


def device_not_set(script: Script) -> Iterator[Finding]:
    """Find NCCL scripts that move tensors to plain "cuda" and select no GPU for each rank.

    Nothing is reported if anything in the file may select a GPU: set_device, device_ids, a device
    that depends on the rank, CUDA_VISIBLE_DEVICES.
    """
    # Most of these libraries place a rank on its GPU themselves.
    if script.roots & (DOES_IT_ALL | {"deepspeed", "transformers", "horovod"}):
        return
    # Without DDP, several models may share the first GPU on purpose.
    starts = script.calls_of("init_process_group")
    if not makes(script, "ddp") or not any(_is_nccl(script, call) for call in starts):
        return
    # A script that names the variable may give each rank one visible GPU, which is "cuda" to it.
    texts = [node.value for node in script.nodes if isinstance(node, ast.Constant)]
    if "CUDA_VISIBLE_DEVICES" in texts or any(_may_select(script, call) for call in script.calls):
        return
    first = next((call for call in script.calls if _takes_first(script, call)), None)
    if first is None or not is_in_every_rank(script, first):
        return
    yield script.finding(
        "device-not-set",
        first,
        "every rank uses the current GPU, and nothing selects one for each rank",
        why=(
            "all ranks of a node then share GPU 0, and the others idle: NCCL refuses that"
            " (Duplicate GPU detected), or memory runs out"
        ),
        fix='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before init_process_group',
    )


def _is_nccl(script: Script, call: ast.Call) -> bool:
    """Return whether a process group may be for NCCL, and is bound to no GPU by device_id."""
    if script.full(call) != "torch.distributed.init_process_group":
        return False
    if keyword(call, "device_id") is not None:
        return False
    backend = argument(call, "backend", 0)
    values = script.candidates(backend, call) if backend is not None else []
    texts = [text for text in map(constant, values) if isinstance(text, str)]
    # Without a backend torch takes NCCL for NVIDIA's GPUs; one of the command line may be NCCL.
    return not texts or any("nccl" in text for text in texts)


def _may_select(script: Script, call: ast.Call) -> bool:
    """Return whether a call may select a GPU for each rank."""
    device_ids = keyword(call, "device_ids")
    if last(call) in _SELECTS or script.full(call) == "torch.cuda.device":
        return True
    # device_ids=None leaves the placement to the module, so it selects nothing.
    if device_ids is not None and constant(device_ids) is not None:
        return True
    if last(call) not in _MOVES:
        return False
    return any(_may_be_own(script, value) for value in arguments_of(call))


def _may_be_own(script: Script, node: ast.expr) -> bool:
    """Return whether an argument may be a device that depends on the rank, or was chosen."""
    if depends_on_rank(script, node):
        return True
    values = script.candidates(node, node)
    # A device that the file does not assign comes from elsewhere, where the rank may be known.
    if len(values) == 1 and dotted(node) and _OWN.search(last(node)):
        return not script.full(node).startswith("torch.")
    for value in values:  # grows meanwhile
        if isinstance(value, ast.IfExp):
            values += [value.body, value.orelse]
        elif isinstance(value, ast.Call) and script.full(value) == "torch.device":
            values += arguments_of(value)
        # `.cuda(0)` is somebody's choice; a bool is that of non_blocking=True.
        elif type(constant(value)) is int or isinstance(value, ast.JoinedStr | ast.BinOp):
            return True
    return False


def _takes_first(script: Script, call: ast.Call) -> bool:
    """Return whether a call moves something to the current GPU: ``.cuda()`` or ``.to("cuda")``."""
    if not isinstance(call.func, ast.Attribute):
        return False
    # A full name is a function of a module, such as torch.cuda, and no method of a tensor.
    if call.func.attr == "cuda" and not script.full(call):
        return not call.args and keyword(call, "device") is None
    if call.func.attr != "to" or not call.args:
        return False
    return any(_is_plain_cuda(script, value) for value in script.candidates(call.args[0], call))


def _is_plain_cuda(script: Script, node: ast.expr) -> bool:
    while isinstance(node, ast.IfExp | ast.Call):
        if isinstance(node, ast.IfExp):
            node = node.body  # "cuda" if torch.cuda.is_available() else "cpu": NCCL runs on it
        elif script.full(node) == "torch.device" and len(node.args) == 1:
            node = node.args[0]
        else:
            return False
    return constant(node) == "cuda"

"""Check which GPU a rank selects, and how it gets its local rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.objects import DOES_IT_ALL, argument, makes
from paceline.diagnose.lint.python.ranks import mentions_rank
from paceline.diagnose.lint.python.script import Script, arguments_of, keyword, words_of
from paceline.errors import Finding
from paceline.text.syntax import constant, dotted, last

_GLOBAL_RANK = re.compile(
    r"(int\()?os\.(environ\['RANK'\]|(environ\.get|getenv)\('RANK'(, [^()]*)?\))\)?"
    r"|(torch\.)?dist(ributed)?\.get_rank\(\)"
)
_ON_ONE_NODE = re.compile(r"world_size|nnodes|num_nodes|LOCAL|device_count", re.I)
_SELECTS = words_of(
    "set_device set_device_index set_default_device init_device_mesh local_rank_to_device"
)


def device_not_set(script: Script) -> Iterator[Finding]:
    """Find NCCL scripts that move tensors to plain "cuda" and select no GPU for each rank.

    Nothing is reported if anything in the file may select a GPU: set_device, device_ids, a device
    that depends on the rank, CUDA_VISIBLE_DEVICES.
    """
    # Most of these libraries place a rank on its GPU themselves.
    if script.roots & (DOES_IT_ALL | {"deepspeed", "transformers", "horovod"}):
        return
    starts = [call for call in script.calls if _starts_nccl(script, call)]
    # Without DDP, several models may share the first GPU on purpose.
    if not makes(script, "ddp") or not starts or _selects(script):
        return
    first = next((call for call in script.calls if _takes_first(script, call)), None)
    if first is None or not loaders.runs_in_parallel(script, first):
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


def _starts_nccl(script: Script, call: ast.Call) -> bool:
    """Return whether a call creates a process group for NCCL and names no device for it."""
    if script.full(call.func) != "torch.distributed.init_process_group":
        return False
    # init_process_group(device_id=...) binds the rank's process group to one GPU.
    return _is_nccl(script, call) and keyword(call, "device_id") is None


def _is_nccl(script: Script, call: ast.Call) -> bool:
    backend = argument(call, "backend", 0)
    # Without a backend torch takes that of the machine's accelerator, NCCL for NVIDIA's GPUs.
    if backend is None:
        return True
    values = [constant(value) for value in script.candidates(backend, call)]
    texts = [value for value in values if isinstance(value, str)]
    # A backend of the command line may be NCCL, and with any other GPU 0 is shared as well.
    return not texts or any("nccl" in text for text in texts)


def _selects(script: Script) -> bool:
    """Return whether anything in the file may select a GPU for each rank."""
    # A script that names the variable may give each rank one visible GPU, which is "cuda" to it.
    if any(isinstance(n, ast.Constant) and n.value == "CUDA_VISIBLE_DEVICES" for n in script.nodes):
        return True
    return any(_may_select(script, call) for call in script.calls)


def _may_select(script: Script, call: ast.Call) -> bool:
    name, device_ids = last(call), keyword(call, "device_ids")
    if name in _SELECTS or script.full(call.func) == "torch.cuda.device":
        return True
    # device_ids=None leaves the placement to the module, so it selects nothing.
    if device_ids is not None and constant(device_ids) is not None:
        return True
    if name not in ("cuda", "to", "device", "DistributedDataParallel"):
        return False
    return any(_may_be_own(script, argument) for argument in arguments_of(call))


def _may_be_own(script: Script, node: ast.expr) -> bool:
    """Return whether an argument may be a device that depends on the rank."""
    if isinstance(node, ast.Constant):
        # `.cuda(0)` is somebody's choice; a bool is that of non_blocking=True.
        return isinstance(node.value, int) and not isinstance(node.value, bool)
    if isinstance(node, ast.IfExp):
        return _may_be_own(script, node.body) or _may_be_own(script, node.orelse)
    if isinstance(node, ast.Call) and script.full(node.func) == "torch.device":
        return len(node.args) > 1 or any(_may_be_own(script, arg) for arg in node.args)
    if isinstance(node, ast.JoinedStr | ast.BinOp) or mentions_rank(script, node):
        return True
    name = dotted(node)
    return bool(name) and _name_may_be_own(script, node, name)


def _name_may_be_own(script: Script, node: ast.expr, name: str) -> bool:
    if script.full(node).startswith("torch."):
        return False
    if name.rpartition(".")[2] in ("gpu", "gpu_id", "local"):
        return True
    if "device" not in name.lower():
        return False
    values = script.assigned(name, node)
    # A device that the file does not assign comes from elsewhere, where the rank may be known.
    return not values or any(_may_be_own(script, value.value) for value in values)


def _takes_first(script: Script, call: ast.Call) -> bool:
    """Return whether a call moves something to the current GPU: ``.cuda()`` or ``.to("cuda")``."""
    if not isinstance(call.func, ast.Attribute):
        return False
    # A full name is a function of a module, such as torch.cuda, and no method of a tensor.
    if call.func.attr == "cuda" and not script.full(call.func):
        return not call.args and keyword(call, "device") is None
    if call.func.attr != "to" or not call.args:
        return False
    return any(_is_plain_cuda(script, value) for value in script.candidates(call.args[0], call))


def _is_plain_cuda(script: Script, node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        # "cuda" if torch.cuda.is_available() else "cpu": NCCL runs on the first.
        return _is_plain_cuda(script, node.body)
    is_device = isinstance(node, ast.Call) and script.full(node.func) == "torch.device"
    if isinstance(node, ast.Call) and is_device and len(node.args) == 1:
        return _is_plain_cuda(script, node.args[0])
    return constant(node) == "cuda"


def device_by_global_rank(script: Script) -> Iterator[Finding]:
    """Find set_device with the rank among all nodes, in a file that knows the one on its node."""
    constants = (node for node in script.nodes if isinstance(node, ast.Constant))
    if all(node.value != "LOCAL_RANK" for node in constants):
        return
    for call in script.calls:
        if script.full(call.func) != "torch.cuda.set_device" or len(call.args) != 1:
            continue
        device = call.args[0]
        values = [device]
        if isinstance(device, ast.Name):
            is_plain = script.is_plain(device, call)
            values = [each.value for each in script.assigned(device.id, call)] if is_plain else []
        branches = [node for node in script.up(call) if isinstance(node, ast.If | ast.IfExp)]
        is_for_one_node = any(_ON_ONE_NODE.search(ast.unparse(node.test)) for node in branches)
        if not values or is_for_one_node or script.calls_of("device_count"):
            continue
        if all(_GLOBAL_RANK.fullmatch(ast.unparse(value)) for value in values):
            yield script.finding(
                "invalid-device-ordinal",
                call,
                "each rank selects the GPU of its global rank",
                why="on a second node the numbers go on, and there are no such GPUs",
                fix='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            )


def local_rank_argument_unknown(script: Script) -> Iterator[Finding]:
    """Find scripts that parse --local_rank, which current launchers do not pass.

    torchrun sets LOCAL_RANK. torch.distributed.launch of torch 2 passes --local-rank, which
    argparse does not accept as --local_rank.
    """
    # DeepSpeed's launcher still passes --local_rank.
    passes = script.roots & (DOES_IT_ALL | {"deepspeed"}) or "deepspeed" in " ".join(script.imports)
    # What parses it and passes all arguments on may replace it there, as many projects do.
    attributes = {node.attr for node in script.nodes if isinstance(node, ast.Attribute)}
    if passes or "local_rank" not in attributes or "torch" not in script.roots:
        return
    # A script that knows what current launchers pass or set keeps the old option for old ones.
    current = ("LOCAL_RANK", "--local-rank", "--use-env")
    if any(isinstance(node, ast.Constant) and node.value in current for node in script.nodes):
        return
    for call in script.calls_of("add_argument"):
        if "--local_rank" not in map(constant, call.args):
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

"""Extract what a training script expects of its job: ranks, devices, nodes, loader workers, address
and port.

A job is checked against these expectations, so only code that certainly runs counts. Code under a
condition, in a loop, or in a function that the file does not certainly call is ignored.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from paceline.diagnose.lint.program import (
    ALL_GPUS,
    CONSTANT,
    VARIABLE,
    Number,
    Place,
    Program,
    Runner,
)
from paceline.diagnose.lint.python.numbers import number
from paceline.diagnose.lint.python.objects import DOES_IT_ALL, LIGHTNING, makes
from paceline.diagnose.lint.python.ranks import rank_block
from paceline.diagnose.lint.python.script import (
    Function,
    Script,
    argument,
    has_unknown_arguments,
    keyword,
    words_of,
)
from paceline.text.syntax import constant, dotted, last

_DEPTH = 4
# Strategies that run one process or start their own, whatever the job's launcher does.
_OWN_LAUNCHERS = frozenset({"dp", "ddp_spawn", "ddp_fork", "ddp_notebook", "single_device", "xla"})
_LOCAL_HOST = re.compile(r"localhost|127\.\d+\.\d+\.\d+")
# A module of the user's own with such a name may set the variables of a rank.
_MAY_SET_RANKS = re.compile(r"slurm|idr|dist|env|cluster|launch|mpi|submitit|^ray\b", re.I)
_PERHAPS = (ast.For, ast.While, ast.IfExp, ast.BoolOp, ast.Lambda, ast.ClassDef, ast.match_case)
_LIBRARIES = tuple(words_of("torch numpy transformers accelerate lightning os environ distutils"))
# These read no variable with the name of a script's own setting.
_READ_NONE = words_of(
    "torch torchvision lightning pytorch_lightning accelerate numpy tqdm PIL sklearn"
)
# All variables at once, or other programs that see them.
_PASSES_VARIABLES = re.compile(
    r"(environ|getenv)\b(?!\s*(\[|\(|\.\w+\()\s*[\"'])|subprocess|os\.(system|exec|spawn)|runpy|import_"
)
_RANK_VARIABLES = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK"})
_WRITES_ENVIRONMENT = frozenset({"os.environ.setdefault", "os.environ.update", "os.putenv"})
_RANK_OF = {
    "RANK": "global",
    "SLURM_PROCID": "global",
    "LOCAL_RANK": "local",
    "SLURM_LOCALID": "local",
}
_TRAINERS = frozenset(
    {"transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer", "trl.DPOTrainer"}
)


def expectations(script: Script) -> Program:
    """Return what a script expects of the job that starts it."""
    # Lightning reads ranks from many clusters and starts the missing processes itself.
    lightning = bool(script.roots & LIGHTNING)
    return Program(
        script.name,
        runner=_runner(script),
        lightning=lightning,
        workers=_workers(script),
        needs_ranks=None if lightning else _needs_ranks(script),
        adopts_ranks=None if lightning else _adopts_ranks(script),
        spawns=_spawns(script),
        launches=_launches(script),
        port=_sets(script, "MASTER_PORT", r"\d+"),
        address=_sets(script, "MASTER_ADDR", _LOCAL_HOST.pattern),
        selects=_selects(script),
        alone=_alone(script),
        downloads=_downloads(script),
    )


def _alone(script: Script) -> str:
    others = script.roots - sys.stdlib_module_names - _READ_NONE
    text = "\n".join(script.lines)
    return "" if others or _PASSES_VARIABLES.search(text.replace("import os", "")) else text


def _place(script: Script, node: ast.AST) -> Place:
    line = getattr(node, "lineno", 1)
    return Place(line, script.lines[line - 1].strip()[:160] if line <= len(script.lines) else "")


def certain(script: Script, node: ast.AST, depth: int = 0) -> bool:
    """Return whether a node certainly runs when the file is started as a program."""
    child = node
    for parent in script.up(node):
        if isinstance(parent, ast.If) and not _holds(parent, child):
            return False
        if isinstance(parent, _PERHAPS):
            return False
        # A `try` may be there because its body fails in some places.
        if isinstance(parent, ast.Try) and (parent.handlers or child in parent.orelse):
            return False
        if isinstance(parent, Function):
            return (
                depth < _DEPTH
                and not _may_return(parent, node)
                and _is_called(script, parent, depth)
            )
        child = parent
    return True


def _holds(branch: ast.If, child: ast.AST) -> bool:
    """Return whether every rank of a run takes a branch, such as the main guard."""
    if child is branch.test:
        return True
    if child not in branch.body:
        return False
    # A job with GPUs is what is checked, so a test for CUDA alone holds in it.
    text = ast.dump(branch.test)
    return "'__main__'" in text or (
        "is_available" in text and "BoolOp" not in text and "Not()" not in text
    )


def _may_return(function: Function, node: ast.AST) -> bool:
    line = getattr(node, "lineno", 0)
    return any(isinstance(part, ast.Return) and part.lineno < line for part in ast.walk(function))


def _is_called(script: Script, function: Function, depth: int) -> bool:
    calls = [call for call in script.calls_of(function.name) if isinstance(call.func, ast.Name)]
    return any(certain(script, call, depth + 1) for call in calls)


def _runner(script: Script) -> Runner | None:
    """Return the Trainer or Fabric, or None if the file creates several that differ."""
    calls = makes(script, "trainer", "fabric")
    runners = [_of_lightning(script, call) for call in calls]
    known_runners = [runner for runner in runners if runner is not None]
    if not known_runners or len(known_runners) < len(runners):
        return None
    same = {(runner.devices, runner.num_nodes, runner.single) for runner in known_runners}
    return known_runners[0] if len(same) == 1 else None


def _of_lightning(script: Script, call: ast.Call) -> Runner | None:
    strategy, plugins = keyword(call, "strategy"), keyword(call, "plugins")
    # A ClusterEnvironment of the script decides itself about ranks and addresses.
    if plugins is not None and constant(plugins) is not None:
        return None
    if strategy is not None and any("Environment" in last(node) for node in ast.walk(strategy)):
        return None
    strategy_name = "auto" if strategy is None else constant(strategy)
    if strategy_name in _OWN_LAUNCHERS or rank_block(script, call):
        return None
    has_unknown = has_unknown_arguments(call)
    nodes = keyword(call, "num_nodes")
    absent = None if has_unknown else Number(CONSTANT, 1)
    return Runner(
        last(call),
        _devices(script, call, has_unknown=has_unknown),
        number(script, nodes) if nodes is not None else absent,
        strategy_name in ("auto", None),
        _place(script, call),
    )


def _devices(script: Script, call: ast.Call, *, has_unknown: bool) -> Number | None:
    """Return the number of devices of a Trainer or Fabric, None if it is not certain."""
    devices = keyword(call, "devices") or keyword(call, "gpus")
    if devices is None:
        return None if has_unknown else _all_gpus(script, call)
    if isinstance(devices, ast.List | ast.Tuple):
        return Number(CONSTANT, len(devices.elts))
    value = constant(devices)
    if value in ("auto", -1, "-1"):
        return _all_gpus(script, call)
    if isinstance(value, str) and "," in value:
        return Number(CONSTANT, len([part for part in value.split(",") if part.strip()]))
    count = number(script, devices)
    # gpus=0 of Lightning 1 means the CPU; Lightning 2 refuses devices=0.
    is_zero = count is not None and count.kind == CONSTANT and not count.value
    return None if is_zero else count


def _all_gpus(script: Script, call: ast.Call) -> Number | None:
    """Return all GPUs if a Trainer or Fabric certainly uses them, else None."""
    accelerator = keyword(call, "accelerator")
    on_gpus = constant(accelerator) in ("gpu", "cuda")
    # Lightning 2 takes the GPUs by default; a file that imports pytorch_lightning may be for
    # release 1, which took the CPU.
    by_default = accelerator is None and "lightning" in script.roots
    return Number(ALL_GPUS) if on_gpus or by_default else None


def _workers(script: Script) -> tuple[Number, Place] | None:
    nodes = [argument(call, "num_workers", 5) for call in makes(script, "loader")]
    arguments = script.calls_of("TrainingArguments")
    nodes += [keyword(call, "dataloader_num_workers") for call in arguments]
    candidates: list[tuple[bool, int, Number, Place]] = []
    for node in nodes:
        workers = number(script, node)
        if node is None or workers is None:
            continue
        statement = next(parent for parent in script.up(node) if isinstance(parent, ast.stmt))
        # While the workers of the training are busy, those of an evaluation mostly idle.
        is_for_training = "train" in ast.unparse(statement).lower()
        candidates.append((is_for_training, workers.value or 0, workers, _place(script, node)))
    if not candidates:
        return None
    return max(candidates, key=lambda candidate: candidate[:2])[2:]


def _needs_ranks(script: Script) -> Place | None:
    """Return where the script fails if no launcher sets the variables of its rank."""
    if script.roots & (DOES_IT_ALL | {"deepspeed", "horovod", "transformers", "mpi4py"}):
        return None
    if _may_set_ranks(script):
        return None
    for node in script.nodes:
        if (_joins(script, node) or _reads_rank(script, node)) and certain(script, node):
            return _place(script, node)
    return None


def _joins(script: Script, node: ast.AST) -> bool:
    if (
        not isinstance(node, ast.Call)
        or script.full(node.func) != "torch.distributed.init_process_group"
    ):
        return False
    return _from_environment(node)


def _reads_rank(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return False
    return constant(node.slice) in _RANK_VARIABLES and script.full(node.value) == "os.environ"


def _from_environment(call: ast.Call) -> bool:
    # With a rank, a world size or a store of its own the script may need no variables; plain
    # `env://`, the default, raises without them.
    rank_arguments = {"rank", "world_size", "store"} & {k.arg for k in call.keywords}
    if rank_arguments or len(call.args) > 1 or has_unknown_arguments(call):
        return False
    method = keyword(call, "init_method")
    return method is None or constant(method) in (None, "env://")


def _may_set_ranks(script: Script) -> bool:
    """Return whether the script, or a module of the user's, may set the variables of a rank."""
    if any(name in _RANK_VARIABLES for name, _ in _settings(script)):
        return True
    if any(script.full(call.func) in _WRITES_ENVIRONMENT for call in script.calls):
        return True
    # Scripts for srun without a launcher translate SLURM_PROCID and its like themselves.
    if any(isinstance(node, ast.Constant) and "SLURM" in str(node.value) for node in script.nodes):
        return True
    modules = {full for full in script.imports.values() if not full.startswith(_LIBRARIES)}
    return any(_MAY_SET_RANKS.search(full) for full in modules) or any(
        "*" in full for full in modules
    )


def _adopts_ranks(script: Script) -> Place | None:
    if "deepspeed" in script.roots or _may_set_ranks(script):
        return None
    # Accelerate and transformers train in one process if no launcher has set their rank.
    calls = makes(script, "accelerator") + [
        c for c in script.calls if script.full(c.func) in _TRAINERS
    ]
    return next((_place(script, call) for call in calls if certain(script, call)), None)


def _spawns(script: Script) -> tuple[Number, Place] | None:
    for call in script.calls:
        full = script.full(call.func)
        if full not in ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"):
            continue
        processes = number(script, argument(call, "nprocs", 2))
        if processes is not None and certain(script, call):
            return processes, _place(script, call)
    return None


def _launches(script: Script) -> Place | None:
    made = {id(call) for call in makes(script, "fabric")}
    assigned = (node for node in script.nodes if isinstance(node, ast.Assign))
    targets = [target for node in assigned if id(node.value) in made for target in node.targets]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    for call in script.calls:
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr != "launch":
            continue
        if isinstance(function.value, ast.Name) and function.value.id in names:
            return _place(script, call)
    return None


def _settings(script: Script) -> Iterator[tuple[str, ast.Assign]]:
    """Yield assignments to environment variables, which replace the values of the launcher."""
    for node in script.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and script.full(target.value) == "os.environ":
                    name = constant(target.slice)
                    if isinstance(name, str):
                        yield name, node


def _sets(script: Script, variable: str, pattern: str) -> tuple[str, Place] | None:
    for name, node in _settings(script):
        value = constant(node.value)
        text = str(value) if isinstance(value, str | int) else ""
        if name == variable and re.fullmatch(pattern, text) and certain(script, node):
            return text, _place(script, node)
    return None


def _selects(script: Script) -> tuple[str, Place] | None:
    for call in script.calls:
        if script.full(call.func) != "torch.cuda.set_device" or len(call.args) != 1:
            continue
        rank = _rank(script, call.args[0])
        if rank and certain(script, call):
            return rank, _place(script, call)
    return None


def _rank(script: Script, node: ast.expr, depth: int = 0) -> str:
    """Return ``global`` or ``local`` for an expression that is exactly such a rank, or empty."""
    if isinstance(node, ast.Call) and not node.args:
        return "global" if script.full(node.func) == "torch.distributed.get_rank" else ""
    source = number(script, node)
    if source is not None:
        return _RANK_OF.get(source.names[0], "") if source.kind == VARIABLE and source.names else ""
    values = script.assigned(dotted(node), node) if isinstance(node, ast.Name) else []
    if len(values) != 1 or values[0].place >= 0 or depth > _DEPTH:
        return ""
    return _rank(script, values[0].value, depth + 1)


def _downloads(script: Script) -> Place | None:
    """Return where every rank downloads a torchvision or torchaudio dataset at the same time."""
    fetching = [call for call in script.calls if constant(keyword(call, "download")) is True]
    # Once one rank has fetched the data, download=True of the others finds it complete.
    if any(rank_block(script, call) for call in fetching):
        return None
    for call in fetching:
        is_dataset = script.full(call.func).startswith(
            ("torchvision.datasets", "torchaudio.datasets")
        )
        # rank_zero_first() and main_process_first() of the libraries are contexts.
        in_context = any(isinstance(parent, ast.With) for parent in script.up(call))
        if is_dataset and not in_context and certain(script, call):
            return _place(script, call)
    return None

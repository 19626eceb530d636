"""What a training script expects of the job that starts it: ranks, devices, nodes, CPUs, port.

A job is judged by the answer, so only what certainly runs counts: what stands under a condition, in a loop, or in a
function that nothing in the file surely calls is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.program import ALL_GPUS, CONSTANT, VARIABLE, Number, Place, Program, Runner
from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.numbers import number
from paceline.diagnose.lint.python.objects import DOES_IT_ALL, LIGHTNING, argument, makes
from paceline.diagnose.lint.python.ranks import partial
from paceline.diagnose.lint.python.script import Function, Script, has_unknown_arguments, keyword
from paceline.text.syntax import constant, dotted, last

_DEPTH = 4
_OWN_LAUNCHERS = frozenset({"dp", "ddp_spawn", "ddp_fork", "ddp_notebook", "single_device", "xla"})
_LOCAL_HOST = re.compile(r"localhost|127\.\d+\.\d+\.\d+")
# A module of the user's own with such a name may set the variables of a rank.
_MAY_SET_RANKS = re.compile(r"slurm|idr|dist|env|cluster|launch|mpi|submitit|^ray\b", re.I)
_PERHAPS = (ast.For, ast.While, ast.IfExp, ast.BoolOp, ast.Lambda, ast.ClassDef, ast.match_case)
_TELLS_RANKS = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK"})
_WRITES_ENVIRONMENT = frozenset({"os.environ.setdefault", "os.environ.update", "os.putenv"})
_RANK_OF = {"RANK": "global", "SLURM_PROCID": "global", "LOCAL_RANK": "local", "SLURM_LOCALID": "local"}
_TRAINERS = frozenset({"transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer", "trl.DPOTrainer"})


def expectations(script: Script) -> Program:
    """Return what a script expects of its start."""
    lightning = bool(script.roots & LIGHTNING)
    return Program(
        script.name,
        runner=_runner(script),
        lightning=lightning,
        workers=_workers(script),
        needs_ranks=None if lightning else _needs_ranks(script),
        adopts_ranks=None if lightning else _adopts_ranks(script),
        spawns=_spawns(script),
        port=_sets(script, "MASTER_PORT", r"\d+"),
        address=_sets(script, "MASTER_ADDR", _LOCAL_HOST.pattern),
        selects=_selects(script),
        downloads=_downloads(script),
    )


def _place(script: Script, node: ast.AST) -> Place:
    line = getattr(node, "lineno", 1)
    return Place(line, script.lines[line - 1].strip()[:160] if line <= len(script.lines) else "")


def certain(script: Script, node: ast.AST, depth: int = 0) -> bool:
    """Say whether a node certainly runs when the file is started as a program."""
    child = node
    for parent in script.up(node):
        if isinstance(parent, ast.If) and not _holds(parent, child):
            return False
        if isinstance(parent, _PERHAPS):
            return False
        if isinstance(parent, ast.Try) and (parent.handlers or child in parent.orelse):
            return False
        if isinstance(parent, Function):
            return depth < _DEPTH and not _may_return(parent, node) and _is_called(script, parent, depth)
        child = parent
    return True


def _holds(branch: ast.If, child: ast.AST) -> bool:
    """Whether a branch is taken by every rank of a run: it is the program's own start, or asks for GPUs only."""
    if child is branch.test:
        return True
    if child not in branch.body:
        return False
    text = ast.dump(branch.test)
    return "'__main__'" in text or ("is_available" in text and "BoolOp" not in text and "Not()" not in text)


def _may_return(function: Function, node: ast.AST) -> bool:
    line = getattr(node, "lineno", 0)
    return any(isinstance(part, ast.Return) and part.lineno < line for part in ast.walk(function))


def _is_called(script: Script, function: Function, depth: int) -> bool:
    calls = [call for call in script.calls_of(function.name) if isinstance(call.func, ast.Name)]
    return any(certain(script, call, depth + 1) for call in calls)


def _runner(script: Script) -> Runner | None:
    """The one Trainer or Fabric; of several those that say the same."""
    made = makes(script, "trainer", "fabric")
    found = [_of_lightning(script, call) for call in made]
    known = [runner for runner in found if runner is not None]
    if not known or len(known) < len(found):
        return None
    same = {(runner.devices, runner.num_nodes, runner.single) for runner in known}
    return known[0] if len(same) == 1 else None


def _of_lightning(script: Script, call: ast.Call) -> Runner | None:
    strategy, plugins = keyword(call, "strategy"), keyword(call, "plugins")
    if plugins is not None and constant(plugins) is not None:
        return None
    if strategy is not None and any("Environment" in last(node) for node in ast.walk(strategy)):
        return None
    chosen = "auto" if strategy is None else constant(strategy)
    if chosen in _OWN_LAUNCHERS or partial(script, call):
        return None
    open_ended = has_unknown_arguments(call)
    nodes = keyword(call, "num_nodes")
    absent = None if open_ended else Number(CONSTANT, 1)
    return Runner(
        last(call),
        _devices(script, call, open_ended=open_ended),
        number(script, nodes) if nodes is not None else absent,
        chosen in ("auto", None),
        _place(script, call),
    )


def _devices(script: Script, call: ast.Call, *, open_ended: bool) -> Number | None:
    given = keyword(call, "devices") or keyword(call, "gpus")
    on = keyword(call, "accelerator")
    value = constant(given) if given is not None else ("..." if open_ended else "auto")
    if isinstance(given, ast.List | ast.Tuple):
        return Number(CONSTANT, len(given.elts))
    if value in ("auto", -1, "-1"):
        gpus = constant(on) in ("gpu", "cuda") or (on is None and "lightning" in script.roots)
        return Number(ALL_GPUS) if gpus else None
    if isinstance(value, str) and "," in value:
        return Number(CONSTANT, len([part for part in value.split(",") if part.strip()]))
    found = number(script, given)
    # an argument whose default is not a number may be "auto" or a list as well
    return found if found is None or found.kind != CONSTANT or found.value else None


def _workers(script: Script) -> tuple[Number, Place] | None:
    found: list[tuple[bool, Number, Place]] = []
    for call in loaders.data_loaders(script):
        given = argument(call, "num_workers", 5)
        workers = number(script, given)
        if given is not None and workers is not None:
            found.append((loaders.is_for_training(script, call) is True, workers, _place(script, given)))
    for call in script.calls_of("TrainingArguments"):
        given = keyword(call, "dataloader_num_workers")
        workers = number(script, given)
        if given is not None and workers is not None:
            found.append((True, workers, _place(script, given)))
    found.sort(key=lambda one: (not one[0], -(one[1].value or 0)))
    return found[0][1:] if found else None


def _needs_ranks(script: Script) -> Place | None:
    """Where the script ends if no launcher has told it its rank."""
    if script.roots & (DOES_IT_ALL | {"deepspeed", "horovod", "transformers", "mpi4py"}) or _may_tell(script):
        return None
    for node in script.nodes:
        if (_joins(script, node) or _reads_rank(script, node)) and certain(script, node):
            return _place(script, node)
    return None


def _joins(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or script.full(node.func) != "torch.distributed.init_process_group":
        return False
    return _from_environment(node)


def _reads_rank(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return False
    return constant(node.slice) in _TELLS_RANKS and script.full(node.value) == "os.environ"


def _from_environment(call: ast.Call) -> bool:
    told = {"rank", "world_size", "store"} & {k.arg for k in call.keywords}
    if told or len(call.args) > 1 or has_unknown_arguments(call):
        return False
    method = keyword(call, "init_method")
    return method is None or constant(method) in (None, "env://")


def _may_tell(script: Script) -> bool:
    """Whether the script, or a module that it imports, may set the variables of a rank itself."""
    if any(name in _TELLS_RANKS for name, _ in _settings(script)):
        return True
    if any(script.full(call.func) in _WRITES_ENVIRONMENT for call in script.calls):
        return True
    if any(isinstance(node, ast.Constant) and "SLURM" in str(node.value) for node in script.nodes):
        return True
    known = ("torch", "numpy", "transformers", "accelerate", "lightning", "os", "environ", "distutils")
    own = {full for full in script.imports.values() if not full.startswith(known)}
    return any(_MAY_SET_RANKS.search(full) for full in own) or any("*" in full for full in own)


def _adopts_ranks(script: Script) -> Place | None:
    if "deepspeed" in script.roots or _may_tell(script):
        return None
    made = makes(script, "accelerator") + [c for c in script.calls if script.full(c.func) in _TRAINERS]
    return next((_place(script, call) for call in made if certain(script, call)), None)


def _spawns(script: Script) -> tuple[Number, Place] | None:
    for call in script.calls:
        full = script.full(call.func)
        if full not in ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"):
            continue
        processes = number(script, argument(call, "nprocs", 2))
        if processes is not None and certain(script, call):
            return processes, _place(script, call)
    return None


def _settings(script: Script) -> Iterator[tuple[str, ast.Assign]]:
    """Assignments to variables of the environment, which replace what the launcher has set."""
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
    """``global`` or ``local`` for an expression that is such a rank, as it is; else an empty string."""
    if depth > _DEPTH:
        return ""
    if isinstance(node, ast.Call) and script.full(node.func) == "torch.distributed.get_rank" and not node.args:
        return "global"
    found = number(script, node)
    if found is not None:
        return _RANK_OF.get(found.names[0], "") if found.kind == VARIABLE and found.names else ""
    values = script.assigned(dotted(node), node) if isinstance(node, ast.Name) else []
    if len(values) != 1 or values[0].place >= 0 or values[0].value is node:
        return ""
    return _rank(script, values[0].value, depth + 1)


def _downloads(script: Script) -> Place | None:
    """Where torchvision or torchaudio fetch a dataset in every rank, with no rank that goes first."""
    fetching = [call for call in script.calls if constant(keyword(call, "download")) is True]
    if any(partial(script, call) for call in fetching):
        return None
    for call in fetching:
        known = script.full(call.func).startswith(("torchvision.datasets", "torchaudio.datasets"))
        waits = any(isinstance(parent, ast.With) for parent in script.up(call))
        if known and not waits and certain(script, call):
            return _place(script, call)
    return None

"""Run the scripts under Lightning and under paceline, and print what their Trainers returned."""

import importlib.util
import json
import multiprocessing
import os
import re
import sys
import types
from pathlib import Path

HERE = Path(__file__).with_name("lightning_scripts")
IMPORTS = {
    r"import lightning as L\b": "import paceline as L",
    r"from lightning\.pytorch(\.core|\.trainer)? import": "from paceline import",
    r"from lightning\.pytorch\.callbacks import": "from paceline.callbacks import",
    r"from lightning\.pytorch\.loggers import": "from paceline.loggers import",
    r"from lightning\.pytorch\.utilities import": "from paceline.trainer import",
}


def with_other_imports(text):
    for theirs, ours in IMPORTS.items():
        text = re.sub(theirs, ours, text)
    return text


def use_example_modules():
    """Make Lightning's example modules derive from paceline's, by their imports alone."""
    for name in ("boring_classes", "transformer"):
        full = f"lightning.pytorch.demos.{name}"
        theirs = importlib.util.find_spec(full)
        ours = types.ModuleType("example_modules")  # the classes are not of Lightning any more
        sys.modules[full] = ours
        exec(with_other_imports(Path(theirs.origin).read_text()), vars(ours))


def numbers(value):
    if isinstance(value, dict):
        return {name: numbers(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [numbers(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


def record(kind, calls):
    for name in ("fit", "validate", "test", "predict"):
        method = getattr(kind, name)

        def recorded(self, *args, method=method, name=name, **options):
            result = method(self, *args, **options)
            found = self.callback_metrics if name == "fit" else result
            calls.append([name, numbers(dict(found) if name == "fit" else found)])
            return result

        setattr(kind, name, recorded)


def under(library, folder, scripts, result):
    import torch

    calls, results = [], {}
    if library == "paceline":
        use_example_modules()
    record(importlib.import_module(library).Trainer, calls)
    for script in scripts:
        (folder / library / script / "data").mkdir(parents=True)
        os.chdir(folder / library / script)
        Path("data/wikitext-2.txt").write_text("a b c d e f g h " * 180)
        text = (HERE / script).read_text()
        if library == "paceline":
            text = with_other_imports(text)
        calls.clear()
        torch.manual_seed(1)
        sys.argv = [script]
        exec(compile(text, script, "exec"), {"__name__": "__main__"})
        results[script] = list(calls)
    result.send(results)


def main(folder, scripts):
    """Run both in forks of a process that has imported Lightning, which takes longer than most scripts."""
    import lightning  # noqa: F401

    fork, receivers = multiprocessing.get_context("fork"), {}
    for library in ("lightning", "paceline"):
        receivers[library], sender = fork.Pipe(duplex=False)
        fork.Process(target=under, args=(library, Path(folder), scripts, sender)).start()
        sender.close()
    print(json.dumps({library: receiver.recv() for library, receiver in receivers.items()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

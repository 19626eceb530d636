"""Run the scripts under Lightning or paceline, and print what their Trainers returned."""

import importlib.util
import json
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


def main(library, folder, scripts):
    calls = []
    if library == "paceline":
        import paceline as package

        use_example_modules()
    else:
        import lightning as package
    import torch

    record(package.Trainer, calls)
    results = {}
    for script in scripts:
        (Path(folder) / script / "data").mkdir(parents=True)
        os.chdir(Path(folder) / script)
        Path("data/wikitext-2.txt").write_text("a b c d e f g h " * 180)
        text = (HERE / script).read_text()
        if library == "paceline":
            text = with_other_imports(text)
        calls.clear()
        torch.manual_seed(1)
        sys.argv = [script]
        exec(compile(text, script, "exec"), {"__name__": "__main__"})
        results[script] = list(calls)
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])

"""Experiment trackers: Weights & Biases, MLflow and Trackio.

Each training run is one run of the tracker, over all its starts: the tracker's name for it is in
the run folder, so that a resumed or requeued job continues it. Points that were logged after the
checkpoint are kept, as in ``metrics.csv``: a resumed run logs their steps again.
"""

from __future__ import annotations

import atexit
import html
import json
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.rundir.files import RunDir, read_json, script_stem, write_whole
from paceline.text import terminal
from paceline.train.logging.csv_file import STEP
from paceline.train.logging.logger import require


class TrackerIdentity:
    """The names of the training run in trackers, kept in its run folder."""

    def __init__(
        self,
        run_dir: RunDir | None = None,  # None for a run of this process alone
    ) -> None:
        self._file = None if run_dir is None else run_dir.trackers
        self.name = "run" if run_dir is None else Path(run_dir.root).resolve().name

    def of(self, tracker: str, make: Callable[[], str]) -> str:
        """Return the name in a tracker; made at the first start, and read at all others."""
        names = self._read()
        if tracker not in names:
            names[tracker] = make()
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._file, json.dumps(names, indent=2) + "\n")
        return names[tracker]

    def _read(self) -> dict[str, str]:
        if self._file is None or not self._file.exists():
            return {}
        names: dict[str, str] = read_json(self._file)
        return names


def _close_first(close: Callable[[], None]) -> None:
    """Close a logger at the end of a script that succeeds, before its library's own exit handler.

    Exit handlers run in reverse order, and a library registers its own when its run starts. wandb's
    ends the process that ``finish`` talks to, which then fails, and with it the script.
    """
    atexit.register(lambda: None if hasattr(sys, "last_type") else close())


class WandbLogger:
    """A run of Weights & Biases (``pip install "paceline[wandb]"``).

    Args:
        project: Name of the project; None means ``WANDB_PROJECT``, or else the script's name.
        **options: Further arguments of ``wandb.init``, such as ``entity`` and ``tags``.

    Raises:
        SetupError: wandb is not installed.
    """

    def __init__(self, project: str | None = None, **options: Any) -> None:
        require("wandb", "WandbLogger")
        self._project, self._options = project, options
        self._folder: Path | None = None
        self._identity = TrackerIdentity()
        self._run: Any = None

    def bind(self, run_dir: RunDir) -> None:
        """Take the run's identity from its folder."""
        self._identity, self._folder = TrackerIdentity(run_dir), run_dir.root

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers against ``step``."""
        # As a value, not as wandb's own step: that one must grow, and a resumed run repeats steps.
        self.experiment.log({**values, STEP: step})

    def log_image(self, name: str, image: Any, step: int) -> None:
        """Log an image."""
        import wandb

        self.experiment.log({name: wandb.Image(image), STEP: step})

    def log_text(self, name: str, text: str, step: int) -> None:
        """Log a text."""
        import wandb

        self.experiment.log({name: wandb.Html(f"<pre>{html.escape(text)}</pre>"), STEP: step})

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Set the run's configuration; a resumed run may change it."""
        self.experiment.config.update(dict(values), allow_val_change=True)

    def close(self) -> None:
        """End the run; a later start continues it."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    @property
    def experiment(self) -> Any:
        """wandb's run; it starts here."""
        if self._run is None:
            import wandb

            project = self._project or wandb.setup().settings.project or script_stem(sys.argv[0])
            options: dict[str, Any] = {
                "project": project,
                "name": self._identity.name,
                "id": self._identity.of("wandb", lambda: secrets.token_hex(4)),
                "resume": "allow",
                "dir": self._folder,
            }
            self._run = wandb.init(**{**options, **self._options})
            self._run.define_metric(STEP)
            self._run.define_metric("*", step_metric=STEP)
            _close_first(self.close)
        return self._run


class MLflowLogger:
    """A run of MLflow (``pip install "paceline[mlflow]"``).

    Args:
        experiment: Name of the experiment; None means ``MLFLOW_EXPERIMENT_NAME``, or else the
            script's name.
        tracking_uri: Where runs are kept; None means ``MLFLOW_TRACKING_URI``, or MLflow's default.

    Raises:
        SetupError: mlflow is not installed.
    """

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        require("mlflow", "MLflowLogger")
        self._experiment, self._uri = experiment, tracking_uri
        self._identity = TrackerIdentity()
        self._keys: dict[str, str] = {}
        self._client: Any = None
        self._id = ""

    def bind(self, run_dir: RunDir) -> None:
        """Take the run's identity from its folder."""
        self._identity = TrackerIdentity(run_dir)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers at ``step``."""
        client = self.experiment
        for name, value in values.items():
            client.log_metric(self._id, self._key(name), value, step=step)

    def log_image(self, name: str, image: Any, step: int) -> None:
        """Log an image."""
        self.experiment.log_image(self._id, image, key=self._key(name).replace("/", "."), step=step)

    def log_text(self, name: str, text: str, step: int) -> None:
        """Log a text, as a file of the run."""
        self.experiment.log_text(self._id, text, f"{self._key(name)}/step-{step}.txt")

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Log parameters; MLflow keeps the first value of each, so a change is reported."""
        client = self.experiment
        values = {self._key(name): value for name, value in values.items()}
        present = client.get_run(self._id).data.params
        changed = [
            name for name, value in values.items() if present.get(name, str(value)) != str(value)
        ]
        if changed:
            terminal.say(f"MLflow keeps the first values of: {', '.join(changed)}")
        for name, value in values.items():
            if name not in present:
                client.log_param(self._id, name, value)

    def close(self) -> None:
        """End the run; a later start continues it."""
        if self._client is not None:
            self._client.set_terminated(self._id)
            self._client = None

    @property
    def experiment(self) -> Any:
        """MLflow's client, with a run that has started."""
        if self._client is None:
            from mlflow.tracking import MlflowClient

            client = MlflowClient(tracking_uri=self._uri)
            self._id = self._identity.of("mlflow", lambda: self._create(client))
            client.update_run(self._id, status="RUNNING")
            self._client = client
        return self._client

    def _key(self, name: str) -> str:
        """Return a name with the characters that MLflow takes; a change is reported once."""
        if name not in self._keys:
            self._keys[name] = re.sub(r"[^\w.\-/: ]", "_", name)
            if self._keys[name] != name:
                terminal.say(f"MLflow does not take the name {name!r}: {self._keys[name]!r} there")
        return self._keys[name]

    def _create(self, client: Any) -> str:
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME

        name = self._experiment or MLFLOW_EXPERIMENT_NAME.get() or script_stem(sys.argv[0])
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        return str(client.create_run(number, run_name=self._identity.name).info.run_id)


class TrackioLogger:
    """A run of Trackio (``pip install "paceline[trackio]"``).

    Args:
        project: Name of the project; None means the script's name.
        **options: Further arguments of ``trackio.init``, such as ``space_id``.

    Raises:
        SetupError: trackio is not installed.
    """

    def __init__(self, project: str | None = None, **options: Any) -> None:
        require("trackio", "TrackioLogger")
        self._project, self._options = project, options
        self._identity = TrackerIdentity()
        self._hyperparameters: dict[str, Any] = {}
        self._run: Any = None

    def bind(self, run_dir: RunDir) -> None:
        """Take the run's identity from its folder."""
        self._identity = TrackerIdentity(run_dir)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers at ``step``."""
        self.experiment.log(dict(values), step=step)

    def log_image(self, name: str, image: Any, step: int) -> None:
        """Log an image."""
        import trackio

        is_gray = image.shape[-1] == 1
        pixels = image[..., 0] if is_gray else image  # Pillow makes no image of one channel
        self.experiment.log({name: trackio.Image(pixels)}, step=step)

    def log_text(self, name: str, text: str, step: int) -> None:
        """Log a text, which Trackio renders as Markdown."""
        import trackio

        self.experiment.log({name: trackio.Markdown(text)}, step=step)

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Set the run's configuration; after the first number they are a text."""
        if self._run is None:
            self._hyperparameters.update(values)
        else:
            self.log_text("hyperparameters", json.dumps(dict(values), default=str), 0)

    def close(self) -> None:
        """End the run; a later start continues it."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    @property
    def experiment(self) -> Any:
        """trackio's run; it starts here."""
        if self._run is None:
            import trackio

            name = self._identity.of(
                "trackio", lambda: f"{self._identity.name}-{secrets.token_hex(3)}"
            )
            options: dict[str, Any] = {
                "project": self._project or script_stem(sys.argv[0]),
                "name": name,
                "resume": "allow",
                "config": self._hyperparameters,
                "embed": False,  # no dashboard inside a notebook
            }
            self._run = trackio.init(**{**options, **self._options})
            _close_first(self.close)
        return self._run

"""Export the speed of a running job in the format of Prometheus, for Grafana.

Metrics follow Prometheus's conventions: base units, and the unit in the name
(https://prometheus.io/docs/practices/naming/).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.errors import Finding, PacelineError, SetupError
from paceline.measure import speed
from paceline.rundir.files import RunDir
from paceline.text.quoting import bracketed, printable

INTERVAL_S = 5.0  # between two looks whether the run has ended
# Name of a metric, its description, and the figure of ``speed.read``; figures that are None are
# left out.
_RUN_METRICS = (
    ("paceline_steps", "Optimizer steps of this attempt.", "steps"),
    ("paceline_steps_per_second", "Optimizer steps per second.", "steps_per_s"),
    ("paceline_samples_per_second", "Samples per second of all ranks.", "samples_per_s"),
    ("paceline_tokens_per_second", "Tokens per second of all ranks.", "tokens_per_s"),
    ("paceline_loss", "Loss of rank 0 in the last step that was timed.", "loss"),
    ("paceline_epoch_left_seconds", "Time to the end of the epoch.", "loop_left_s"),
    ("paceline_attempt", "Number of the attempt; a restart counts up.", "attempt"),
    ("paceline_description_age_seconds", "Age of the launcher's last description.", "age_s"),
)
_RANK_METRICS = (
    ("paceline_rank_steps", "Optimizer steps of a rank.", "steps"),
    ("paceline_rank_data_seconds", "Time that a rank has waited for its DataLoader.", "data_s"),
    ("paceline_rank_own_seconds", "Time of a rank outside backward.", "own_s"),
)
_GPU_METRICS = (
    ("paceline_gpu_utilization_ratio", "Share of the time with a kernel running.", "utilization"),
    ("paceline_gpu_memory_used_bytes", "GPU memory in use.", "memory_used"),
    ("paceline_gpu_memory_bytes", "GPU memory.", "memory_total"),
)


def serve(run: str, *, port: int, host: str = "127.0.0.1") -> None:
    """Serve a run's metrics over HTTP until Ctrl-C, or until the run has ended.

    Raises SetupError if the run does not exist, prometheus-client is not installed, or the port is
    in use.
    """
    run_dir = speed.find(run)
    speed.read(run_dir)  # a run without a description is refused before anything is served
    prometheus = _import_prometheus()
    registry = prometheus.CollectorRegistry()
    registry.register(_Collector(run_dir, prometheus))
    try:
        prometheus.start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise SetupError(_port_in_use(host, port, error)) from None
    address = f"http://{bracketed(host)}:{port}/metrics"
    print(printable(f"metrics of {run_dir.root.name}: {address}"), flush=True)
    while not speed.read(run_dir)["outcome"]:
        time.sleep(INTERVAL_S)


def _import_prometheus() -> Any:
    try:
        import prometheus_client.core
    except ImportError as error:
        raise SetupError.of(
            "module-not-found",
            "--metrics-port needs prometheus-client, which is not installed",
            evidence=(str(error),),
            fix='pip install "paceline[metrics]"',
        ) from error
    return prometheus_client


def _port_in_use(host: str, port: int, error: OSError) -> Finding:
    return Finding(
        "port-in-use",
        f"port {port} cannot be used on {host}: {error.strerror}",
        where=f"--metrics-port {bracketed(host)}:{port}",
        fix="choose another port, or an address of this machine",
    )


class _Collector:
    """Reads the run folder whenever Prometheus asks."""

    def __init__(self, run_dir: RunDir, prometheus: Any) -> None:
        self._run_dir, self._prometheus = run_dir, prometheus

    def collect(self) -> Iterator[Any]:
        """Yield a metric family for each figure."""
        try:
            figures = speed.read(self._run_dir)
        except PacelineError:  # the folder is gone: no metrics are better than old ones
            return
        yield from self._families(_RUN_METRICS, [({}, figures)])
        ranks = [
            ({"rank": str(rank["rank"]), "host": rank["host"]}, rank) for rank in figures["ranks"]
        ]
        yield from self._families(_RANK_METRICS, ranks)
        gpus = [({"gpu": str(gpu["index"]), "host": gpu["host"]}, gpu) for gpu in figures["gpus"]]
        yield from self._families(_GPU_METRICS, gpus)
        if figures["step"]:
            yield from self._families(*_step_metrics(figures["step"]))

    def _families(
        self,
        metrics: tuple[tuple[str, str, str], ...],
        rows: list[tuple[dict[str, str], Mapping[str, Any]]],
    ) -> Iterator[Any]:
        labels = list(rows[0][0]) if rows else []
        for name, description, key in metrics:
            family = self._prometheus.core.GaugeMetricFamily(name, description, labels=labels)
            for values, row in rows:
                if row[key] is not None:
                    family.add_metric(list(values.values()), row[key])
            yield family


def _step_metrics(
    step: Mapping[str, Any],
) -> tuple[tuple[tuple[str, str, str], ...], list[tuple[dict[str, str], Mapping[str, Any]]]]:
    parts = {**step["stages"], "exchange": step["exchange"], "waiting": step["waiting"]}
    metric = ("paceline_step_seconds", "Time of a step by its parts.", "seconds")
    return (metric,), [({"part": part}, {"seconds": parts[part]}) for part in parts]

"""What Prometheus reads of a running job."""

import errno
import json
import socket
import sys
import threading
import time
import urllib.request

import click
import pytest

import run_events
from paceline.cli import measure_commands
from paceline.errors import SetupError
from paceline.measure import exporter
from paceline.rundir.files import RunDir
from unit.measure.test_top import description, rank


@pytest.fixture
def run_dir(tmp_path):
    gpu = {"host": "node-a", "index": 0, "utilization": 0.5, "memory_used": None}
    speed = description(
        time_s=time.time(),
        loss=None,
        ranks=[rank(0), rank(1, host="node-b")],
        gpus=[{**gpu, "memory_total": 80e9}],
    )
    (tmp_path / "speed.json").write_text(json.dumps(speed))
    return RunDir(tmp_path)


def free_port():
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def test_metrics_are_served_until_the_run_ends(run_dir, monkeypatch, capsys):
    port = free_port()
    monkeypatch.setattr(exporter, "INTERVAL_S", 0.05)
    server = threading.Thread(
        target=exporter.serve, args=(str(run_dir.root),), kwargs={"port": port}, daemon=True
    )
    server.start()
    text = ""
    while not text:
        try:
            with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            time.sleep(0.05)
    with socket.socket() as elsewhere:  # who listens everywhere answers there too
        assert elsewhere.connect_ex(("127.0.0.2", port)) == errno.ECONNREFUSED
    assert f": http://127.0.0.1:{port}/metrics" in capsys.readouterr().out
    assert "paceline_samples_per_second 320.0" in text
    assert 'paceline_rank_steps{host="node-b",rank="1"} 101.0' in text
    assert 'paceline_step_seconds{part="data"} 0.04' in text
    assert 'paceline_gpu_utilization_ratio{gpu="0",host="node-a"} 0.5' in text
    assert "\npaceline_loss " not in text  # it is unknown, and no number stands for that
    assert "paceline_gpu_memory_used_bytes{" not in text
    run_events.outcome(run_dir.events(0), 0)
    server.join(10)
    assert not server.is_alive()


def test_a_port_in_use_is_a_finding(run_dir):
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} cannot be used"):
            exporter.serve(str(run_dir.root), port=port)


@pytest.mark.parametrize(
    ("typed", "address"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:9400", ("::1", 9400)),
        ("node-a:", None),
        ("0", None),
        ("65536", None),
    ],
)
def test_other_machines_are_served_if_an_address_is_typed(typed, address):
    words = ["--metrics-port", typed]
    if address is None:
        with pytest.raises(click.BadParameter, match="HOST"):
            measure_commands.TOP.make_context("top", words)
    else:
        assert measure_commands.TOP.make_context("top", words).params["metrics_port"] == address


def test_without_the_library_it_says_what_to_install(run_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SetupError, match="prometheus-client, which is not installed") as raised:
        exporter.serve(str(run_dir.root), port=1)
    assert "paceline[metrics]" in raised.value.finding.fix


def test_a_folder_that_is_gone_has_no_metrics(run_dir):
    run_dir.speed.unlink()
    assert list(exporter._Collector(run_dir, None).collect()) == []

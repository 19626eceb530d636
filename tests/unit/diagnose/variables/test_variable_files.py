"""NCCL's files are read as NCCL reads them, and the environment wins."""

import time

import pytest

from paceline import env
from paceline.diagnose.variables import gather_settings, judge_settings
from paceline.diagnose.variables.gather import parse_file


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("NCCL_DEBUG=WARN\n", [(1, "NCCL_DEBUG", "WARN")]),
        ("# NCCL_DEBUG=WARN\n\nNCCL_IB_HCA==mlx5_0", [(3, "NCCL_IB_HCA", "=mlx5_0")]),
        (" # not a comment=1\n", [(1, " # not a comment", "1")]),
        ("NCCL_DEBUG\n", []),
        ("NCCL_DEBUG = INFO\n", [(1, "NCCL_DEBUG ", " INFO")]),
        ("export NCCL_DEBUG=INFO # all\n", [(1, "export NCCL_DEBUG", "INFO # all")]),
        ('NCCL_DEBUG="INFO"\n', [(1, "NCCL_DEBUG", '"INFO"')]),
    ],
)
def test_a_file_is_read_as_nccl_reads_it(text, entries):
    assert list(parse_file(text)) == entries


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A home and a system file, and an environment with nothing but what a test puts there."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {"PATH": "/usr/bin", "HOME": str(home)}
    monkeypatch.setattr(env, "snapshot", lambda: dict(environment))
    return environment, home, tmp_path / "nccl.conf"


def test_the_environment_wins_over_the_user_and_the_user_over_the_system(files):
    environment, home, system = files
    environment["NCCL_DEBUG"] = "INFO"
    (home / ".nccl.conf").write_text("NCCL_DEBUG=WARN\nNCCL_IB_TIMEOUT=22\n")
    system.write_text("NCCL_DEBUG=TRACE\nNCCL_IB_TIMEOUT=18\nNCCL_IB_TC=106\n")
    settings, where = gather_settings(system_file=str(system), home=home)
    assert settings == {"NCCL_DEBUG": "INFO", "NCCL_IB_TIMEOUT": "22", "NCCL_IB_TC": "106"}
    assert where == {"NCCL_IB_TIMEOUT": f"{home}/.nccl.conf:2", "NCCL_IB_TC": f"{system}:3"}


def test_a_named_file_replaces_the_one_of_the_home(files):
    environment, home, system = files
    (home / ".nccl.conf").write_text("NCCL_IB_TIMEOUT=22\n")
    named = home / "other.conf"
    named.write_text("NCCL_IB_SL=3\n")
    environment["NCCL_CONF_FILE"] = str(named)
    settings, _ = gather_settings(system_file=str(system), home=home)
    assert settings == {"NCCL_CONF_FILE": str(named), "NCCL_IB_SL": "3"}


def test_what_is_of_no_concern_is_not_gathered(files):
    environment, home, system = files
    environment |= {"AWS_SECRET_ACCESS_KEY": "x", "PYTHONPATH": "y", "GLOO_SOCKET_IFNAME": "eth0"}
    assert gather_settings(system_file=str(system), home=home) == (
        {"GLOO_SOCKET_IFNAME": "eth0"},
        {},
    )


def test_the_values_of_secrets_are_not_gathered(files):
    environment, home, system = files
    environment |= {"NCCL_PSK": "hunter2", "FI_X_PASSWD": "hunter2", "NCCL_IB_PKEY": "3"}
    settings, _ = gather_settings(system_file=str(system), home=home)
    assert settings == {"NCCL_PSK": "...", "FI_X_PASSWD": "...", "NCCL_IB_PKEY": "3"}


def test_odd_files_are_read_too(files):
    _, home, system = files
    system.write_bytes(b"\xff\xfe\x00=1\nNCCL_DEBUG=\xff\n")
    (home / ".nccl.conf").mkdir()
    settings, _ = gather_settings(system_file=str(system), home=home)
    assert settings["NCCL_DEBUG"] == "�"
    judge_settings(settings)


def test_mistakes_of_a_file_are_told_with_their_line(files):
    _, home, system = files
    system.write_text("export NCCL_DEBUG=INFO\nNCCL_IB_TIMEOUT=22\nNCCL_SOCKET_IFNAME =eth0\n")
    settings, where = gather_settings(system_file=str(system), home=home)
    found = judge_settings(settings, where=where)
    assert [(each.where, each.fix) for each in found] == [
        (f"{system}:1", "NCCL_DEBUG=INFO"),
        (f"{system}:3", "NCCL_SOCKET_IFNAME=eth0"),
    ]


def test_the_machine_that_runs_this_can_be_asked():
    settings, where = gather_settings()
    assert set(where) <= set(settings)


def test_judging_is_quick():
    many = {f"NCCL_NOT_A_REAL_NAME_{index}": "1" for index in range(20)} | {"NCCL_DEBUG": "INFO"}
    judge_settings({"NCCL_DEBUG": "INFO"})
    start = time.perf_counter()
    judge_settings(many)
    assert time.perf_counter() - start < 2

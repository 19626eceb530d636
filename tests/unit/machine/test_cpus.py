"""How many CPUs may be used: affinity and quotas."""

from __future__ import annotations

import pytest

from paceline.machine import cpus


@pytest.fixture
def cgroups(tmp_path):
    """A fake /sys/fs/cgroup and /proc/self/cgroup; call it with the membership and the files."""

    def make(membership: str, files: dict[str, str]) -> float | None:
        root = tmp_path / "cgroup"
        root.mkdir()
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "membership").write_text(membership)
        return cpus.cgroup_cpus(root, tmp_path / "membership")

    return make


def quota_v1(folder, quota_us, period_us):
    files = {"quota": quota_us, "period": period_us}
    return {f"cpu/{folder}cpu.cfs_{name}_us": f"{us}\n" for name, us in files.items()}


V1 = "12:cpuset:/jobs/one\n4:cpu,cpuacct:/jobs/one\n1:name=systemd:/elsewhere\n"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/jobs/one\n", {"jobs/one/cpu.max": "200000 100000\n"}, 2.0),
        (
            "0::/jobs/one\n",
            {"jobs/cpu.max": "100000 100000\n", "jobs/one/cpu.max": "400000 100000\n"},
            1.0,
        ),
        (
            "0::/jobs/one\n",
            {"jobs/cpu.max": "max 100000\n", "jobs/one/cpu.max": "50000 100000\n"},
            0.5,
        ),
        ("0::/jobs/one\n", {"jobs/two/cpu.max": "100000 100000\n"}, None),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
        (V1, quota_v1("jobs/one/", 300000, 100000), 3.0),
        (V1, quota_v1("jobs/one/", -1, 100000), None),
        (V1, quota_v1("jobs/", 50000, 25000), 2.0),
        (V1, quota_v1("elsewhere/", 1, 1), None),
        (V1, quota_v1("", 300000, 100000), 3.0),
    ],
)
def test_the_least_quota_on_the_way_to_the_root_counts(cgroups, membership, files, expected):
    assert cgroups(membership, files) == expected


def test_without_cgroups_there_is_no_quota(tmp_path):
    assert cpus.cgroup_cpus(tmp_path / "none", tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (None, (4, "CPU affinity")),
        (8.0, (4, "CPU affinity")),
        (2.0, (2, "cgroup quota of 2 CPUs")),
        (2.9, (2, "cgroup quota of 2.9 CPUs")),
        (0.5, (1, "cgroup quota of 0.5 CPUs")),
    ],
)
def test_usable_cpus_are_the_smaller_of_affinity_and_quota(monkeypatch, quota, expected):
    monkeypatch.setattr(cpus.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(cpus, "cgroup_cpus", lambda: quota)
    assert cpus.usable_cpus() == expected

"""What was found is run, unpickled or put into a job script only if nobody else can have written it."""

import json
import os
import stat
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from torch import nn, optim

import canned
from paceline import Session, env
from paceline.cli import main as cli
from paceline.errors import UsageError
from paceline.launch.plan.options import Options
from paceline.launch.run import folder as run_folder
from paceline.rundir import identity, ownership
from paceline.rundir.files import RunDir
from paceline.slurm import profile_files
from printed_json import read_json
from refusals import refusal

ME, OTHER = 1000, 1001
MINE, SHARED, PROJECT = 1000, 100, 300
GROUPS = {
    MINE: ("ada", []),
    SHARED: ("users", []),
    PROJECT: ("ada", ["ada", "bob"]),
    0: ("root", []),
}


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "in_project", "doubt"),
    [
        (ME, SHARED, 0o100644, False, ""),
        (0, 0, 0o100664, False, ""),  # root's group
        (OTHER, SHARED, 0o100600, True, "another user owns it"),
        (OTHER, SHARED, 0o041777, False, "another user owns it"),  # who can replace what is in it
        (ME, SHARED, 0o100666, True, "every user may write there"),
        (0, 0, 0o040777, True, "every user may write there"),
        (0, 0, 0o041777, False, ""),  # as /tmp: what is in it is judged by its own owner
        (ME, MINE, 0o100664, False, ""),  # umask 0002, and a group for each user
        (ME, MINE, 0o040775, False, ""),
        (ME, SHARED, 0o100664, False, "its group may write there"),
        (ME, PROJECT, 0o040775, False, "its group may write there"),  # named alike, but has members
        (ME, SHARED, 0o040775, True, ""),
        (ME, 4242, 0o100664, False, "its group may write there"),  # a group without a name
    ],
)
def test_who_can_have_written_a_file(uid, gid, mode, in_project, doubt, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: ME)
    monkeypatch.setattr(ownership.pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="ada"))
    members = lambda gid: SimpleNamespace(gr_name=GROUPS[gid][0], gr_mem=GROUPS[gid][1])  # noqa: E731
    monkeypatch.setattr(ownership.grp, "getgrgid", members)
    assert (
        ownership._doubt(SimpleNamespace(st_uid=uid, st_gid=gid, st_mode=mode), in_project) == doubt
    )


@pytest.fixture(params=["owned by others", "writable by all"])
def given_away(request, monkeypatch):
    """Make a path another user's, or writable by everybody; what is made later is this user's."""

    def give_away(path):
        if request.param == "writable by all":
            path.chmod(path.stat().st_mode | stat.S_IWOTH)
        elif os.geteuid() == 0:
            os.chown(path, 12345, 12345)
        else:  # all that is there is another user's
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
        return path

    return give_away


def refused(call, fix):
    finding = refusal(UsageError, call)
    assert finding.name == "dubious-ownership"
    assert fix in finding.fix
    assert "owner " in finding.evidence[0] and "mode " in finding.evidence[0]


@pytest.mark.parametrize("what", ["site.toml", "."])
def test_a_profile_that_was_found_is_this_users_own(what, given_away, tmp_path, monkeypatch):
    profiles = tmp_path / ".paceline" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "site.toml").write_text('[setup]\nlines = ["id"]\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert profile_files.load("site").lines == ("id",)
    given_away(profiles / what)
    typed = str(profiles / "site.toml")
    refused(lambda: profile_files.load("site"), f"--profile {typed}")
    (tmp_path / "train.py").write_text("")
    words = ["submit", "--dry-run", "--profile", "site", "train.py"]
    refused(lambda: cli.cli.main(words, standalone_mode=False)(), typed)
    assert profile_files.load(typed).lines == ("id",)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake = canned.slurm(tmp_path / "bin", monkeypatch)
    fake.answers("sbatch", "12\n")
    fake.answers("squeue", "")
    return fake


def test_a_sweep_that_was_found_is_this_users_own(given_away, slurm, tmp_path, capfd):
    (tmp_path / "train.py").write_text("")

    def typed(*words):
        assert cli.cli.main(["submit", *words], standalone_mode=False)() == 0
        return capfd.readouterr().out

    sweep = read_json("submit", typed("--json", "--param", "lr=1,2", "train.py"))["sweep"]
    again = ("--dry-run", "--again", "0-1")
    assert "job.sh" in typed(*again, "12")
    given_away(RunDir(tmp_path / sweep).job_script)
    refused(lambda: typed(*again, "12"), f"paceline submit --again 0-1 {tmp_path}")
    assert "job.sh" in typed(*again, sweep)


def test_a_job_that_is_queued_again_continues_in_its_own_folder(given_away, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(env.JOB_RESTARTS, "1")
    training = identity.Training("train.py", job="4711", digest="0a1b2c3d")
    options = Options(script="train.py")

    def planted(name):
        folder = RunDir(tmp_path / "paceline-runs" / name)
        folder.create()
        folder.training.write_text(json.dumps({"version": 1, **asdict(training)}))
        return folder.root

    def found():
        return run_folder.find_earlier(options, training, say=lambda text: None)

    strange = given_away(planted("z-4711-b"))
    refused(found, f"--run-dir paceline-runs/{strange.name}")
    if os.geteuid() == strange.stat().st_uid or os.geteuid() == 0:  # new folders are this user's
        own = planted("a-4711-b")
        assert found().name == own.name


class Payload:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("was-run",)


class Registered:
    def state_dict(self):
        return {"payload": Payload()}

    def load_state_dict(self, state):
        pass


def test_a_default_run_folder_of_others_is_read_as_plain_data(
    given_away, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)

    def session(**options):
        from paceline.train.session import run_folder as of_session

        of_session.reset()
        made = Session(**options)
        model = nn.Linear(2, 1)
        made.setup(model, optim.SGD(model.parameters(), lr=0.1))
        made.register(own=Registered())
        return made

    first = session()
    first.save(wait=True)
    root = given_away(first.run_dir.root)
    with pytest.raises(UsageError, match="checkpoint-needs-classes"):
        session().restore("latest")
    assert not (tmp_path / "was-run").exists()
    warning = capfd.readouterr().err
    assert "dubious-ownership" in warning and f"PACELINE_RUN_DIR={root}" in warning
    assert session(run_dir=root).restore("latest")
    assert (tmp_path / "was-run").exists()

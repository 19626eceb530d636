"""Profiles: what they say, what is wrong with one and in which line, and where they are found."""

from __future__ import annotations

import pytest

from paceline.errors import UsageError
from paceline.slurm import profile, profile_files
from paceline.slurm.profile import Container, ProfileSetting
from refusals import refusal

ENVIRON = {"HOME": "/home/ada", "USER": "ada", "WORK": "/work/ada"}


def read(text):
    return profile.read(text, name="site", path="site.toml", environ=ENVIRON)


def refused(text):
    finding = refusal(UsageError, read, text)
    assert finding.name == "profile-invalid"
    return finding


def test_an_empty_profile_says_nothing():
    site = read("")
    assert (site.slurm, site.sbatch, site.prefix, site.runs) == ({}, (), (), "")


def test_a_profile_is_read_whole():
    site = read(
        'description = "all"\n'
        '[slurm]\nnodes = 2\ngpus_per_node = "a100:4"\ntime = 04:00:00\nrequeue = false\nexclusive = true\n'
        'hold = false\nconstraint = "a100"\nnice = 10\nsbatch = ["--of-a-plugin=1", "-q long"]\n'
        '[setup]\nmodules = ["cuda/12.4"]\nlines = ["a=1"]\n'
        '[environment]\nA = "1"\nB = { value = "2", why = "so" }\n'
        '[environment.C]\nvalue = "3"\n'
        "[run]\nprefix = \"uv run --with 'a b'\"\nhang-timeout = 600\ncheck_finite = true\nno-probe = false\n"
        '[paths]\nruns = "~/runs/$USER"\ntmp = "$WORK/${USER}/$SLURM_JOB_ID"\n'
    )
    assert site.slurm == {
        "nodes": "2",
        "gpus_per_node": "a100:4",
        "time": "04:00:00",
        "no_requeue": True,
    }
    assert site.sbatch == (
        ("exclusive", None), ("constraint", "a100"), ("nice", "10"), ("of-a-plugin", "1"), ("qos", "long")
    )  # fmt: skip
    assert (site.modules, site.lines) == (("cuda/12.4",), ("a=1",))
    assert site.environment == (
        ProfileSetting("A", "1", "", 16),
        ProfileSetting("B", "2", "so", 17),
        ProfileSetting("C", "3", "", 18),
    )
    assert site.prefix == ("uv", "run", "--with", "a b")
    assert site.run == {"hang_timeout": "600", "check_finite": True}
    assert (site.runs, site.tmp) == ("/home/ada/runs/ada", "/work/ada/ada/$SLURM_JOB_ID")


@pytest.mark.parametrize(
    ("text", "line", "what", "fix"),
    [
        ("[slurm]\npartition = gpu\n", 2, "not TOML", 'partition = "gpu"'),
        ("[slurm\n", 1, "not TOML", "correct line 1"),
        ('a = "1\n', 1, "not TOML", "correct line 1"),
        ("[slurm]\nnodes = 1\nnodes = 2\n", 3, "not TOML", ""),
        ("[slrum]\nnodes = 1\n", 1, "no section slrum", "[slurm]"),
        ("[zzzzz]\n", 1, "no section zzzzz", "one of"),
        ("slurm = 1\n", 1, "is a section", "[slurm]"),
        ("description = 1\n", 1, "description is a text", 'description = "..."'),
        ('[slurm]\n\npartion = "gpu"\n', 3, "no key partion", 'partition = "gpu"'),
        ('[slurm]\ngpu-per-node = "4"\n', 2, "no key gpu-per-node", 'gpus-per-node = "4"'),
        ('[slurm]\nqqqqqq = "4"\n', 2, "no key qqqqqq", "an option of a plug-in"),
        ("[slurm]\nnodes = [1]\n", 2, "nodes is a text or a whole number", "nodes ="),
        ("[slurm]\nnodes = 0\n", 2, "--nodes 0", "--nodes 1"),
        ('[slurm]\ntime = "soon"\n', 2, "--time soon", "--time 2h"),
        ('[slurm]\nrequeue = "yes"\n', 2, "requeue is true or false", "requeue = true"),
        ('[slurm]\nexclusive = ["user"]\n', 2, "exclusive is a text", ""),
        ("[slurm]\nconstraint = true\n", 2, "constraint needs a value", 'constraint = "..."'),
        ('[slurm]\nhold = "yes"\n', 2, "hold is true or false", "hold = true"),
        ("[slurm]\nntasks-per-node = 4\n", 2, "has no --ntasks-per-node", ""),
        ('[slurm]\ngres = "gpu:4"\n', 2, "sets --gres itself", "--gpus-per-node 4"),
        ('[slurm]\nconstraint = "a\\nb"\n', 2, "control characters", ""),
        ("[slurm]\ndry-run = true\n", 2, "no key dry-run", ""),
        ('[setup]\nmodule = ["cuda"]\n', 2, "no key module", "modules ="),
        ('[setup]\nmodules = "cuda"\n', 2, "modules is a list of texts", "modules ="),
        ('[setup]\nmodules = ["a\\nb"]\n', 2, "is not a module", ""),
        ("[environment]\nA = 1\n", 2, "the value of A is a text in quotes", 'A = "1"'),
        ("[environment]\nA = true\n", 2, "the value of A is a text in quotes", 'A = "true"'),
        ('[environment]\n"A B" = "1"\n', 2, "not the name of a variable", ""),
        ('[environment]\nA = { value = "1", wy = "x" }\n', 2, "A has 'wy'", ""),
        ('[environment]\nA = { why = "x" }\n', 2, "A has no value", ""),
        ("[run]\nhang-timout = 3\n", 2, "no key hang-timout", "hang-timeout = 3"),
        ('[run]\nhang-timeout = "no"\n', 2, "--hang-timeout no", ""),
        ("[run]\nhang-timeout = true\n", 2, "hang-timeout is a text or a number", ""),
        (
            '[run]\ncheck-finite = "yes"\n',
            2,
            "check-finite is true or false",
            "check-finite = true",
        ),
        ("[run]\nnnodes = 2\n", 2, "no key nnodes", ""),
        ("[run]\nno-probe = true\ncheck-finite = true\n", 1, "exclude each other", ""),
        ('[run]\nprefix = "uv \'run"\n', 2, "quotes of prefix", ""),
        (
            '[paths]\nruns = "$NOWHERE/x"\n',
            2,
            "runs names $NOWHERE, which is not set here",
            "export NOWHERE=",
        ),
        ('[paths]\nruns = "$SLURM_JOB_ID"\n', 2, "runs names $SLURM_JOB_ID", ""),
        ('[paths]\nrun = "x"\n', 2, "no key run", 'runs = "x"'),
        ("[paths]\nruns = 1\n", 2, "runs is a text", ""),
        ("[setup]\nconda = true\n", 2, "conda is a text", ""),
        ('[setup]\nconda = "--help"\n', 2, "is not an environment", 'conda = "torch"'),
        ('[container]\nimage = "a.sif"\n', 1, "runtime is one of", 'runtime = "apptainer"'),
        ('[container]\nruntime = "aptainer"\n', 2, "is one of", 'runtime = "apptainer"'),
        ('[container]\nruntime = "pyxis"\n', 1, "has an image", 'image = "/images/torch.sif"'),
        ('[container]\nimages = "a.sif"\n', 2, "no key images", 'image = "a.sif"'),
        (
            '[container]\nruntime = "pyxis"\nimage = "a"\n[setup]\nconda = "torch"\n',
            5,
            "conda has no effect",
            "leave out conda",
        ),
        (
            '[container]\nruntime = "pyxis"\nimage = "a"\nmounts = ["data"]\n',
            4,
            "is not a folder to mount",
            'mounts = ["/data:/data:ro"]',
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_told_with_its_line(text, line, what, fix):
    finding = refused(text)
    assert what in finding.what
    assert finding.where == f"site.toml:{line}"
    assert fix in finding.fix


def test_a_container_is_read_and_its_paths_filled_in():
    site = read(
        '[container]\nruntime = "apptainer"\nimage = "~/torch.sif"\n'
        'mounts = ["/s/$USER:/scratch"]\noptions = ["--cleanenv"]\n'
    )
    assert site.container == Container(
        "apptainer", "/home/ada/torch.sif", ("/s/ada:/scratch",), ("--cleanenv",)
    )
    assert read('[setup]\nconda = "~/envs/torch"\n').conda == "/home/ada/envs/torch"


def test_values_are_not_filled_in_for_variables():
    (setting,) = read('[environment]\nA = "$HOME `x`"\n').environment
    assert setting.value == "$HOME `x`"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A project, a folder below it, and the user's own settings."""
    below = tmp_path / "project" / "src"
    for folder in (tmp_path / "project" / ".paceline", tmp_path / "config" / "paceline"):
        (folder / "profiles").mkdir(parents=True)
    below.mkdir()
    monkeypatch.chdir(below)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return (
        tmp_path / "project" / ".paceline" / "profiles",
        tmp_path / "config" / "paceline" / "profiles",
    )


def test_a_projects_profile_comes_before_the_users(folders):
    project, user = folders
    (user / "site.toml").write_text('description = "user"')
    assert profile_files.load("site").description == "user"
    (project / "site.toml").write_text('description = "project"')
    assert profile_files.load("site").description == "project"


def test_a_path_is_taken_as_one(folders, tmp_path):
    (tmp_path / "x.toml").write_text('description = "path"')
    assert profile_files.load(str(tmp_path / "x.toml")).description == "path"
    assert profile_files.load("../../x.toml").description == "path"


@pytest.mark.parametrize(
    ("name", "fix"), [("sight", "--profile site"), ("zzz", "write "), ("./sit.toml", "ls ")]
)
def test_an_unknown_name_is_answered_with_where_it_was_looked_for(name, fix, folders):
    project, user = folders
    (project / "site.toml").write_text("")
    finding = refusal(UsageError, profile_files.load, name)
    assert finding.name == "profile-invalid" and finding.fix.startswith(fix)
    if "/" not in name:
        assert str(user) in finding.evidence[0] and "profiles there: site" in finding.evidence[1]


def test_what_is_not_text_is_told_of(folders):
    _, user = folders
    (user / "site.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        profile_files.load("site")

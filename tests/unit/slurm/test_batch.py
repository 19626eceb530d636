"""The job script in its parts; the whole of it is compared in tests/launch/test_submit.py."""

from __future__ import annotations

import subprocess

import pytest

from paceline.diagnose.lint.job.directives import split
from paceline.slurm import batch, request
from paceline.slurm.batch import JobPlace
from paceline.slurm.profile import Container, Profile, ProfileSetting
from paceline.text import quoting

PLACE = JobPlace(
    folder="/home/ada",
    run_dir="/home/ada/runs/1",
    script="/home/ada/runs/1/job.sh",
    output="/home/ada/runs/1/slurm.out",
    paceline=("/opt/venv/bin/paceline",),
    when="2026-11-21 14:03",
)
TEXTS = [
    "plain",
    "two words",
    "it's",
    'a "b"',
    "größe",
    "$(x)",
    "`x`",
    "back\\slash",
    "a#b",
    "#",
    "%j",
    "-x",
    "a=b",
    "'",
]


def script(place=PLACE, profile=None, name="train.py", **typed):
    return batch.render(request.parse(name, (), typed=typed, profile=profile or Profile()), place)


@pytest.mark.parametrize("text", TEXTS)
def test_sbatch_reads_a_directive_as_it_was_meant(text):
    line = quoting.directive("comment", text)
    assert split(line.removeprefix("#SBATCH")) == ([f"--comment={text}"], True)


@pytest.mark.parametrize(
    "text", [*TEXTS, "", "a\nb", "\r\n", "\x1b[0m1", "\udcff\udc80 ü", "!!", "~", "*"]
)
def test_bash_reads_a_word_as_it_was_meant(text):
    command = f"printf %s {quoting.word(text)}".replace("printf %s", "printf '%s'")
    printed = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
    assert printed == text.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    "text", ["\n#SBATCH --nodes=9", "a\rb", "a\u2028#SBATCH b", "\x85#SBATCH x", "", "\n\n"]
)
def test_a_comment_stays_one(text):
    assert all(
        line.startswith("# ") and len(line.splitlines()) == 1 for line in quoting.comment(text)
    )


def test_all_directives_stand_before_the_first_command():
    lines = script(nodes="2", gpus_per_node="4", sbatch=["--hold"]).splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert [
        number for number, line in enumerate(lines) if line.startswith("#SBATCH") and number > first
    ] == []


def test_a_job_that_is_not_queued_again_does_not_ask_for_it():
    text = script(no_requeue=True)
    assert "#SBATCH --no-requeue\n" in text
    assert "paceline requeue" not in text and "#SBATCH --requeue" not in text


def test_the_signal_comes_before_the_grace_and_goes_to_the_steps():
    text = script(grace_s="300", time="2h")
    assert "#SBATCH --signal=TERM@360\n" in text and "--grace-s 300 " in text


@pytest.mark.parametrize("folder", ["/a/50%j", "/a/back\\slash"])
def test_folders_that_slurm_would_take_for_a_pattern_are_entered_by_the_shell(folder):
    place = JobPlace(**{**PLACE.__dict__, "folder": folder})
    text = script(place)
    assert "--chdir" not in text
    assert f"cd -- {quoting.word(folder)} || exit\n" in text


def test_a_percent_sign_in_the_output_is_doubled():
    place = JobPlace(**{**PLACE.__dict__, "output": "/a/50%j/slurm.out"})
    assert "#SBATCH --output=/a/50%%j/slurm.out\n" in script(place).replace('"', "")


def test_a_prefix_stands_before_the_run_alone():
    text = script(profile=Profile(name="x", prefix=("apptainer", "exec", "my image.sif")))
    assert "apptainer exec 'my image.sif' paceline run " in text
    assert (
        "$(/opt/venv/bin/paceline endpoint --run-dir /home/ada/runs/1)" in text
        and "\n/opt/venv/bin/paceline requeue " in text
    )


def test_a_container_of_apptainer_has_the_run_and_its_folders():
    box = Container("apptainer", "/img/my torch.sif", mounts=("/data:/data:ro",))
    text = script(profile=Profile(container=box), gpus_per_node="2", cpus_per_gpu="1")
    assert (
        "apptainer exec --nv --bind=/home/ada,/data:/data:ro --pwd=/home/ada"
        " '/img/my torch.sif' paceline run "
    ) in text
    assert "$(/opt/venv/bin/paceline endpoint " in text
    assert "--nv" not in script(profile=Profile(container=box))
    rocm = Container("singularity", "a.sif", options=("--rocm",))
    text = script(profile=Profile(container=rocm), gpus_per_node="2", cpus_per_gpu="1")
    assert "singularity exec --rocm --bind=" in text


def test_a_container_of_pyxis_is_asked_of_srun():
    box = Container(
        "pyxis", "nvcr.io#nvidia/pytorch:25.06-py3", ("/data",), ("--no-container-mount-home",)
    )
    place = JobPlace(**{**PLACE.__dict__, "run_dir": "/scratch/ada/1"})
    text = script(place, profile=Profile(container=box, prefix=("uv", "run")))
    command = text[text.index("srun --export=ALL --kill") :].replace("\\\n", " ")
    assert " ".join(command.split()).startswith(
        "srun --export=ALL --kill-on-bad-exit=1 --ntasks-per-node=1"
        " '--container-image=nvcr.io#nvidia/pytorch:25.06-py3'"
        " --container-mounts=/home/ada:/home/ada,/scratch/ada:/scratch/ada,/data:/data"
        " --container-workdir=/home/ada --no-container-mount-home uv run paceline run "
    )


def test_the_run_has_the_paceline_of_its_conda_environment():
    text = script(profile=Profile(conda="my torch", modules=("conda",), lines=("a=1",)))
    block = text[text.index("module load") : text.index("# if the latest")]
    assert block.splitlines() == [
        "module load conda || exit",
        "# activate is a function of the shell, which only conda's hook defines",
        'eval "$(conda shell.bash hook)" || exit',
        "conda activate 'my torch' || exit",
        "a=1",
    ]
    assert "\n    paceline run " in text and "$(/opt/venv/bin/paceline endpoint " in text


def test_a_profile_sets_up_in_the_order_of_modules_lines_and_variables():
    profile = Profile(
        name="x",
        modules=("cuda",),
        lines=("a=1",),
        environment=(ProfileSetting("B", "$a", "why\nnot"),),
        tmp="/t/$SLURM_JOB_ID",
    )
    text = script(profile=profile)
    block = text[text.index("module load") : text.index("# this script")]
    assert block.splitlines() == [
        "module load cuda || exit",
        "a=1",
        "# why",
        "# not",
        "export B='$a'",
        "# on each node, and before the variable is set: Slurm complains of a TMPDIR that is not there",
        'srun --export=ALL --ntasks-per-node=1 mkdir -p -- /t/"${SLURM_JOB_ID}" || exit',
        'export TMPDIR=/t/"${SLURM_JOB_ID}"',
        "# if the latest checkpoint is damaged: continue from the latest one that is complete",
        "export PACELINE_DAMAGED=skip",
        "",
    ]


@pytest.mark.parametrize("sbatch", [[], ["--export=NONE"]])
def test_the_ranks_have_the_environment_of_the_job_however_it_was_submitted(sbatch):
    (srun,) = [line for line in script(sbatch=sbatch).splitlines() if line.startswith("srun ")]
    assert " --export=ALL " in srun


def test_no_line_of_a_usual_script_is_too_long_to_read():
    text = script(
        nodes="2", gpus_per_node="4", cpus_per_gpu="8", hang_timeout="300", check_finite=True
    )
    assert max(len(line) for line in text.splitlines()) <= 120


def test_a_script_with_a_dash_in_front_is_not_an_option():
    assert "\n    -- -x.py || status=$?\n" in script(name="-x.py")


@pytest.mark.parametrize(
    ("typed", "directives", "calls_requeue"),
    [
        ({}, ["--requeue"], True),
        (
            {"on_node_loss": "fail"},
            ["--no-requeue"],
            True,
        ),  # Slurm would queue it again after the loss of a node
        ({"no_requeue": True}, ["--no-requeue"], False),
    ],
)
def test_who_queues_the_job_again(typed, directives, calls_requeue):
    text = script(**typed)
    assert [
        line.removeprefix("#SBATCH ")
        for line in text.splitlines()
        if "requeue" in line and "#SBATCH" in line
    ] == (directives)
    assert ("paceline requeue" in text) == calls_requeue

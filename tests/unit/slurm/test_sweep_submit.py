"""A sweep from its submission to its table: one array, a folder for each element, and those that failed again."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

import canned
import run_events
from paceline.cli import main as cli
from paceline.errors import Finding, SetupError, UsageError
from paceline.rundir import sweeps
from paceline.rundir.files import RunDir
from paceline.rundir.sweeps import SweepRecord
from paceline.slurm import record
from paceline.slurm.jobs import explanations, listing
from paceline.slurm.record import JobRecord, Requeue
from paceline.slurm.sweep import sweep_folder, sweep_rows
from paceline.train.logging import CSVLogger
from printed_json import read_json
from refusals import refusal

IMPORT = Finding("module-not-found", "rank 0 raised ModuleNotFoundError: No module named 'x'")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    fake = canned.slurm(tmp_path / "bin", monkeypatch)
    fake.answers("sbatch", "12\n", "30\n")
    fake.answers("squeue", "")
    return fake


@pytest.fixture
def typed(capfd):
    """Call a command as typed; return what it printed."""

    def call(*words):
        status = cli.cli.main(list(words), prog_name="paceline", standalone_mode=False)()
        assert status == 0
        return capfd.readouterr()

    return call


def submitted(typed, *words):
    """Submit a sweep of four elements; return its folder."""
    values = read_json(
        "submit", typed("submit", "--json", "--param", "lr=1,2,3,4", *words, "train.py").out
    )
    return Path(values["sweep"])


def ends(folder, index, status, *, loss=None, finding=IMPORT):
    """Write what the run of an element leaves."""
    run_dir = RunDir(sweeps.folder_of(folder, index))
    run_dir.create()
    run_events.start(run_dir.events(0), world_size=1)
    run_events.outcome(run_dir.events(0), status, *([finding] if status else []))
    if loss is not None:
        logger = CSVLogger(run_dir.metrics)
        logger.log({"train/loss": loss, "val/accuracy": 1 - loss}, 10)
        logger.close()


@pytest.mark.parametrize("words", [["--param", "lr=1,2"], []], ids=["sweep", "job"])
def test_a_job_whose_record_cannot_be_written_is_said_to_be_queued(
    slurm, typed, monkeypatch, words
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record, "write", full)
    finding = refusal(SetupError, typed, "submit", *words, "train.py")
    assert finding.what.startswith("job 12 is queued, but its record cannot be written: No space")
    assert finding.fix.startswith("scancel 12,")


def test_secrets_of_a_command_line_are_for_their_owner_alone(slurm, typed):
    secret = ("train.py", "--api-key", "Ahidden")
    typed("submit", "--run-dir", "job", *secret)
    typed("submit", "--run-dir", "sweep", "--param", "token=Bhidden,Chidden", *secret)
    for folder in ("job", "sweep"):
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        tellers = [path for path in files if "hidden" in path.read_text()]
        assert [path.name for path in tellers] == ["job.sh"]
        assert tellers[0].stat().st_mode & 0o777 == 0o600
    assert "--api-key Ahidden" in tellers[0].read_text(), "the job has it"


def test_a_sweep_is_one_array_with_a_folder_and_the_values_of_each_element(slurm, typed):
    folder = submitted(typed, "--array", "%2", "--qos", "long")
    (call,) = [
        call for call in slurm.calls if call.startswith("sbatch") and "test-only" not in call
    ]
    assert call == f"sbatch --parsable {folder / 'job.sh'}"
    text = (folder / "job.sh").read_text()
    assert "#SBATCH --array=0-3%2\n" in text and "#SBATCH --qos=long\n" in text
    assert sorted(path.name for path in folder.iterdir()) == [*"0123", "job.sh", "sweep.json"]
    jobs_of = [record.read(RunDir(folder / str(index))) for index in range(4)]
    assert [(job.job_id, job.values) for job in jobs_of] == [
        (f"12_{index}", {"lr": str(index + 1)}) for index in range(4)
    ]
    assert sweeps.read(folder).elements[3] == {"lr": "4"}


def test_what_is_printed_says_how_many_and_what_to_type(slurm, typed):
    out = typed("submit", "--param", "lr=1,2,3", "--array", "%2", "train.py").out
    (name,) = (path.name for path in Path("paceline-runs").iterdir())
    assert out.splitlines() == [
        "array 12, train, is queued: 3 elements, 2 at a time",
        f"their state: paceline jobs paceline-runs/{name}",
        f"follow one:  paceline follow paceline-runs/{name}/0",
    ]


def test_a_refused_array_leaves_no_folder(slurm, typed):
    slurm.fails(
        "sbatch", "sbatch: error: Batch job submission failed: Invalid job array specification"
    )
    finding = refusal(SetupError, typed, "submit", "--param", "lr=1,2", "train.py")
    assert finding.name == "slurm-refused"
    assert "MaxArraySize" in finding.fix
    assert not any(Path("paceline-runs").iterdir())


def test_the_folder_of_another_sweep_is_refused(slurm, typed):
    words = ("submit", "--param", "lr=1,2", "--run-dir", "mine", "train.py")
    typed(*words)
    assert "--again failed" in refusal(UsageError, typed, *words).fix
    Path("full").mkdir()
    (Path("full") / "notes.txt").touch()
    finding = refusal(UsageError, typed, *words[:3], "--run-dir", "full", "train.py")
    assert "is not empty" in finding.what


@pytest.mark.parametrize("option", ["--array=0-3", "--param=lr=1,2"])
def test_many_outputs_cannot_be_followed(slurm, typed, option):
    finding = refusal(UsageError, typed, "submit", option, "--follow", "train.py")
    assert finding.name == "option-contradicted"


def test_a_sweep_is_one_row_that_unfolds_by_a_metric(slurm, typed):
    folder = submitted(typed)
    ends(folder, 0, 0, loss=0.5)
    ends(folder, 1, 1)
    ends(folder, 2, 0, loss=0.25)
    slurm.answers("squeue", "12_3|PENDING||N/A|Resources\n")
    lines = typed("jobs").out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [folder.name]
    assert "pending 2/4, 1 failed" in lines[1] and " 0.25 " in lines[1]
    slurm_calls = [call for call in slurm.calls if call.startswith("squeue")]
    assert slurm_calls == ["squeue -h -r -t all -o %i|%T|%N|%S|%r -j 12"]
    out, err = typed("jobs", folder.name, "--sort", "val/accuracy", "--descending")
    assert out.splitlines() == [
        "element  lr  state      step  loss  val/accuracy",
        "      2  3   succeeded    10  0.25          0.75",
        "      0  1   succeeded    10   0.5           0.5",
        "      1  2   failed        -     -             -",
        "      3  4   pending       -     -             -",
    ]
    assert "1 of 4 elements: module-not-found: rank 0 raised ModuleNotFoundError" in err
    assert f"fix: paceline submit --again failed paceline-runs/{folder.name}" in err
    finding = refusal(UsageError, typed, "jobs", folder.name, "--sort", "val/acuracy")
    assert finding.fix == "--sort val/accuracy"
    assert "--sort loss" in refusal(UsageError, typed, "jobs", "--sort", "loss").fix
    assert "no effect" in refusal(UsageError, typed, "jobs", folder.name, "--descending").what


def test_json_has_the_elements(slurm, typed):
    folder = submitted(typed)
    ends(folder, 2, 0, loss=0.5)
    (row,) = read_json("jobs", typed("jobs", "--json").out)
    assert [element["state"] for element in row["elements"]] == [
        *("cancelled", "cancelled", "succeeded", "cancelled")
    ]
    elements = read_json("jobs", typed("jobs", "12", "--json").out)
    assert elements[2]["values"] == {"lr": "3"} and elements[2]["loss"] == 0.5


def test_failed_and_missing_elements_are_submitted_again(slurm, typed):
    folder = submitted(typed, "--array", "%2")
    ends(folder, 0, 0)
    ends(folder, 1, 1)
    RunDir(folder / "2").job.unlink()
    slurm.answers("squeue", "12_3|RUNNING|node1|2026-11-21T12:30:00|None\n")
    printed = typed("submit", "--dry-run", "--again", "failed", folder.name).out
    assert printed == f"sbatch --array=1-2%2 {folder / 'job.sh'}\n"
    earlier = record.read(RunDir(folder / "1"))
    kept = Requeue(4, 1, record.UNFINISHED)
    record.write(RunDir(folder / "1"), record.replace(earlier, requeues=(kept,)))
    values = read_json(
        "submit", typed("submit", "--json", "--again", "failed", "--time", "4h", folder.name).out
    )
    assert [element["index"] for element in values["elements"]] == [1, 2]
    assert slurm.calls[-1] == (
        f"sbatch --parsable --array=1-2%2 --time=04:00:00 {folder / 'job.sh'}"
    )
    job = record.read(RunDir(folder / "1"))
    assert (job.job_id, job.earlier_ids, job.requeues) == ("30_1", ("12_1",), (kept,))
    assert record.read(RunDir(folder / "0")).job_id == "12_0"
    assert sweeps.read(folder).jobs == ("12", "30")


def test_what_the_shell_sets_for_sbatch_counts_where_the_script_says_nothing(
    slurm, typed, monkeypatch
):
    folder = submitted(typed, "--partition", "gpu")
    ends(folder, 0, 1)
    monkeypatch.setenv("SBATCH_ACCOUNT", "physics")
    monkeypatch.setenv("SBATCH_PARTITION", "short")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    slurm.does("sbatch", "env | grep ^SBATCH_ > environ; echo 30")
    typed("submit", "--again", "failed", "--time", "4h", folder.name)
    assert (slurm.folder / "environ").read_text() == "SBATCH_ACCOUNT=physics\n"


def test_a_deleted_element_is_made_anew_with_its_values(slurm, typed):
    folder = submitted(typed)
    for index in range(3):
        ends(folder, index, 0)
    RunDir(folder / "3").job.unlink()
    (folder / "3").rmdir()
    slurm.does("sbatch", f"ls -d {folder}/3/ > ls; echo 30")  # where Slurm opens the output
    assert typed("submit", "--again", "failed", folder.name).err == ""
    assert record.read(RunDir(folder / "3")).values == {"lr": "4"}


def test_where_none_has_failed_nothing_is_submitted(slurm, typed):
    folder = submitted(typed)
    for index in range(4):
        ends(folder, index, 0)
    calls = len([call for call in slurm.calls if call.startswith("sbatch")])
    said = typed("submit", "--again", "failed", folder.name).err
    assert "is missing: nothing is submitted" in said
    assert len([call for call in slurm.calls if call.startswith("sbatch")]) == calls


def test_an_element_that_has_not_ended_is_said(slurm, typed):
    folder = submitted(typed)
    for index in range(3):
        ends(folder, index, 0)
    number = sweeps.read(folder).jobs[0]
    slurm.answers("squeue", f"{number}_3|RUNNING|node1|2026-11-21T12:30:00|None\n")
    said = typed("submit", "--again", "failed", folder.name).err
    assert "is missing, and 1 has not ended: nothing is submitted" in said


def test_elements_may_be_named_but_not_those_that_run(slurm, typed):
    folder = submitted(typed)
    ends(folder, 0, 0)
    slurm.answers("squeue", "12_3|RUNNING|node1|2026-11-21T12:30:00|None\n")
    assert (
        "element 3 is running"
        in refusal(UsageError, typed, "submit", "--again", "2-3", folder.name).what
    )
    assert "no element 9" in refusal(UsageError, typed, "submit", "--again", "9", folder.name).what
    values = read_json("submit", typed("submit", "--json", "--again", "0%1", folder.name).out)
    assert values["elements"][0]["job_id"] == "30_0"


def test_without_an_answer_of_slurm_nothing_is_submitted_again(slurm, typed):
    folder = submitted(typed)
    slurm.fails("squeue", "squeue: error: Unable to contact slurm controller")
    finding = refusal(SetupError, typed, "submit", "--again", "failed", folder.name)
    assert finding.name == "slurm-unavailable"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--nodes", "2", "SWEEP"), "--nodes has no effect"),
        (("--param", "lr=1", "SWEEP"), "--param has no effect"),
        (("SWEEP", "--time", "4h"), "options before it"),
        (("--time", "soon", "SWEEP"), "--time soon"),
        (("nowhere",), "is not the folder, the name or the array of a sweep"),
    ],
)
def test_what_has_no_effect_on_what_is_submitted_again_is_refused(slurm, typed, words, what):
    folder = submitted(typed)
    named = [folder.name if part == "SWEEP" else part for part in words]
    assert what in refusal(UsageError, typed, "submit", "--again", "failed", *named).what


def test_an_element_is_submitted_again_with_the_script_of_its_sweep(slurm, typed):
    folder = submitted(typed)
    words = record.sbatch_words(RunDir(folder / "3"), "12_3")
    assert words == ("--array=3", str(folder / "job.sh"))
    job = record.read(RunDir(folder / "3"))
    script = str(sweeps.job_script(RunDir(folder / "3"), "12_3"))
    finding = explanations.judge(None, job, log="slurm.out", tail=(), script=script)
    assert f"sbatch --array=3 {folder / 'job.sh'}" in finding.fix


def test_what_needs_one_run_is_refused_a_sweep(slurm, typed):
    folder = submitted(typed)
    for subject in (str(folder), folder.name, "12"):
        finding = refusal(UsageError, typed, "follow", subject)
        assert "is a sweep of 4 runs" in finding.what and "paceline follow" in finding.fix
    assert record.find("12_3")[0].root.name == "3"
    own_array = RunDir(Path("paceline-runs/mine-array-40_1"))
    own_array.create()
    record.write(own_array, JobRecord("40_1"))
    assert record.find("40_1")[0].root == own_array.root


def test_cancel_ends_what_has_not_ended(slurm, typed):
    folder = submitted(typed)
    slurm.answers("squeue", "12_0|COMPLETED|||\n12_2|RUNNING|n|N/A|None\n12_3|PENDING||N/A|None\n")
    slurm.answers("scancel", "")
    assert "2 of 4 elements had not ended" in typed("cancel", folder.name).err
    assert slurm.calls[-1] == "scancel 12_2 12_3"
    assert "job 12_2 is cancelled" in typed("cancel", f"{folder}/2").err
    assert "already ended" in typed("cancel", "12_0").err
    assert slurm.calls[-2] == "scancel 12_2"
    assert refusal(UsageError, typed, "cancel", "77").name == "slurm-job-unknown"
    slurm.fails("scancel", "scancel: error: Kill job error on job id 12: Access denied")
    assert "Access denied" in refusal(SetupError, typed, "cancel", "12_3").evidence[0]
    slurm.fails("squeue", "squeue: error: Unable to contact slurm controller")
    assert refusal(SetupError, typed, "cancel", "12").name == "slurm-unavailable"


def test_a_damaged_sweep_does_not_hide_the_others(slurm, typed):
    folder = submitted(typed)
    bad = Path("paceline-runs/bad")
    bad.mkdir()
    (bad / "sweep.json").write_text('{"version": 1, "jobs": ["x"], "elements": {}}')
    out, err = typed("jobs")
    assert folder.name in out
    assert "bad/sweep.json cannot be read" in err


def test_causes_are_grouped(slurm, typed):
    folder = submitted(typed)
    for index in (0, 1, 3):
        ends(folder, index, 1)
    ends(folder, 2, 1, finding=Finding("user-exception", "rank 0 raised ValueError"))
    rows = sweep_rows.gather(folder, sweeps.read(folder)).elements
    assert sweep_rows.causes(rows) == [
        ("module-not-found: rank 0 raised ModuleNotFoundError: No module named 'x'", (0, 1, 3)),
        ("user-exception: rank 0 raised ValueError", (2,)),
    ]


@pytest.mark.alone
def test_a_thousand_rows_take_less_than_a_second(slurm, tmp_path):
    """Twenty sweeps of fifty elements, each with events, metrics and a job that Slurm remembers."""
    lines = []
    for number in range(20):
        folder = tmp_path / "paceline-runs" / f"sweep-{number}"
        elements = {index: {"lr": str(index)} for index in range(50)}
        sweep_folder.create(folder, list(elements))
        made = SweepRecord((str(number + 1),), submitted_ns=time.time_ns(), elements=elements)
        sweep_folder.record_array(folder, made, list(elements), job=JobRecord(str(number + 1)))
        for index in elements:
            ends(folder, index, 0, loss=0.5)
            lines.append(f"{number + 1}_{index}|COMPLETED|node1|2026-11-21T12:30:00|None\n")
    slurm.answers("squeue", "".join(lines))
    took = []
    for _ in range(3):  # what runs on the same core beside it costs time too
        began = time.perf_counter()
        assert listing.jobs(None, as_json=True) == 0
        took.append(time.perf_counter() - began)
    assert min(took) < 1.0, took


def test_a_sweep_that_was_cancelled_says_so_after_slurm_has_forgotten_it(slurm, typed):
    folder = submitted(typed)
    ends(folder, 0, 0)
    slurm.answers("squeue", "12_1|RUNNING|n|N/A|None\n12_2|PENDING||N/A|None\n")
    slurm.answers("scancel", "")
    typed("cancel", folder.name)
    ends(folder, 1, 143)
    slurm.answers("squeue", "")
    assert "ended 1/4, 3 cancelled" in typed("jobs").out
    again = "3 of 4 elements were cancelled; to submit them again: paceline submit --again 1-3"
    assert again in typed("jobs", folder.name).err
    said = typed("submit", "--again", "failed", folder.name).err
    assert "nothing is submitted" in said and again in said
    typed("submit", "--again", "1-3", folder.name)
    assert "--array=1-3" in slurm.calls[-1]

"""submit and map in Slurm: one job or one array, whose script makes the call; what cannot work is refused before."""

import asyncio
import threading
from pathlib import Path

import pytest

import canned
import paceline
import run_events
from paceline.errors import Finding, PacelineError, SetupError, UsageError
from paceline.functions import direct, pickles
from paceline.rundir import sweeps
from paceline.rundir.files import RunDir
from refusals import refusal

PRIVATE = ("job.sh", "function.pkl", "arguments.pkl")
LOCK = threading.Lock()


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake = canned.slurm(tmp_path / "bin", monkeypatch)
    fake.answers("sbatch", "12\n")
    fake.answers("squeue", "12|RUNNING|node1|N/A|None\n")
    return fake


def square(x):
    return x * x


def ends(folder, status, finding=None, *, result=None):
    """Write what the run of a job leaves."""
    run_dir = RunDir(Path(folder))
    run_dir.create()
    run_events.start(run_dir.events(0), world_size=1)
    run_events.outcome(run_dir.events(0), status, *([finding] if finding else []))
    if not status:
        pickles.write_result(run_dir.result, result)


def test_a_call_of_one_process_starts_without_a_launcher(slurm):
    job = paceline.submit(square, 5, time="1h", cpus_per_node=4)
    script = (job.folder / "job.sh").read_text()
    assert f"paceline call {job.folder} || status=$?" in script
    assert "#SBATCH --time=01:00:00" in script and "#SBATCH --job-name=square" in script
    assert "paceline run" not in script and "paceline endpoint" not in script
    assert (job.id, job.status) == ("12", "running")
    modes = {name: (job.folder / name).stat().st_mode & 0o777 for name in PRIVATE}
    assert modes == dict.fromkeys(PRIVATE, 0o600), "arguments may be secret"


@pytest.mark.parametrize(
    "keywords", [{"nodes": 2}, {"nproc_per_node": 1}, {"gpus_per_node": 2, "cpus_per_gpu": 1}]
)
def test_a_call_on_ranks_starts_under_the_launcher(slurm, keywords):
    job = paceline.submit(square, 5, **keywords)
    script = (job.folder / "job.sh").read_text()
    assert "paceline run --rdzv-endpoint" in script
    assert "paceline.functions.in_job" in script


def test_the_call_is_in_the_run_folder_when_the_job_is_queued(slurm, tmp_path):
    slurm.does("sbatch", f"ls {tmp_path}/paceline-runs/* > {tmp_path}/listed; echo 12")
    job = paceline.submit(square, 5)
    assert {"function.pkl", "arguments.pkl"} <= set((tmp_path / "listed").read_text().split())
    assert pickles.load(RunDir(job.folder).arguments) == (5,)


def test_a_map_is_one_array_with_a_throttle(slurm):
    jobs = paceline.map(square, range(20), parallel=8, time=10)
    (call,) = [call for call in slurm.calls if call.startswith("sbatch --parsable")]
    folder = jobs[0].folder.parent
    assert call.endswith(f"{folder}/job.sh")
    assert "#SBATCH --array=0-19%8" in (folder / "job.sh").read_text()
    assert [job.id for job in jobs] == [f"12_{index}" for index in range(20)]
    sweep = sweeps.read(folder)
    assert sweep is not None and sweep.elements[3] == {"item": "3"}
    assert [job.folder for job in paceline.Job.load_all(folder)] == [job.folder for job in jobs]


def test_a_map_of_nothing_submits_nothing(slurm):
    assert paceline.map(square, []) == []
    assert slurm.calls == []


def test_results_and_failures_come_from_the_run_folder(slurm):
    good, bad = paceline.map(square, [2, 3])
    assert not good.done()
    ends(good.folder, 0, result=4)
    ends(bad.folder, 1, Finding("user-exception", "rank 0 raised ValueError: three"))
    assert (good.result(), good.exception(), good.status) == (4, None, "succeeded")
    error = bad.exception()
    assert isinstance(error, paceline.JobError) and isinstance(error, PacelineError)
    assert (error.finding.name, bad.status) == ("user-exception", "failed")
    with pytest.raises(paceline.JobError, match="rank 0 raised ValueError"):
        bad.result()
    assert {job.id for job in paceline.as_completed([bad, good], timeout=5)} == {good.id, bad.id}


def test_another_process_finds_a_job_by_its_folder_name_or_id(slurm):
    job = paceline.submit(square, 5)
    ends(job.folder, 0, result=25)
    for subject in (job.folder, job.folder.name, "12"):
        assert paceline.Job(subject).result(0) == 25


def test_waiting_has_an_end(slurm):
    job = paceline.submit(square, 5)
    with pytest.raises(TimeoutError):
        job.result(timeout=0.1)


def test_jobs_can_be_awaited(slurm):
    first, second = paceline.map(square, [2, 3])
    ends(first.folder, 0, result=4)
    ends(second.folder, 0, result=9)

    async def both():
        return await asyncio.gather(first, second)

    assert asyncio.run(both()) == [4, 9]


def test_cancel_ends_the_job_in_slurm(slurm):
    job = paceline.submit(square, 5)
    slurm.answers("scancel", "")
    job.cancel()
    assert "scancel 12" in slurm.calls


def test_what_cannot_be_pickled_creates_no_folder(slurm, tmp_path):
    assert refusal(UsageError, paceline.submit, square, LOCK).name == "not-picklable"
    finding = refusal(UsageError, paceline.map, square, [1, LOCK])
    assert finding.what.startswith("item 1 cannot be pickled")
    assert not (tmp_path / "paceline-runs").exists()


def test_a_refusal_of_sbatch_leaves_no_folder(slurm, tmp_path):
    slurm.fails("sbatch", "sbatch: error: invalid account or partition")
    assert refusal(SetupError, paceline.submit, square, 5).name.startswith("slurm-")
    assert refusal(SetupError, paceline.map, square, [5]).name.startswith("slurm-")
    assert list((tmp_path / "paceline-runs").iterdir()) == []


def test_without_slurm_there_is_another_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = refusal(SetupError, paceline.submit, square, 5)
    assert finding.name == "slurm-unavailable" and 'where="local"' in finding.fix


@pytest.mark.parametrize(
    ("keywords", "name"),
    [
        ({"where": "cloud"}, "option-invalid"),
        ({"node": 2}, "option-unknown"),
        ({"time": "soon"}, "option-invalid"),
        ({"run_dir": "bin"}, "option-contradicted"),
    ],
)
def test_a_wrong_option_is_refused(slurm, keywords, name):
    assert refusal(UsageError, paceline.submit, square, 5, **keywords).name == name
    assert refusal(UsageError, paceline.map, square, [5], **keywords).name == name
    assert slurm.calls == []


@pytest.mark.parametrize("parallel", [0, -1, "8", True, 1.5])
def test_parallel_is_a_number_of_jobs(slurm, parallel):
    assert refusal(UsageError, paceline.map, square, [5], parallel).name == "option-invalid"


def test_a_folder_without_a_call_is_refused_and_stays_as_it_is(tmp_path):
    assert refusal(UsageError, direct.call, tmp_path).name == "input-unreadable"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_job_is_refused(slurm):
    assert refusal(UsageError, paceline.Job, "4711").name == "slurm-job-unknown"

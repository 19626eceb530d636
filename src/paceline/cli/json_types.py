"""What ``--json`` of each command prints, as types, from which ``json_schema`` makes JSON Schemas.

Where a command prints a dataclass as it is, that dataclass is the type, so that its fields are
written once. The other types are what a ``to_json`` returns. The comment of a field becomes its
description in the schema. Tests compare what each command prints with its schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from paceline.cli.translate.translate import TranslatedLine
from paceline.diagnose.catalogue.shelf import Page
from paceline.diagnose.doctor.facts import Facts
from paceline.errors import Finding, Notice
from paceline.launch.monitor.rare_delays import RareDelay
from paceline.launch.monitor.stage_times import Suspect
from paceline.launch.probe.loader_commands import LoaderFacts, LoaderSetting
from paceline.measure.bench.brake import Brake
from paceline.measure.bench_file import BenchFile, WorldFigures
from paceline.measure.forecast.prediction import Forecast
from paceline.measure.forecast.request import Cost
from paceline.measure.intervals import Interval
from paceline.measure.report.regression import RunComparison
from paceline.measure.tune.batches import BatchSize
from paceline.slurm.jobs.run_rows import RunRow
from paceline.why.rank_state import Account


class FindingData(Finding):
    """One finding: a fault, its evidence, and what to do."""

    code: str  # a code such as NET001, which ``paceline explain`` takes
    severity: Literal["error", "warning", "hint"]


class FindingsData(TypedDict):
    """Findings; the likely cause, or the gravest one, comes first."""

    findings: list[FindingData]  # empty if nothing was found


class CheckpointData(TypedDict):
    """A committed checkpoint."""

    name: str  # name of its folder
    path: str  # path of its folder
    step: int  # optimizer steps before it
    epoch: int  # epochs before it
    metric: float | None  # value by which the best one is chosen; null without one
    mode: str  # min or max; empty without a metric
    world_size: int  # number of ranks that wrote it
    bytes: int  # size of its files
    time_ns: int  # when it was committed, in nanoseconds since 1970
    age_s: float  # seconds since then
    torch: str  # version of torch that wrote it
    latest: bool  # whether it is the last one
    best: bool  # whether its metric is the best one


class CheckpointVerdictData(TypedDict):
    """Whether the files of a checkpoint match their checksums."""

    path: str  # the folder that was read
    whole: bool  # whether all files match
    findings: list[FindingData]  # what does not


class DoctorData(TypedDict):
    """One machine."""

    findings: list[FindingData]  # the gravest first
    facts: Facts  # what was read


class HostData(DoctorData):
    """One host of ``paceline run --check-only``."""

    host: str  # its name


class CheckOnlyData(TypedDict):
    """The machines of a run; errors that they share come once."""

    findings: list[FindingData]  # of all hosts
    nodes: list[HostData]  # each host by itself


class ObservedRunData(TypedDict):
    """What the ranks of a run do."""

    run: str  # identifies the run on this host
    verdict: str  # who waits for whom, in one word
    notice: Notice  # the same in sentences
    finding: FindingData | None  # a hang that is proven, or likely
    ranks: list[Account]  # each rank


class WhyData(TypedDict):
    """All runs that were observed."""

    findings: list[FindingData]  # those of the runs
    runs: list[ObservedRunData]  # each run
    missed: list[str]  # hosts that could not be observed, and why


class SuspectData(Suspect):
    """A rank that the others may wait for."""

    host: str  # its host


class RareDelayData(RareDelay):
    """What makes some steps long."""

    host: str  # host of the rank; empty for all ranks


class StepData(TypedDict):
    """Where the time of a step goes, in seconds."""

    seconds: float  # the usual step
    stages: Mapping[str, float]  # data, forward, backward, optimizer, other
    exchange: float  # exchange of gradients that nothing else hides
    waiting: float  # wait for the last rank
    waited_for: Mapping[str, float]  # shares of that wait, by the rank that came last
    named: SuspectData | None  # the rank that is proven to hold the others up
    suspects: list[SuspectData]  # ranks that may
    timed_steps: int  # steps that were timed
    mean: float  # the mean step of the run
    rare: list[RareDelayData]  # what makes some steps longer than the usual one


class SummaryData(TypedDict, total=False):
    """The figures of a run; few of them if no optimizer step was seen."""

    ranks: int  # number of ranks
    seconds: float  # duration of the run
    steps: int  # optimizer steps
    steps_per_s: float  # of the median rank
    data_share: float  # part of the time that waits for data
    slowest_rank: int  # the rank that needs most time for itself
    slowest_host: str  # its host
    slowest_ratio: float  # its time relative to that of the median rank
    step: StepData | None  # null if too few steps were timed
    ungrouped: bool  # whether the ranks trained without exchanging anything
    checks: int  # comparisons of the ranks' parameters that agreed
    checked_step: int  # step of the last of them


class RunData(TypedDict):
    """The end of a run."""

    exit_status: int  # 0 if it succeeded
    findings: list[FindingData]  # the cause of the failure first; warnings of a run that succeeded
    summary: SummaryData | None  # null if it failed


class ProofData(TypedDict):
    """Whether the loss of several ranks is that of one."""

    state: str  # proven, mixes, not judged
    reason: str  # why it was not judged, or what is mixed
    error: float | None  # relative difference of the losses
    findings: list[FindingData]  # the mistake, if it is known
    evidence: list[str]  # the figures


class RankSpeedData(TypedDict):
    """Counters of one rank."""

    rank: int  # its number
    host: str  # its host
    steps: int  # optimizer steps
    batches: int  # batches
    seconds: float  # time from the first step to the last
    data_s: float  # of it, wait for data
    own_s: float  # of it, all but waits for other ranks
    cpu_wait_s: float  # wait for a CPU that others use
    watched_s: float  # time in which that wait was measured
    loops: int  # training loops that it has begun
    open_batches: int  # batches of the current loop
    loop_length: int  # batches of a whole loop; 0 if unknown
    loss: float | None  # the last loss
    samples: int  # samples of a batch
    tokens: int  # tokens of a batch
    memory_bytes: int  # memory of its process
    memory_growth: float  # bytes by which it grows in a step
    gpu_memory_bytes: int  # memory on the GPU
    gpu_memory_growth: float  # bytes by which it grows in a step


class SpeedData(TypedDict):
    """The speed of a run."""

    version: int  # of this format
    time_s: float  # when it was written, in seconds since 1970
    attempt: int  # restarts before
    steps: int  # optimizer steps
    steps_per_s: float  # of the last seconds; of the whole run at its end
    loss: float | None  # the last loss
    samples_per_batch: int  # over all ranks
    tokens_per_batch: int  # over all ranks
    memory_bytes: int  # memory of the largest process
    gpu_memory_bytes: int  # memory on the fullest GPU
    batches_per_step: float  # more than 1 with gradient accumulation
    step: StepData | None  # null if too few steps were timed
    ranks: list[RankSpeedData]  # each rank
    gpus: list[Any]  # what NVML says of each GPU
    age_s: float  # seconds since ``time_s``
    samples_per_s: float  # over all ranks
    tokens_per_s: float  # over all ranks
    loop_left_s: float | None  # seconds to the end of the training loop
    findings: list[FindingData]  # what most steps wait for
    outcome: Literal["", "succeeded", "failed", "unfinished", "stopped"]  # empty while it runs


class BrakeData(Brake):
    """What holds scaling back."""

    code: str  # code of the finding; empty without one


class BenchData(BenchFile):
    """Throughput by number of ranks."""

    version: int  # of this format
    kind: Literal["bench"]
    run_dir: str  # the run folder
    steps: int  # optimizer steps of a trial
    has_settled: bool  # whether steps had become steady after the warm-up
    threads: int | None  # threads of a rank; null if they were not set
    figures: list[WorldFigures]  # of each number of ranks, the smallest first
    brake: BrakeData  # what holds scaling back
    findings: list[FindingData]  # why some numbers of ranks could not be measured


class NetworkPointData(TypedDict):
    """all_reduce of one size."""

    bytes: int  # size of the tensor
    seconds: float  # median time
    low: float  # lower end of its interval
    high: float  # upper end
    bus_bytes_per_s: float  # bus bandwidth, as nccl-tests define it
    rounds: int  # rounds that were measured
    repeats: int  # calls of a round


class NetworkData(TypedDict):
    """Time of all_reduce by size."""

    version: int  # of this format
    kind: Literal["network"]
    backend: str  # gloo or nccl
    world: int  # number of ranks
    num_nodes: int  # number of nodes
    hosts: Mapping[str, str]  # host by rank
    points: list[NetworkPointData]  # the smallest size first


class ForecastData(Forecast):
    """Throughput on more ranks than were measured."""

    version: int  # of this format
    kind: Literal["forecast"]
    should_scale: bool  # whether a second rank is worth at least half of itself
    costs: list[Cost]  # with ``--samples``


class MemoryRateData(Interval):
    """Speed with batches from memory, which is what faster loading can reach."""

    threads: int  # threads of a rank


class TrialData(LoaderSetting):
    """Speed with one setting of the loader."""

    value: float  # the estimate
    low: float  # lower end of its interval
    high: float  # upper end
    windows: int  # windows that were measured


class TrialFailureData(LoaderSetting):
    """A setting that failed."""

    message: str  # how


class BatchesData(TypedDict):
    """Speed by batch size, for ``--batch-option``."""

    sizes: list[BatchSize]  # the smallest first
    knee: BatchSize  # from here on a larger batch is hardly faster
    largest: BatchSize  # the last one that worked
    end: str  # why no larger one was tried


class TuneData(TypedDict):
    """Settings of the DataLoader, and how fast they are."""

    name: str  # the script
    ranks: int  # number of ranks
    loader: LoaderFacts  # the loader as the script makes it
    cpus_per_rank: int  # CPUs of a rank
    unit: Literal["samples/s", "batches/s"]  # of the rates
    in_memory: list[MemoryRateData]  # the limit: batches from memory
    waiting_share: Interval | None  # part of a step that waits for data, with the script's settings
    data_is_bottleneck: bool | None  # null if it is unknown
    settings: list[TrialData]  # the fastest first
    failures: list[TrialFailureData]  # settings that failed
    best: LoaderSetting  # the one to use
    speed_up: Interval  # by it, as a multiple
    waiting_share_best: Interval | None  # part of a step that waits for data, with it
    paste: list[str]  # lines to paste; empty if there is nothing to change
    complete: bool  # whether there was time for all settings
    batches: BatchesData | None  # null without ``--batch-option``


class VerdictData(TypedDict):
    """One property on one number of ranks."""

    state: str  # proven, broken, note, not judged
    reason: str  # why
    finding: str | None  # name of the finding


class PropertyData(TypedDict):
    """One property of training that must not depend on the number of ranks."""

    name: str  # such as rows, gradients, parameters
    worlds: Mapping[str, VerdictData]  # by number of ranks


class VerifyData(TypedDict):
    """Whether a script computes the same on any number of ranks."""

    script: str  # the script
    worlds: list[int]  # numbers of ranks that were tried
    steps: Mapping[str, int]  # optimizer steps, by number of ranks
    properties: list[PropertyData]  # what was compared
    read: list[str]  # how much each rank has read in each epoch
    findings: list[FindingData]  # what differs
    failures: list[FindingData]  # trials that ended with an error
    folder: str  # where their output is
    note: str  # what was left out; may be empty


class ScalingRowData(TypedDict):
    """One number of ranks of a bench."""

    world: int  # number of ranks
    samples_per_s: float  # throughput
    low: float  # lower end of its interval
    high: float  # upper end
    efficiency: float  # throughput per rank relative to the smallest number of ranks


class ReportedRunData(TypedDict):
    """One run of a report."""

    name: str  # name of its folder
    folder: str  # its folder
    command: list[str]  # the script and its arguments
    state: str  # how it ended
    world_size: int  # number of ranks; 0 if unknown
    hosts: list[str]  # its hosts
    seconds: float | None  # running time
    steps: int | None  # optimizer steps
    figures: Mapping[str, str]  # the figures as people read them
    metrics: Mapping[str, Mapping[str, float]]  # last value of each metric, and its step
    step: Mapping[str, Any] | None  # seconds of a step, and its parts
    late_rank: str  # the rank that the others wait for
    mean_step_s: float  # the mean step
    remarks: list[str]  # what the usual step leaves out
    scaling: list[ScalingRowData]  # of a bench
    findings: list[FindingData]  # how it failed, and what held it up
    environment: Mapping[str, str]  # versions and settings
    notes: list[str]  # what the report cannot show


class ReportData(TypedDict):
    """Runs beside each other."""

    runs: list[ReportedRunData]  # in the order of the command line


class ComparedData(ReportData, total=False):
    """A report; with ``--fail-on-regression`` what has become slower."""

    comparisons: list[RunComparison]  # each run with the first
    findings: list[FindingData]  # those that are slower


# What is known of a variable: name, read, what, and facts such as "read by" and "default".
VariableData = Mapping[str, str | bool]


class JobData(TypedDict):
    """A job that was queued."""

    job_id: str  # Slurm's number
    cluster: str  # empty for the own one
    name: str  # name of the job
    run_dir: str  # its run folder
    script: str  # the job script that was written
    output: str  # where its output goes
    follow: str  # the command that shows it


class QueuedElementData(TypedDict):
    """One element of a sweep that was queued."""

    index: int  # its index in the array
    job_id: str  # Slurm's number
    values: Mapping[str, str]  # values of the parameters
    run_dir: str  # its run folder


class SweepData(TypedDict):
    """A sweep that was queued."""

    job_id: str  # Slurm's number of the array
    cluster: str  # empty for the own one
    name: str  # name of the job
    sweep: str  # its folder
    elements: list[QueuedElementData]  # its elements


class ElementRowData(RunRow):
    """One element of a sweep."""

    index: int  # its index in the array
    values: Mapping[str, str]  # values of the parameters
    metric: float | None  # last value of the metric that ``--sort`` names


class SweepRowData(RunRow):
    """A sweep, as one row."""

    elements: list[ElementRowData]  # its elements


# Fields that a command does not print.
LEFT_OUT: Mapping[type, str] = {RunRow: "is_alive", BenchFile: "worlds"}
# What each command prints: one of its forms.
COMMANDS: Mapping[str, Any] = {
    "run": RunData | CheckOnlyData | ProofData,
    "submit": JobData | SweepData,
    "top": SpeedData,
    "doctor": DoctorData,
    "why": WhyData,
    "explain": FindingsData | Page | VariableData,
    "lint": FindingsData,
    "verify": VerifyData,
    "bench": BenchData,
    "bench network": NetworkData,
    "tune": TuneData,
    "forecast": ForecastData,
    "report": ReportData | ComparedData,
    "jobs": list[RunRow | SweepRowData] | list[ElementRowData],
    "checkpoint list": list[CheckpointData],
    "checkpoint verify": CheckpointVerdictData,
    "translate": TranslatedLine,
}

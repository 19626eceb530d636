"""``paceline profile check``: compare a profile with its cluster, without changing anything."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.diagnose.variables import judge_settings
from paceline.errors import Finding, UsageError, status_of
from paceline.machine import slurm_commands as commands
from paceline.slurm import limits, profile, profile_files, request, sbatch
from paceline.slurm.cluster import Cluster, query_cluster
from paceline.slurm.profile import PYXIS, Container, Profile
from paceline.slurm.request import SubmitRequest
from paceline.text.quoting import word
from paceline.text.wording import few

OK, SILENT, WRONG = "ok", "not answered", "finding"
_SHELL_LIMIT_S = 10.0
# In a login shell, where "module" is a function; one module may make others visible.
_MODULE = (
    "type module >/dev/null 2>&1 || exit 42; last=$1; shift; "
    '[ $# -eq 0 ] || module load "$@" >/dev/null 2>&1; module is-avail "$last"'
)
_COMMAND = 'last=$1; shift; [ $# -eq 0 ] || module load "$@" >/dev/null 2>&1; command -v -- "$last"'
_CONDA = (
    'name=$1; shift; [ $# -eq 0 ] || module load "$@" >/dev/null 2>&1; '
    "type conda >/dev/null 2>&1 || exit 43; "
    'eval "$(conda shell.bash hook)" && conda activate "$name" || exit 1; '
    "command -v paceline || exit 44"
)
_NO_MODULES, _NO_CONDA, _NO_PACELINE = 42, 43, 44


@dataclass(frozen=True)
class Item:
    """The result of one check."""

    subject: str  # what was checked, such as ``partition gpu``
    state: str  # ``"ok"``, ``"not answered"`` or ``"finding"``
    detail: str = ""  # the result in a few words
    findings: tuple[Finding, ...] = ()  # faults, if there are any


@dataclass(frozen=True)
class ProfileReport:
    """The results of all checks."""

    items: tuple[Item, ...]  # results in the order of the checks

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all checks."""
        return tuple(finding for item in self.items for finding in item.findings)

    @property
    def exit_status(self) -> int:
        """1 if a finding is an error, else 0."""
        return status_of(self.findings)

    def render(self) -> str:
        """Return a line for each check, and then the findings."""
        lines = [
            f"{item.state:<12}  {item.subject}" + (f": {item.detail}" if item.detail else "")
            for item in self.items
        ]
        return "\n".join([*lines, *(f"\n{finding.render()}" for finding in self.findings)])

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        items = [
            {"subject": item.subject, "state": item.state, "told": item.detail}
            for item in self.items
        ]
        return {"items": items, "findings": [finding.to_json() for finding in self.findings]}


def check(name: str) -> ProfileReport:
    """Check that a profile is valid, and that the cluster can serve what it requests.

    Raises UsageError if the profile does not exist.
    """
    path = profile_files.find(name)
    subject = f"file {path}"
    try:
        site = profile_files.read(path, name)
        requested = _parse_request(site)
    except UsageError as error:
        return ProfileReport((_wrong(subject, error.finding),))
    return ProfileReport((Item(subject, OK, site.description), *_items(site, requested)))


def _parse_request(site: Profile) -> SubmitRequest:
    """Return the request of a job that is submitted with the profile and without options."""
    try:
        return request.parse("train.py", (), typed={}, profile=site)
    except UsageError as error:
        raise UsageError(replace(error.finding, name="profile-invalid", where=site.path)) from None


def _items(site: Profile, requested: SubmitRequest) -> Iterator[Item]:
    cluster = query_cluster(account=bool(requested.account))
    limit_items = list(_request(requested, cluster))
    yield from limit_items
    if all(item.state != WRONG for item in limit_items):
        yield _sbatch(requested)  # which would report the limits again, with less detail
    for number, module in enumerate(site.modules):
        yield _module(module, site.modules[:number])
    if site.conda:
        yield _conda(site)
    if site.container is not None:
        yield _runtime(site, site.container)
        yield _image(site.container)
    elif site.prefix:  # in a container it is the image's
        yield _prefix(site)
    if site.runs:
        yield _path("runs", site.runs, severity="error")
    if site.tmp and "$" in site.tmp:
        yield Item(f"tmp {site.tmp}", SILENT, "only the job knows its value")
    elif site.tmp:  # a warning: it is usually on a node's local disk, which is not visible here
        yield _path("tmp", site.tmp, severity="warning")
    if site.environment:
        yield _environment(site, requested.max_nodes)


def _request(requested: SubmitRequest, cluster: Cluster) -> Iterator[Item]:
    """Check the partition with its limits, and the account."""
    findings = limits.judge(requested, cluster)
    account_findings = tuple(
        finding for finding in findings if finding.where.startswith("--account")
    )
    other_findings = tuple(finding for finding in findings if finding not in account_findings)
    name = requested.partition or (cluster.default.name if cluster.default else "")
    subject = f"partition {name}" if name else "partition"
    partition = cluster.find(name)
    if not cluster.partitions:
        yield Item(subject, SILENT, "scontrol and sinfo do not answer")
    elif other_findings:
        yield Item(subject, WRONG, other_findings[0].what, other_findings)
    else:
        yield Item(subject, OK, limits.describe(partition) if partition else "")
    if not requested.account:
        return
    subject = f"account {requested.account}"
    if account_findings:
        yield Item(subject, WRONG, account_findings[0].what, account_findings)
    elif cluster.accounts is None:
        yield Item(subject, SILENT, "sacctmgr does not answer")
    else:
        yield Item(subject, OK, f"accounts: {few(cluster.accounts, 8)}")


def _sbatch(requested: SubmitRequest) -> Item:
    """Let sbatch check all options together."""
    subject = "sbatch --test-only"
    result = sbatch.trial(requested, environ=commands.outside())
    if result.status == 0:
        return Item(subject, OK, result.err.strip().removeprefix("sbatch: ").split("\n")[0])
    finding = sbatch.refusal(result, known_options=sbatch.sbatch_options)
    if finding.name == "slurm-unavailable":
        return Item(subject, SILENT, finding.what)
    return _wrong(subject, finding)


def _module(module: str, before: Sequence[str]) -> Item:
    subject = f"module {module}"
    result = _shell(_MODULE, module, *before)
    if result.status in (_NO_MODULES, commands.UNANSWERED, commands.MISSING):
        is_missing = result.status == _NO_MODULES
        return Item(
            subject,
            SILENT,
            "the command module is not available here" if is_missing else result.err,
        )
    if result.status == 0:
        return Item(subject, OK)
    finding = Finding(
        "profile-invalid",
        f"there is no module {module} here",
        where="[setup] modules",
        evidence=tuple(result.err.strip().splitlines()[:3]),
        fix=f"module avail {word(module.partition('/')[0])}",
    )
    return _wrong(subject, finding)


def _shell(text: str, *words: str) -> commands.Reply:
    return commands.run("bash", "-lc", text, "paceline", *words, timeout_s=_SHELL_LIMIT_S)


def _prefix(site: Profile) -> Item:
    command = site.prefix[0]
    subject = f"prefix {command}"
    # The shell starts a second time only for a command that a module has.
    location = shutil.which(command) or _shell(_COMMAND, command, *site.modules).out.strip()
    if location:
        return Item(subject, OK, location.splitlines()[-1])
    finding = Finding(
        "profile-invalid",
        f"there is no command {command} here",
        where="[run] prefix",
        fix="give its whole path, or the module that has it",
    )
    return _wrong(subject, finding)


def _conda(site: Profile) -> Item:
    """Check that conda knows the environment, as far as it is here."""
    subject = f"conda {site.conda}"
    reply = _shell(_CONDA, site.conda, *site.modules)
    if reply.status == _NO_CONDA:
        return Item(subject, SILENT, "the command conda is not available here")
    if reply.status == 0:
        return Item(subject, OK, reply.out.strip().splitlines()[-1] if reply.out.strip() else "")
    if reply.status in (commands.UNANSWERED, commands.MISSING):
        return Item(subject, SILENT, reply.err)
    what, fix = f"there is no conda environment {site.conda} here", "conda env list"
    if reply.status == _NO_PACELINE:
        what = f"the conda environment {site.conda} has no paceline, which starts its ranks"
        fix = f"conda activate {word(site.conda)} && pip install 'paceline[torch]'"
    evidence = tuple(reply.err.strip().splitlines()[:3])
    finding = Finding("profile-invalid", what, where="[setup] conda", evidence=evidence, fix=fix)
    return _wrong(subject, finding)


def _runtime(site: Profile, used: Container) -> Item:
    """Check that containers can be started: the command, or srun's plug-in."""
    subject = f"container {used.runtime}"
    if used.runtime == PYXIS:
        # pyxis is a plug-in of srun: its options appear in the help where it is loaded.
        reply = commands.query("srun", "--help")
        if reply.status:
            return Item(subject, SILENT, "srun does not answer")
        if "--container-image" in reply.out:
            return Item(subject, OK)
        what = "srun has no option --container-image: the plug-in pyxis is not installed here"
        fix = 'runtime = "apptainer"'
    else:
        location = _shell(_COMMAND, used.runtime, *site.modules).out.strip()
        if location:
            return Item(subject, OK, location.splitlines()[-1])
        what = f"there is no command {used.runtime} here"
        fix = f'[setup] modules = ["{used.runtime}"]'
    finding = Finding("profile-invalid", what, where="[container] runtime", fix=fix)
    return _wrong(subject, finding)


def _image(used: Container) -> Item:
    subject = f"image {used.image}"
    if not used.image.startswith("/"):
        return Item(subject, SILENT, "it is in a registry, or relative to the folder of the job")
    if os.path.exists(used.image):
        return Item(subject, OK)
    finding = Finding(
        "profile-invalid",
        f"there is no image {used.image} here",
        where="[container] image",
        fix=f"ls {word(os.path.dirname(used.image))}",
    )
    return _wrong(subject, finding)


def _path(key: str, path: str, *, severity: str) -> Item:
    subject = f"{key} {path}"
    # submit creates the folder: what has to be writable is the nearest one that exists.
    existing = os.path.abspath(path)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass  # permissions are not enough: the disk may be full, or mounted read-only here
    except OSError as error:
        why = f"{existing}: {error.strerror}"
    else:
        return Item(subject, OK, "" if os.path.exists(path) else f"will be created in {existing}")
    what, fix = f"the folder of {key} cannot be used: {why}", f"ls -ld {word(existing)}"
    finding = Finding(
        "profile-invalid", what, where=f"[paths] {key} = {path}", fix=fix, severity=severity
    )
    return Item(subject, WRONG, finding.what, (finding,))


def _environment(site: Profile, num_nodes: int) -> Item:
    settings = {setting.name: setting.value for setting in site.environment}
    where = {setting.name: f"{site.path}:{setting.line}" for setting in site.environment}
    findings = list(judge_settings(settings, where=where, num_nodes=num_nodes))
    findings += [
        _not_filled_in(name, where[name])
        for name, value in settings.items()
        if profile.VARIABLE.search(value)
    ]
    names = few(list(settings), 8)
    return Item("environment", WRONG if findings else OK, names, tuple(findings))


def _not_filled_in(name: str, where: str) -> Finding:
    return Finding(
        "profile-invalid",
        f"the job gets the value of {name} unchanged: no shell expands its $",
        where=where,
        fix=f"""[setup] lines = ['export {name}="..."']""",
        severity="warning",
    )


def _wrong(subject: str, finding: Finding) -> Item:
    return Item(subject, WRONG, finding.what, (finding,))

"""Settings in, findings out: names, values, and what contradicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.diagnose.variables.families import is_relevant
from paceline.diagnose.variables.given import Given
from paceline.diagnose.variables.harm import judge_harm
from paceline.diagnose.variables.names import judge_name
from paceline.diagnose.variables.pairs import judge_pairs
from paceline.diagnose.variables.renamed import judge_renamed
from paceline.diagnose.variables.setting import Setting
from paceline.diagnose.variables.torch_pairs import judge_torch_pairs
from paceline.diagnose.variables.values import judge_value
from paceline.errors import Finding, gravest_first


def judge_settings(
    settings: Mapping[str, str],
    *,
    where: Mapping[str, str] | None = None,
    versions: Mapping[str, str] | None = None,
    num_nodes: int | None = None,
) -> list[Finding]:
    """Return what is wrong with settings of NCCL, torch and what they stand on.

    Args:
        settings: Variables and their values. Names of no concern are passed over. A value that a shell has yet to fill
            in (it holds ``$`` or a backtick) is not judged, its name is.
        where: The place of each, for example ``/etc/nccl.conf:3``; the variable's own name where it is not given.
        versions: The installed versions of ``"nccl"`` and ``"torch"``; without one, what any recent version would read
            counts as read.
        num_nodes: The number of nodes of the job, None if it is not known.

    Returns:
        The findings, errors first, otherwise in the order of the settings.
    """
    places, known_versions = where or {}, versions or {}
    given = {
        name: Setting(name, value, places.get(name, name))
        for name, value in settings.items()
        if is_relevant(name.strip().rpartition(" ")[2]) or name.startswith("SLURM_")
    }
    findings = list(_each(given, known_versions))
    whole = Given(given, known_versions, num_nodes)
    findings += [*judge_pairs(whole), *judge_torch_pairs(whole), *judge_harm(whole)]
    return gravest_first(findings)


def _each(given: Mapping[str, Setting], versions: Mapping[str, str]) -> Iterator[Finding]:
    values = {name: setting.value for name, setting in given.items()}
    for setting in given.values():
        if setting.name.startswith("SLURM_"):
            continue
        yield from judge_name(setting, values, versions)
        yield from judge_renamed(setting, versions)
        yield from judge_value(setting, versions)

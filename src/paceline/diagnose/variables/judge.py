"""Check settings of NCCL and torch: unknown names, invalid values, and contradictions. Settings in,
findings out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.diagnose.variables.families import is_relevant
from paceline.diagnose.variables.given import Settings
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
    # such as ``/etc/nccl.conf:3``; by default the variable's name
    where: Mapping[str, str] | None = None,
    # of "nccl" and "torch"; by default all names are known that a recent version reads
    versions: Mapping[str, str] | None = None,
    num_nodes: int | None = None,
) -> list[Finding]:
    """Return the findings about settings of NCCL, torch and the libraries below them, errors first.

    Other names are ignored. A value that a shell still expands (it contains ``$`` or a backtick) is
    not checked, but its name is.
    """
    places, known_versions = where or {}, versions or {}
    relevant = {
        name: Setting(name, value, places.get(name, name))
        for name, value in settings.items()
        if is_relevant(name.strip().rpartition(" ")[2]) or name.startswith("SLURM_")
    }
    findings = list(_single(relevant, known_versions))
    together = Settings(relevant, known_versions, num_nodes)
    findings += [*judge_pairs(together), *judge_torch_pairs(together), *judge_harm(together)]
    return gravest_first(findings)


def _single(settings: Mapping[str, Setting], versions: Mapping[str, str]) -> Iterator[Finding]:
    values = {name: setting.value for name, setting in settings.items()}
    for setting in settings.values():
        if setting.name.startswith("SLURM_"):
            continue
        yield from judge_name(setting, values, versions)
        yield from judge_renamed(setting, versions)
        yield from judge_value(setting, versions)

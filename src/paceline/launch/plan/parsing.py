"""Parse the options of ``paceline run`` from the command line, variables and preferences. Pure.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.launch.plan import option_fit, preferences
from paceline.launch.plan.options import OPTION, OPTIONS, Options
from paceline.launch.plan.preferences import Preferences
from paceline.launch.plan.starter_defaults import StarterDefaults


def parse(
    script: str,
    script_args: tuple[str, ...],
    *,
    typed: Mapping[str, Any],
    inherited: Mapping[str, str],
    starter_defaults: StarterDefaults = StarterDefaults(),  # noqa: B008  # frozen
    preferred: Preferences | None = None,
) -> Options:
    """Parse and check typed options and torchrun's ``PET_*`` variables; the command line wins.

    ``inherited`` comes from the environment, ``starter_defaults`` from Slurm, mpirun or a pod
    (the other two win). Raises UsageError if a value is wrong, or options cannot work together.
    """
    decided = preferences.apply(preferred or {}, typed=typed)
    raw: dict[str, Any] = dict(starter_defaults.values)
    raw |= {name: value for name, value in inherited.items() if _is_torchruns(name)}
    raw |= {name: value for name, (value, _) in decided.items()}
    raw.update(typed)
    raw = {name: _trimmed(name, value) for name, value in raw.items()}
    option_fit.refuse_contradictions(raw, typed)
    options = Options(
        script,
        script_args,
        **_values(raw),
        starter_defaults=starter_defaults,
        preferred=tuple((name, source) for name, (_, source) in decided.items()),
        typed=tuple((name, "" if value is True else str(value)) for name, value in typed.items()),
    )
    return option_fit.settle(options, typed=typed, requested=raw)


def _is_torchruns(name: str) -> bool:
    return name in OPTION and not OPTION[name].ours


def _trimmed(name: str, value: Any) -> Any:
    """Return a value without blanks around it, unless it is a text: int() skips them too."""
    if not isinstance(value, str) or (name in OPTION and OPTION[name].is_text):
        return value
    return value.strip()


def _values(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of ``Options`` for which there is a text."""
    values = {}
    # other names last, so that they win
    for option in sorted(OPTIONS, key=lambda option: bool(option.same_as)):
        text = raw.get(option.name)
        if text is None or option.parse is None:
            continue
        value = option.parse(option, text if option.flag else str(text))
        if value is not None:
            values[option.same_as or option.name] = value
    return values

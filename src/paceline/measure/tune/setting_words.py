"""Put a loader setting into words, and into the lines by which a script uses it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paceline.launch.probe.loader_commands import LoaderFacts, LoaderSetting

_MOST_COLUMNS = 80


def describe(setting: LoaderSetting, written: LoaderSetting) -> str:
    """Return a setting in words: what differs from the usual one and from the script's."""
    count = setting.num_workers
    words = [f"{count or 'no'} worker{'s' * (count != 1)}"]
    if setting.prefetch_factor not in (0, 2):
        words.append(f"prefetch {setting.prefetch_factor}")
    if setting.pin_memory and not written.pin_memory:
        words.append("pinned memory")
    if setting.threads != written.threads:
        words.append(f"{setting.threads} thread{'s' * (setting.threads != 1)}")
    return ", ".join(words)


def paste(facts: LoaderFacts, setting: LoaderSetting) -> list[str]:
    """Return the lines by which a script uses a setting; empty if they are its own."""
    written = facts.setting
    if setting == written:
        return []
    lines = []
    if replace(setting, threads=written.threads) != written:
        values = _loader_arguments(facts, setting)
        lines.append(_CALLS[facts.maker].format(_arguments(values, _PREFIXES[facts.maker])))
    if setting.threads != written.threads:
        lines.append(f"torch.set_num_threads({setting.threads})")
    return lines


def _loader_arguments(facts: LoaderFacts, setting: LoaderSetting) -> dict[str, Any]:
    """Return the arguments of a loader that differ from torch's defaults or from the script's.

    torch refuses ``persistent_workers`` and ``prefetch_factor`` without workers, so they are reset
    where the script has them.
    """
    values: dict[str, Any] = {"num_workers": setting.num_workers}
    if setting.num_workers or facts.persistent_workers:
        values["persistent_workers"] = setting.num_workers > 0
    written_ahead = facts.setting.prefetch_factor or 2
    if not setting.num_workers and written_ahead != 2:
        values["prefetch_factor"] = None
    elif setting.num_workers and (setting.prefetch_factor != 2 or written_ahead != 2):
        values["prefetch_factor"] = setting.prefetch_factor
    if setting.pin_memory and not facts.setting.pin_memory:
        values["pin_memory"] = True
    return values


_CALLS = {
    "": "DataLoader(..., {})",
    "paceline": "session.loader(..., {})",
    "transformers": "TrainingArguments(..., {})",
}
_PREFIXES = {"": "", "paceline": "", "transformers": "dataloader_"}


def _arguments(values: dict[str, Any], prefix: str) -> str:
    return ", ".join(f"{prefix}{name}={value}" for name, value in values.items())


def placed(facts: LoaderFacts, setting: LoaderSetting) -> list[str]:
    """Return the lines to paste after their place in the script, on lines of 80 columns.

    Threads are set at the begin of a script, and TrainingArguments elsewhere than the place of the
    loader, which is where the Trainer of transformers starts. The setting is not the script's.
    """
    call, *further = paste(facts, setting)
    is_call_there = call.startswith(("DataLoader", "session"))
    if not facts.place or not is_call_there:
        return [call, *further]
    if len(f"{facts.place}: {call}") > _MOST_COLUMNS:
        return [f"{facts.place}:", f"  {call}", *(f"  {line}" for line in further)]
    return [f"{facts.place}: {call}", *further]

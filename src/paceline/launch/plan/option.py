"""Declare an option of a command line: name, help, default, parser and group, in one place.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from paceline.errors import UsageError, option_contradicted, option_invalid

Parser = Callable[["Option", str], Any]


@dataclass(frozen=True)
class Option:
    """One option of the command line."""

    # with underscores, as in ``PET_<NAME>``; the command line takes dashes and underscores
    name: str
    help: str  # one line
    # text of the default, as typed; None if there is none or the help has it
    default: str | None = None
    short: str = ""  # a short form, such as ``-t``
    flag: bool = False  # True for an option without a value
    ours: bool = False  # True for an option that torchrun does not have
    metavar: str = ""  # placeholder of the value in the help
    many: bool = False  # True for an option that may be given several times
    # True if only torchrun of torch 2.15 or newer has it, so that abbreviations of older options
    # stay unique
    newer: bool = False
    group: str = ""  # its heading in the help; empty for the last group
    # returns the value of a text, or None to keep the default; raises UsageError if the text is
    # wrong
    parse: Parser | None = None
    is_text: bool = False  # True if blanks around the value are part of it
    same_as: str = ""  # the option for which this is another name; empty if there is none
    needs_probe: bool = False  # True if it uses the probe's counters
    # environment variable that sets it for all runs, and the type of its value in the configuration
    # file; None if neither does
    preference: tuple[str, type] | None = None

    @property
    def long(self) -> str:
        """The option as typed with dashes."""
        return long_form(self.name)


def long_form(name: str) -> str:
    """Return an option as typed with dashes."""
    return "--" + name.replace("_", "-")


def as_words(name: str, value: str) -> list[str]:
    """Return an option and its value, empty for a flag, as words of a command line."""
    if not value:
        return [long_form(name)]
    if value.startswith("-"):  # as a separate word it would be parsed as an option
        return [f"{long_form(name)}={value}"]
    return [long_form(name), value]


def option(
    text: str,
    value: Any,
    *,
    parse: Parser,
    # as typed, unless it is ``str(value)``; ``""`` if the help has it
    default_text: str | None = None,
    also: str = "",  # another name of the option
    **attributes: Any,  # of ``Option``
) -> Any:
    """Declare a field of a dataclass that is an option with the name of the field."""
    default = _text_of(value) if default_text is None else default_text
    declared = Option("", text, default or None, parse=parse, **attributes)
    return field(default=value, metadata={"option": declared, "also": also})


def flag(text: str, **attributes: Any) -> Any:
    """Declare a field that is an option without a value, False by default."""
    return option(text, False, parse=_parse_flag, default_text="", flag=True, **attributes)


def text(help_text: str, value: str | None, **attributes: Any) -> Any:
    """Declare a field that is an option with any text; an empty text keeps the default."""
    return option(help_text, value, parse=_parse_text, is_text=True, **attributes)


def options_of(cls: Any) -> Iterator[Option]:
    """Return the options that a dataclass declares, in its order.

    Another name of an option comes before the option itself.
    """
    for declared in fields(cls):
        if "option" not in declared.metadata:
            continue
        own = replace(declared.metadata["option"], name=declared.name)
        if declared.metadata["also"]:
            help_text = f"the same as {own.long}"
            yield replace(
                own, name=declared.metadata["also"], help=help_text, same_as=own.name, ours=True
            )
        yield own


def is_true(value: Any) -> bool:
    """Return whether a flag is set, as typed or as torchrun's variables give it."""
    return value not in (False, None, "", "0", 0)


def _parse_flag(option: Option, text: str) -> bool:
    return is_true(text)


def _parse_text(option: Option, text: str) -> str | None:
    return text or None


def _text_of(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def invalid(name: str, value: str, rule: str, fix: str = "") -> UsageError:
    """Return the error for a value that an option does not take."""
    form = long_form(name)
    typed = f"{form} {value}".rstrip()
    return option_invalid(f"{typed}: {form} {rule}", fix=fix)


def contradiction(one: str, other: str, why: str) -> UsageError:
    """Return the error for two options that cannot work together."""
    return option_contradicted(
        f"{one} and {other} exclude each other: {why}", fix=f"leave out {one} or {other}"
    )

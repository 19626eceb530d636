"""What a user or a site has decided for all runs: read from variables and a file, and overruled by what is typed."""

import pytest

from paceline.errors import UsageError
from paceline.launch.plan import preferences
from paceline.launch.plan.parsing import parse
from paceline.launch.plan.plan import choose_hang
from refusals import refusal


@pytest.fixture
def read(tmp_path):
    def reader(text="", **environ):
        (tmp_path / "paceline").mkdir(exist_ok=True)
        (tmp_path / "paceline" / "config.toml").write_text(text)
        return preferences.read({"XDG_CONFIG_HOME": str(tmp_path), **environ})

    return reader


def options(preferred, **typed):
    return parse("train.py", (), typed=typed, inherited={}, preferred=preferred)


def test_without_a_file_there_is_nothing(tmp_path):
    assert preferences.read({"XDG_CONFIG_HOME": str(tmp_path)}) == {}


def test_the_file_holds_for_all_runs(read, tmp_path):
    preferred = read('[run]\nno_probe = true\nstart_method = "spawn"\n')
    made = options(preferred)
    assert (made.no_probe, made.start_method) == (True, "spawn")
    assert made.source_of("no_probe") == str(tmp_path / "paceline" / "config.toml")
    assert choose_hang(made, gpus=False).reason == str(tmp_path / "paceline" / "config.toml")


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(read):
    preferred = read('[run]\non_hang = "off"\nhang_timeout = 300\n', PACELINE_ON_HANG="report")
    made = options(preferred)
    assert (made.on_hang, made.hang_timeout) == ("report", 300)
    assert made.source_of("on_hang") == "PACELINE_ON_HANG is set"
    typed = options(preferred, on_hang="stop")
    assert typed.on_hang == "stop"
    assert typed.source_of("on_hang") == "--on-hang"


def test_a_variable_can_switch_on_again_what_the_file_switches_off(read):
    assert options(read("[run]\nno_probe = true\n", PACELINE_NO_PROBE="0")).no_probe is False


def test_whoever_types_an_option_that_needs_the_probe_gets_it(read):
    preferred = read("[run]\nno_probe = true\n")
    made = options(preferred, check_finite=True)
    assert (made.no_probe, made.check_finite) == (False, True)


def test_hang_settings_do_not_contradict_a_typed_no_probe(read):
    assert options(read("[run]\nhang_timeout = 300\n"), no_probe=True).no_probe is True


def test_hangs_can_be_left_unwatched(read):
    choice = choose_hang(options(read(PACELINE_ON_HANG="off")), gpus=False)
    assert (choice.value, choice.reason) == ("hangs are not watched", "PACELINE_ON_HANG is set")


@pytest.mark.parametrize(
    ("text", "environ", "words"),
    [
        ("[run]\nno_prob = true\n", {}, ("no_prob", "no_probe = ...")),
        ("[run]\nno_probe = 1\n", {}, ("no_probe = 1", "true or false")),
        ('[run]\nhang_timeout = "5m"\n', {}, ("hang_timeout", "a number of seconds")),
        ("[run]\nhang_timeout = true\n", {}, ("hang_timeout", "a number of seconds")),
        ("no_probe = true\n", {}, ("[run]", "no_probe")),
        ("[run\n", {}, ("not TOML",)),
        ("", {"PACELINE_NO_PROBE": "maybe"}, ("PACELINE_NO_PROBE=maybe",)),
    ],
)
def test_what_is_wrong_is_named(read, text, environ, words):
    finding = refusal(UsageError, read, text, **environ)
    said = finding.render()
    assert all(word in said for word in words), said


def test_a_value_that_no_option_takes_is_refused_as_if_it_was_typed(read):
    finding = refusal(UsageError, options, read('[run]\nstart_method = "spwan"\n'))
    assert "--start-method spawn" in finding.fix

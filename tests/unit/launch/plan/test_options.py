"""The options of ``paceline run``: torchrun's, each with its meaning, and every misuse with its fix."""

from __future__ import annotations

import pytest
from torch.distributed.run import get_args_parser

from paceline.errors import UsageError
from paceline.launch.plan import options
from paceline.launch.plan.option_values import split_endpoint, streams_of
from paceline.launch.plan.options import OPTIONS, Options
from paceline.launch.plan.parsing import parse
from refusals import refusal
from typed import words

# torchrun's --print-completion starts nothing; completion is the business of the command line that is completed.
NOT_OF_RUNS = ("help", "print_completion")
TORCHRUN = [
    action
    for action in get_args_parser()._actions
    if action.option_strings and action.dest not in NOT_OF_RUNS
]
# Options of torchrun that not every version has which paceline supports; they work with each.
NOT_IN_EVERY_TORCH = {
    "duplicate_stderr_filters",
    "duplicate_stdout_filters",
    "log_line_prefix_template",
    "numa_binding",
    "shutdown_timeout",
    "signals_to_handle",
    "virtual_local_rank",
}
# Where paceline departs from torchrun, as its documentation says.
DEPARTURES = {"nproc_per_node", "start_method"}


def parsed(inherited=None, **typed) -> Options:
    return parse("train.py", (), typed=typed, inherited=inherited or {})


def refused(inherited=None, **typed):
    return refusal(UsageError, parsed, inherited, **typed)


# ------------------------------------------------------------------------------------- torchrun's options


def forms(option):
    return {form for form in (option.short, option.long, f"--{option.name}") if form}


@pytest.mark.parametrize("action", TORCHRUN, ids=lambda action: action.dest)
def test_every_option_of_torchrun_is_accepted_in_all_its_spellings(action):
    (ours,) = [option for option in OPTIONS if option.name == action.dest]
    assert set(action.option_strings) <= forms(ours)
    assert ours.flag == (action.nargs == 0)
    assert not ours.ours


def test_no_option_claims_to_be_torchruns_that_is_not():
    theirs = {action.dest for action in TORCHRUN}
    assert {
        option.name for option in OPTIONS if not option.ours
    } | NOT_IN_EVERY_TORCH == theirs | NOT_IN_EVERY_TORCH


def test_no_spelling_means_two_options():
    spelled = [form for option in OPTIONS for form in forms(option)]
    assert sorted(spelled) == sorted(set(spelled))


@pytest.mark.parametrize(
    "action",
    [action for action in TORCHRUN if action.dest not in DEPARTURES],
    ids=lambda action: action.dest,
)
def test_defaults_are_torchruns(action):
    ours = parsed()
    expected = action.default
    if action.dest == "nnodes":
        assert f"{ours.min_nodes}:{ours.max_nodes}" == expected
    elif action.dest == "master_port":
        assert (
            ours.master_port is None
        )  # a free one on one node, else 29500 as in older versions of torchrun
    elif action.dest == "signals_to_handle":
        assert ",".join(ours.signals_to_handle) == expected
    else:
        found = getattr(ours, action.dest)
        assert (list(found) or expected if found == () else found) == expected
        assert found == () or type(found) is type(expected)


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS if option.default], ids=lambda option: option.name
)
def test_the_default_in_the_help_is_the_default(option):
    assert parsed(**{option.name: option.default}) == parsed()


def test_every_option_has_a_help_line():
    assert [option.name for option in OPTIONS if len(option.help) < 10] == []


# ------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("nnodes", "4", "nnodes", (4, 4)),
        ("nproc_per_node", "8", "nproc_per_node", "8"),
        ("nproc_per_node", "auto", "nproc_per_node", "auto"),
        ("master_addr", "head", "master_addr", "head"),
        ("master_port", "0", "master_port", 0),
        ("master_port", "65535", "master_port", 65535),
        ("local_addr", "10.0.0.1", "local_addr", "10.0.0.1"),
        ("rdzv_id", "job 7", "rdzv_id", "job 7"),
        (
            "rdzv_conf",
            "join_timeout=60, read_timeout = 5,",
            "rdzv_conf",
            (("join_timeout", "60"), ("read_timeout", "5")),
        ),
        ("max_restarts", " 3 ", "max_restarts", 3),
        ("nproc_per_node", "2 ", "nproc_per_node", "2"),
        ("max_restarts", "3", "max_restarts", 3),
        ("monitor_interval", "0.5", "monitor_interval", 0.5),
        ("monitor_interval", "5", "monitor_interval", 5.0),
        ("start_method", "spawn", "start_method", "spawn"),
        ("start_method", "forkserver", "start_method", "forkserver"),
        ("role", "trainer", "role", "trainer"),
        ("log_dir", "logs", "log_dir", "logs"),
        ("redirects", "3", "redirects", "3"),
        ("tee", "0:1,1:2", "tee", "0:1,1:2"),
        ("local_ranks_filter", "2,0, 2", "local_ranks_filter", (0, 2)),
        ("event_log_handler", "console", "event_log_handler", "console"),
        ("logs_specs", "mine", "logs_specs", "mine"),
        ("numa_binding", "core-complex", "numa_binding", "core-complex"),
        ("signals_to_handle", "SIGTERM, SIGUSR1", "signals_to_handle", ("SIGTERM", "SIGUSR1")),
        ("shutdown_timeout", "5", "shutdown_timeout", 5),
        ("grace_s", "0", "shutdown_timeout", 0),
        ("run_dir", "out", "run_dir", "out"),
        ("max_time", "3600", "max_time", 3600),
        ("hang_timeout", "15m", "hang_timeout", 900),
        ("hang_timeout", "900", "hang_timeout", 900),
        ("roll_call_timeout", "5m", "roll_call_timeout", 300),
        ("max_time", "0.5", "max_time", 0.5),
        ("max_time", "45s", "max_time", 45),
        ("max_time", "90m", "max_time", 5400),
        ("max_time", "1.5h", "max_time", 5400),
        ("max_time", "2d", "max_time", 172800),
        ("max_time", "30:00", "max_time", 1800),
        ("max_time", "2:30:15", "max_time", 9015),
        ("max_time", "1-12", "max_time", 129600),
        ("max_time", "1-12:30", "max_time", 131400),
        ("max_time", "1-12:00:01", "max_time", 129601),
    ],
)
def test_values(name, text, field, value):
    assert getattr(parsed(**{name: text}), field) == value


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS if option.flag], ids=lambda option: option.name
)
def test_flags_are_off_unless_given(option):
    assert getattr(parsed(), option.name) is False
    assert getattr(parsed(**{option.name: True}), option.name) is True


def test_the_scripts_arguments_are_not_looked_at():
    assert parse("a.py", ("--nnodes", "x"), typed={}, inherited={}).script_args == ("--nnodes", "x")


@pytest.mark.parametrize(
    ("text", "least", "most", "one_node"),
    [("1", 1, 1, True), ("1:1", 1, 1, True), ("2:4", 2, 4, False)],
)
def test_numbers_of_nodes(text, least, most, one_node):
    found = parsed(nnodes=text, rdzv_backend="c10d", rdzv_endpoint="head:1")
    assert (found.min_nodes, found.max_nodes, found.one_node) == (least, most, one_node)


# ------------------------------------------------------------------------------------- torchrun's variables


def test_torchruns_variables_are_defaults_and_the_command_line_wins():
    inherited = {"nproc_per_node": "4", "max_restarts": "2", "module": "1", "standalone": "0"}
    found = parsed(inherited, nproc_per_node="8")
    assert (found.nproc_per_node, found.max_restarts, found.module, found.standalone) == (
        "8",
        2,
        True,
        False,
    )


@pytest.mark.parametrize("name", ["nonsense", "run_dir", "json", "no_probe", "script"])
def test_variables_that_torchrun_does_not_have_are_passed_over(name):
    assert parsed({name: "x"}) == parsed()


def test_a_wrong_value_in_a_variable_is_refused_too():
    assert refused({"nproc_per_node": "many"}).name == "option-invalid"


def test_a_variable_that_has_no_effect_is_passed_over():
    """Clusters export them for everybody; only what was typed can be a mistake of this command."""
    assert (
        parsed(
            {"node_rank": "1"}, rdzv_backend="c10d", rdzv_endpoint="head:1", nnodes="2"
        ).node_rank
        == 1
    )


# ------------------------------------------------------------------------------------------------ misuse


@pytest.mark.parametrize(
    ("typed", "name", "says"),
    [
        ("nproc_per_node=0", "option-invalid", "--nproc-per-node"),
        ("nproc_per_node=-2", "option-invalid", "at least one"),
        ("nproc_per_node=gup", "option-invalid", "gpu"),
        ("nproc_per_node=2.5", "option-invalid", "number"),
        ("nnodes=0", "option-invalid", "at least one"),
        ("nnodes=x", "option-invalid", "--nnodes"),
        ("nnodes=3:2", "option-invalid", "MIN not above MAX"),
        ("nnodes=0:2", "option-invalid", "at least one"),
        ("nnodes=2:x", "option-invalid", "MIN:MAX"),
        ("nnodes=-1", "option-invalid", "--nnodes"),
        ("node_rank=-1", "option-invalid", "from 0"),
        ("node_rank=2 nnodes=2 master_addr=h", "option-invalid", "below --nnodes 2"),
        ("master_port=65536", "option-invalid", "65535"),
        ("master_port=-1", "option-invalid", "65535"),
        ("master_port=http", "option-invalid", "number"),
        ("max_restarts=-1", "option-invalid", "from 0"),
        ("max_restarts=two", "option-invalid", "whole number"),
        ("max_restarts=1.0", "option-invalid", "whole number"),
        ("monitor_interval=0", "option-invalid", "above 0"),
        ("monitor_interval=nan", "option-invalid", "above 0"),
        ("monitor_interval=soon", "option-invalid", "seconds"),
        ("start_method=frok", "option-invalid", "fork"),
        ("numa_binding=nodes", "option-invalid", "socket"),
        ("rdzv_conf=timeout", "option-invalid", "KEY=VALUE"),
        ("rdzv_conf==3", "option-invalid", "KEY=VALUE"),
        ("rdzv_conf=join_timeout=soon", "option-invalid", "whole number"),
        ("rdzv_conf=last_call_timeout=0", "option-invalid", "whole number"),
        ("rdzv_conf=is_host=perhaps", "option-invalid", "1 or 0"),
        ('rdzv_conf="timeout=5\'" nnodes=2', "option-invalid", "whole number"),
        ("event_log_handler=consol", "option-invalid", "console"),
        ("node_rank=1 master_port=1", "option-invalid", "below --nnodes 1"),
        ("local_ranks_filter=0;1", "option-invalid", "local ranks"),
        ("local_ranks_filter=0,,1", "option-invalid", "local ranks"),
        ("redirects=4", "option-invalid", "stdout"),
        ("tee=0:1,1", "option-invalid", "stdout"),
        ("tee=0:4", "option-invalid", "stderr"),
        ("signals_to_handle=SIGTREM", "option-invalid", "SIGTREM"),
        ("signals_to_handle=SIGKILL", "option-invalid", "cannot be handled"),
        ("shutdown_timeout=-1", "option-invalid", "--shutdown-timeout"),
        ("grace_s=long", "option-invalid", "--grace-s"),
        ("max_time=0", "option-invalid", "--max-time"),
        ("max_time=-5", "option-invalid", "a time above 0"),
        ("max_time=0-00:00:00", "option-invalid", "a time above 0"),
        ("max_time='2 h'", "option-invalid", "--max-time"),
        ("max_time=1h30", "option-invalid", "--max-time"),
        ("max_time=1:2:3:4", "option-invalid", "--max-time"),
        ("max_time=nan", "option-invalid", "--max-time"),
        ("grace_s=5 shutdown_timeout=6", "option-contradicted", "both set the same timeout"),
        ("no_python module", "option-contradicted", "needs Python"),
        ("prove no_probe", "option-contradicted", "counters of the probe"),
        ("prove check_only", "option-contradicted", "does not start the script"),
        ("prove start_method=exec", "option-contradicted", "entry of a rank only"),
        ("standalone nnodes=2", "option-contradicted", "one node"),
        ("rdzv_backend=c10d nnodes=2", "c10d-without-rdzv-endpoint", "--rdzv-endpoint"),
        ("rdzv_backend=etcd nnodes=1:2", "c10d-without-rdzv-endpoint", "--rdzv-endpoint"),
    ],
)
def test_misuse_is_one_finding_with_a_fix(typed, name, says):
    finding = refused(**words(typed))
    assert finding.name == name
    assert says in finding.what
    assert finding.where == "command line"
    assert finding.fix


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("nproc_per_node=gup", "--nproc-per-node gpu"),
        ("start_method=frok", "--start-method fork"),
        ("signals_to_handle=SIGTREM", "--signals-to-handle SIGTERM"),
        ("numa_binding=nodes", "--numa-binding node"),
        (
            "rdzv_backend=c10d nnodes=2 master_addr=head master_port=7",
            "--rdzv-endpoint head:7, the same on all nodes",
        ),
    ],
    ids=["nproc", "start method", "signal", "numa", "endpoint"],
)
def test_a_near_miss_is_answered_with_what_was_meant(typed, fix):
    assert refused(**words(typed)).fix == fix


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nnodes", "--2"),
        ("master_port", "--2"),
        ("max_restarts", "²"),
        ("monitor_interval", "²"),
        ("nproc_per_node", "--2"),
        ("nproc_per_node", "²"),
        ("nnodes", "1²"),
        ("nnodes", "1:²"),
        ("master_port", "²"),
    ],
)
def test_texts_that_only_look_like_numbers_are_refused(name, text):
    assert refused(**{name: text}).name == "option-invalid"


def test_a_misspelt_backend_is_refused():
    assert refused(rdzv_backend="c10").fix == "--rdzv-backend c10d"


C10D = "rdzv_backend=c10d rdzv_endpoint=h:1 nnodes=2"


@pytest.mark.parametrize(
    ("typed", "says", "fix", "holds"),
    [
        (
            f"{C10D} node_rank=1",
            "--node-rank has no effect: --rdzv-backend c10d",
            "remove --node-rank",
            {},
        ),
        (f"{C10D} master_port=2", "--master-port has no effect", "remove --master-port", {}),
        (f"{C10D} master_addr=g", "--master-addr has no effect", "remove --master-addr", {}),
        (
            f"{C10D} rdzv_conf=timeout=5",
            "c10d has no setting timeout",
            "join_timeout=5",
            {"rdzv_conf": ()},
        ),
        (
            f'{C10D} rdzv_conf="\'join_timeout=5,last_call_timeout=1"',
            "no setting 'join_timeout",
            "--rdzv-conf join_timeout=5",
            {"rdzv_conf": (("last_call_timeout", "1"),)},
        ),
        (
            f"{C10D} rdzv_conf=lastcall_timeout=1",
            "no setting lastcall_timeout",
            "last_call_timeout=1",
            {},
        ),
        (
            "nnodes=2 master_port=29501 rdzv_endpoint=head:29500",
            "--master-port has no effect: --rdzv-endpoint head:29500",
            "remove --master-port",
            {"master_port": None},
        ),
        ("nnodes=1:2", "means 2 nodes", "--nnodes 2, or", {"nnodes": (2, 2)}),
        ("node_rank=1", "there is one node", "--nnodes 2, or remove --node-rank", {"node_rank": 0}),
        (
            "node_rank=1 nnodes=2",
            "looks for the head on its own host",
            "--master-addr",
            {"node_rank": 1},
        ),
        ("standalone nnodes=1:2", "--nnodes has no effect", "remove --nnodes", {"nnodes": (1, 1)}),
        ("standalone master_port=1", "--standalone chooses it", "remove", {"master_port": None}),
        (
            "standalone rdzv_id=7",
            "--rdzv-id has no effect",
            "remove --rdzv-id",
            {"rdzv_id": "none"},
        ),
        ("standalone rdzv_endpoint=h:1", "--rdzv-endpoint has", "remove", {"rdzv_endpoint": ""}),
        ("run_path module", "--module has no effect", "remove --module", {"module": False}),
        ("run_path no_python", "--no-python has no", "remove --no-python", {"no_python": False}),
        ("duplicate_stdout_filters=loss", "teed", "--tee 3", {"duplicate_stdout_filters": ()}),
        (
            "duplicate_stderr_filters=loss tee=0",
            "teed",
            "--tee 3",
            {"duplicate_stderr_filters": ()},
        ),
        (
            "rdzv_backend=c10d nnodes=1:2",
            "each node would wait for itself",
            "--rdzv-endpoint HOST",
            {"rdzv_endpoint": "localhost:29400"},
        ),
    ],
)
def test_what_torchrun_passes_over_is_a_warning(typed, says, fix, holds):
    found = parsed(**words(typed))
    (warning,) = found.warnings
    assert warning.severity == "warning"
    assert says in warning.what
    assert fix in warning.fix
    assert {name: getattr(found, name) for name in holds} == holds


@pytest.mark.parametrize("head", ["localhost", "127.0.0.1"])
def test_inherited_options_go_through_the_checks_of_typed_ones(head):
    inherited = {"master_addr": head, "node_rank": "1", "nnodes": "2"}
    assert parsed(inherited).warnings == parsed(**inherited).warnings == ()
    assert parsed(inherited) == parsed(**inherited)


def test_an_inherited_endpoint_does_not_reach_a_standalone_run():
    assert parsed(
        {"rdzv_endpoint": "head:1", "rdzv_backend": "c10d", "node_rank": "1"}, standalone=True
    ) == parsed(standalone=True)


def test_settings_of_a_plug_in_are_left_to_it():
    found = parsed(rdzv_backend="zeus", rdzv_endpoint="olympus", rdzv_conf="url=a=b,timeout=never")
    assert (found.rdzv_conf, found.warnings) == ((("url", "a=b"), ("timeout", "never")), ())


@pytest.mark.parametrize(
    "typed",
    [
        "rdzv_backend=c10d",
        "rdzv_backend=c10d rdzv_endpoint=h:1 nnodes=1:4",
        "rdzv_backend=c10d rdzv_endpoint=h:7 master_addr=h master_port=7 node_rank=0",
        "standalone rdzv_backend=c10d",
        "standalone master_addr=127.0.0.1 node_rank=0",
        "grace_s=5 shutdown_timeout=5",
        "nnodes=2 node_rank=0",
        "master_addr=localhost",  # many scripts of one node say so
        "nnodes=2 node_rank=1 rdzv_endpoint=head:29500",
        "nnodes=2 node_rank=1 master_addr=head",
        "duplicate_stdout_filters=loss tee=3",
    ],
)
def test_what_fits_together_is_accepted(typed):
    assert parsed(**words(typed)).warnings == ()


# -------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("head", ("head", 29400)),
        ("head:1234", ("head", 1234)),
        (" 10.0.0.1:0 ", ("10.0.0.1", 0)),
        ("node-1.cluster.example_x:65535", ("node-1.cluster.example_x", 65535)),
        ("[::1]:29500", ("::1", 29500)),
        ("[fe80::1]", ("fe80::1", 29400)),
        ("[::ffff:10.0.0.1]:1", ("::ffff:10.0.0.1", 1)),
    ],
)
def test_endpoints(text, expected):
    assert split_endpoint(text, 29400) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":29500",
        "head:",
        "head:65536",
        "head:port",
        "a b:1",
        "::1",
        "[::1",
        "head:1:2",
        "http://head:1",
    ],
)
def test_endpoints_that_are_none(text):
    finding = refusal(UsageError, split_endpoint, text, 29500)
    assert finding.name == "option-invalid"
    assert finding.fix == "--rdzv-endpoint head:29500"


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("0", [0, 0, 0]),
        ("3", [3, 3, 3]),
        ("0:1,2:3", [1, 0, 3]),
        ("1:2", [0, 2, 0]),
        ("10:3", [0, 0, 0]),
    ],
)
def test_streams_by_local_rank(text, streams):
    assert [streams_of(text, rank) for rank in range(3)] == streams


def torchruns_filters(text):
    actions = [action for action in TORCHRUN if action.dest == "duplicate_stdout_filters"]
    if not actions:
        pytest.skip("this version of torchrun has no such option")
    return tuple(actions[0].type(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loss", ("loss",)),
        ("loss,acc", ("loss", "acc")),
        ("a,,b", ("a,b",)),
        ("a,,b,c", ("a,b", "c")),
        ("[rank 0],,step", ("[rank 0],step",)),
    ],
)
def test_filters_are_split_as_torchrun_does(text, words):
    assert parsed(tee="3", duplicate_stdout_filters=text).duplicate_stdout_filters == words
    assert torchruns_filters(text) == words


def test_empty_filters_are_left_out():
    assert parsed(tee="3", duplicate_stderr_filters=",a,").duplicate_stderr_filters == ("a",)
    assert parsed(duplicate_stderr_filters="", tee="3").duplicate_stderr_filters == ()


def test_what_was_typed_is_kept_and_what_was_inherited_is_not():
    found = parse(
        "a.py", (), typed={"module": True, "nproc_per_node": "2"}, inherited={"max_restarts": "3"}
    )
    assert found.typed == (("module", ""), ("nproc_per_node", "2"))


def test_every_field_is_an_option():
    """So that a default exists once, and what is parsed cannot be forgotten."""
    known = {option.name for option in OPTIONS} - {"grace_s"}
    assert set(options.Options.__dataclass_fields__) - known == {
        "script",
        "script_args",
        "typed",
        "starter_defaults",
        "preferred",
        "warnings",
        "secret",
    }
    assert known <= set(options.Options.__dataclass_fields__)


def test_a_secret_is_for_several_nodes():
    several = {"nnodes": "2", "node_rank": "0", "master_addr": "head"}
    assert parsed(**several, secret_file="secret").secret_file == "secret"
    (warning,) = parsed(secret_file="secret").warnings
    assert warning.what.startswith("--secret-file has no effect: one node's launcher")

"""Which ranks a condition picks."""

import ast

import pytest

from paceline.text.rank_conditions import (
    TreeNames,
    alone,
    chooses,
    decorator_scope,
    leaves,
    sides,
    together,
)

ONE, REST = ("one", "rest"), ("rest", "one")


def test_of(code):
    """Return what is known of the names of a piece of code, and the test of its last ``if``."""
    tree = ast.parse(code if code.rstrip().endswith("pass") else f"if {code}: pass")
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.If)]
    return TreeNames.of(tree), tests[-1]


test_of.__test__ = False


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("rank == 0", ONE),
        ("0 == rank", ONE),
        ("rank != 0", REST),
        ("rank > 0", REST),
        ("0 < rank", REST),
        ("rank >= 1", REST),
        ("rank < 1", ONE),
        ("rank == 3", ONE),
        ("rank", REST),
        ("not rank", ONE),
        ("rank in (-1, 0)", ONE),
        ("rank not in [0]", REST),
        ("rank in (0, 1)", None),
        ("rank % 8 == 0", ONE),
        ("int(os.environ['RANK']) == 0", ONE),
        ("os.environ.get('LOCAL_RANK', '0') == '0'", ONE),
        ("dist.get_rank() == 0", ONE),
        ("r = dist.get_rank()\nif r == 0: pass", ONE),
        ("r = int(os.environ['LOCAL_RANK'])\nif r != 0: pass", REST),
        ("r = lora.get_rank()\nif r == 0: pass", None),
        ("r = matrix.rank()\nif r == 0: pass", None),
        ("r = dist.get_rank()\nr += dist.get_world_size()\nif r == 0: pass", None),
        ("r = row['rank']\nif r == 0: pass", None),
        ("r = dist.get_rank()\nr = compute()\nif r == 0: pass", None),
        ("w = dist.get_world_size()\nif w == 0: pass", None),
        ("xm.get_ordinal() == 0", ONE),
        ("accelerator.is_main_process", ONE),
        ("not trainer.is_global_zero", REST),
        ("is_lead()", ONE),
        ("bool(is_main_process())", ONE),
        ("not args.distributed or rank == 0", ONE),
        ("rank == 0 and step % 10 == 0", ("one", "")),
        ("rank == 0 and world_size == 1", None),
        ("rank == 0 or done", None),
        ("rank == main_rank", None),
        ("rank == args.leader", ONE),
        ("rank == -1", None),
        ("rank is not None", None),
        ("args.lora_rank > 0", None),
        ("world_size > 1", None),
        ("step % 10 == 0", None),
        ("saves = rank == 0\nif saves: pass", ONE),
        ("saves = rank == 0\nsaves = False\nif saves: pass", ONE),
        ("saves = rank == 0\nsaves = rank != 0\nif saves: pass", None),
        ("a, saves = setup()\nif saves: pass", None),
        ("for rank in range(4):\n    if rank == 0: pass", None),
    ],
)
def test_the_side_that_a_condition_picks(condition, expected):
    found = sides(*test_of(condition))
    assert (found and (found.true, found.false)) == expected


@pytest.mark.parametrize(
    ("condition", "scope", "sure"),
    [
        ("rank == 0", "global", True),
        ("local_rank == 0", "local", True),
        ("tp_rank == 0", "group", False),
        ("dist.get_rank(group) == 0", "group", False),
        ("gpu == 0", "local", False),
        ("rank == args.leader", "global", False),
        ("int(os.environ['LOCAL_RANK']) == 0", "local", True),
    ],
)
def test_how_sure_that_is_and_of_which_ranks(condition, scope, sure):
    found = sides(*test_of(condition))
    assert (found.scope, found.sure) == (scope, sure)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("rank == 0", True),
        ("rank < 2", True),
        ("rank in (0, 1)", True),
        ("rank == 0 or done", True),
        ("dist.get_rank(group) == 0", True),
        ("is_main_process() and step % 10 == 0", True),
        ("os.environ['RANK'] == '0'", True),
        ("rank == 0 and path is not None", True),
        ("xm.get_ordinal() == 0", True),
        ("is_lead", True),
        ("saves = rank == 0\nif saves: pass", True),
        ("local_rank != -1", False),
        ("rank is not None", False),
        ("lora_rank > 0", False),
        ("rerank", False),
        ("num_ranks > 1", False),
        ("world_size > 1", False),
        ("gpu == 0", False),
        ("for rank in range(4):\n    if rank == 0: pass", False),
        ("for rank in range(4):\n    if rank < 2: pass", False),
        ("flag = flag and one\n" * 30 + "if flag: pass", False),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_whether_ranks_get_different_answers(condition, expected):
    assert chooses(*test_of(condition)) == expected


@pytest.mark.parametrize(
    ("condition", "one", "several"),
    [
        ("world_size == 1", True, False),
        ("world_size > 1", False, True),
        ("args.local_rank == -1", True, False),
        ("args.local_rank != -1", False, True),
        ("int(os.environ.get('RANK', -1)) < 0", True, False),
        ("not args.distributed", True, False),
        ("dist.is_initialized()", False, True),
        ("single_gpu", True, False),
        ("done", False, False),
    ],
)
def test_conditions_of_one_process_and_of_several(condition, one, several):
    test = test_of(condition)[1]
    assert (alone(test), together(test)) == (one, several)


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        *[
            (name, "global")
            for name in ("rank_zero_only", "master_only", "rank0_only", "on_main_process")
        ],
        *[
            ("rank_zero_experiment", "global"),
            ("only_rank_zero", "global"),
            ("on_local_main_process", "local"),
        ],
        *[("staticmethod", ""), ("main_rank", ""), ("", "")],
    ],
)
def test_decorators_that_let_some_ranks_in(name, scope):
    assert decorator_scope(name) == scope


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        *[
            (end, True)
            for end in ("return 1", "continue", "break", "sys.exit()", "os._exit(0)", "quit()")
        ],
        *[(end, False) for end in ("print()", "pass", "x = exit")],
    ],
)
def test_blocks_that_leave(end, expected):
    tree = ast.parse(f"def f():\n  for x in y:\n    if rank:\n      a = 1\n      {end}")
    branch = next(node for node in ast.walk(tree) if isinstance(node, ast.If))
    assert leaves(branch.body) == expected

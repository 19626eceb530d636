"""The environment is touched in two places, and every variable is declared once with its meaning."""

import ast

from paceline import env

MAY_TOUCH = {"env.py", "launch/in_rank/rank_entry.py"}
DOORS = {"environ", "environb", "getenv", "putenv", "unsetenv"}


def touches(source):
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            names = (
                {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "os" else set()
            )
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names} if node.module == "os" else set()
        else:
            continue
        if names & DOORS:
            yield node.lineno


def declarations(sources):
    """``(name of the constant, name of the variable)`` of every declaration in env.py."""
    (file,) = [source for source in sources if source.path == "env.py"]
    for node in file.tree.body:
        call = node.value if isinstance(node, ast.Assign) else None
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "_variable"
        ):
            yield node.targets[0].id, call.args[0].value


def test_only_env_and_the_worker_entry_touch_the_environment(sources):
    assert [
        f"{s.path}:{line}" for s in sources if s.path not in MAY_TOUCH for line in touches(s)
    ] == []


def test_no_variable_is_declared_twice(sources):
    names = [name for _, name in declarations(sources)]
    assert len(names) > 30
    assert sorted(names) == sorted(set(names))


def test_every_declaration_is_known_by_its_name(sources):
    declared = dict(declarations(sources))
    assert {constant: getattr(env, constant) for constant in declared} == declared
    assert {variable.name for variable in env.variables()} == set(declared.values())


def test_every_variable_says_what_it_means():
    assert [variable.name for variable in env.variables() if len(variable.meaning) < 10] == []


def test_every_constant_of_env_is_a_declaration(sources):
    """A name written as a plain string would be missing on the reference page."""
    (file,) = [source for source in sources if source.path == "env.py"]
    plain = [
        node.targets[0].id
        for node in file.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    ]
    assert plain == []

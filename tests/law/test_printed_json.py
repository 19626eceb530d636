"""Commands print JSON in one way, so that NaN and infinity, which JSON does not have, never reach a program that reads it."""

import ast

# These print for another process of paceline, which reads them with Python's json.
BETWEEN_OURSELVES = {
    "diagnose/doctor/collectors/peer_trial.py",
    "launch/plan/accelerate/answer.py",
}


def prints_json(node):
    """Whether a call is ``print(json.dumps(...))``, ``json.dump(..., sys.stdout)`` or their like."""
    if not isinstance(node, ast.Call):
        return False
    text = ast.unparse(node)
    prints = text.startswith(("print(", "click.echo(", "sys.stdout.write("))
    return ("json.dumps(" in text and prints) or (
        text.startswith("json.dump(") and "stdout" in text
    )


def test_json_is_printed_in_one_module(sources):
    printing = {
        source.path for source in sources for node in ast.walk(source.tree) if prints_json(node)
    }
    assert printing == BETWEEN_OURSELVES

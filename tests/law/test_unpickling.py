"""Nothing is unpickled that comes from the store or from another program's socket: that would run a stranger's code."""

import ast

# What each of them unpickles: a pipe from its own fork; what ranks send through their process group; a checkpoint's
# parts on their way between ranks; files of a checkpoint, as plain data unless they are trusted; a dump of torch's
# Flight Recorder, by an unpickler that knows no class; the call of a job and its result, in its run folder; what tests
# and their ranks send each other.
MAY_UNPICKLE = {
    "launch/run/inline.py",
    "train/session/once.py",
    "train/checkpoint/unpickling.py",
    "testing/job.py",
    "why/recorder.py",
}
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
READERS = {"load", "loads", "Unpickler"}


def unpickles(source):
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in MODULES and node.attr in READERS:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "") in MODULES:
            yield node.lineno
        elif (
            isinstance(node, ast.keyword)
            and node.arg == "weights_only"
            and not getattr(node.value, "value", True)
        ):
            yield node.value.lineno


def test_only_what_ranks_trust_is_unpickled(sources):
    found = {source.path for source in sources if list(unpickles(source))}
    assert found == MAY_UNPICKLE


def test_no_part_of_the_launcher_takes_a_connection_that_unpickles(sources):
    """``multiprocessing.connection`` unpickles what arrives."""
    taken = [
        f"{source.path}:{node.lineno}"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in [getattr(node, "module", "") or "", *(alias.name for alias in node.names)]
        if name.startswith("multiprocessing.connection")
    ]
    assert taken == []

"""Files and folders are written over, renamed and deleted in ``rundir/owned.py`` alone."""

import ast

CALLS = {
    *("unlink", "rmtree", "rename", "renames", "removedirs", "copytree", "copyfile"),
    *("copy2", "touch", "truncate", "write_text", "write_bytes", "hardlink_to", "symlink_to"),
}
OF_MODULES = {  # names that other things have too
    "os": {"remove", "replace", "link", "symlink", "mkfifo"},
    "shutil": {"move", "copy"},
}
EXCEPTIONS = {
    "rundir/owned.py": "it is the place",
    "train/checkpoint/folder.py": "renames a folder, which takes the place of nothing",
    "train/checkpoint/write.py": "DCP's files, in a folder that this process has just created",
    "train/trainer/saving.py": "copies of a checkpoint, in a folder that it has just created",
    "slurm/jobs/reserve.py": "makes a link where nothing is",
    "measure/files_as_before.py": "copies beside the user's file, and in its own folder",
    "launch/in_rank/kept_files.py": "copies into its own folder",
    "testing/rank.py": "files in a temporary folder of its own",
    "why/recorder.py": "asks torch's flight recorder through its pipe",
}


def is_write(call: ast.Call, name: str) -> bool:
    """Whether a call of ``open`` writes over a file, or makes one where another may stand."""
    words = [
        node.value if isinstance(node, ast.Constant) else getattr(node, "attr", "")
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
        for node in ast.walk(argument)
        if isinstance(node, ast.Constant | ast.Attribute)
    ]
    if "O_EXCL" in words:
        return False
    modes = [word for word in words if isinstance(word, str) and 0 < len(word) < 4]
    return (
        "O_CREAT" in words or "O_WRONLY" in words or any(set(mode) & set("wa+") for mode in modes)
    )


def writes(source):
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        place = getattr(getattr(node.func, "value", None), "id", "")
        if (
            name == "replace"
            and place not in OF_MODULES
            and len(node.args) == 1
            and not node.keywords
        ):
            yield node.lineno  # Path.replace
        elif place == "owned":
            continue
        elif (
            name in CALLS
            or name in OF_MODULES.get(place, ())
            or (name == "open" and place != "tarfile" and is_write(node, name))
        ):
            yield node.lineno


def test_one_module_writes_over_and_deletes_files(sources):
    places = {f"{s.path}:{line}": s.path for s in sources for line in writes(s)}
    assert [place for place, path in places.items() if path not in EXCEPTIONS] == []
    assert set(EXCEPTIONS) <= set(places.values())

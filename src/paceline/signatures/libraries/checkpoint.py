"""Signatures of checkpoints that do not match the model or cannot be read."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause, note
from paceline.signatures.tier import Tier

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "checkpoint-key-prefix-module",
        "unexpected key|missing key",
        r"(?:Unexpected|Missing) keys?(?:\(s\))? ?(?:in (?:source "
        r")?state_dict)?: *[\[{(]?[\"']?(?P<key>(?:_?orig_mod\.)?module\.[\w.]+)",
        what=(
            "keys of the state_dict carry or lack the prefix module. of DataParallel or DDP: {key}"
        ),
        fix=(
            "model.load_state_dict({{k.removeprefix('module.'): v for k, v in state.items()}});"
            " save model.module.state_dict()"
        ),
        why=(
            "the checkpoint was saved from the wrapped model and is loaded into the plain one, or"
            " the other way round"
        ),
        key="prefix",
    ),
    cause(
        "checkpoint-other-model",
        "loading state_dict|size mismatch for|missing key|unexpected key|checkpoint tensor|loaded"
        " state dict",
        r"Error\(s\) in loading state_dict for (?P<model>\w+)"
        r"|size mismatch for (?P<parameter>[\w.]+): copying a param"
        r"|loaded state dict (?:has a different number of parameter groups"
        r"|contains a parameter group that doesn't match)"
        r"|(?:Missing|Unexpected) key\(s\) in state_dict",
        what=(
            "a checkpoint does not fit the model {model}: names or shapes differ",
            "a checkpoint does not fit the model: {parameter} has another shape",
            "a checkpoint does not fit the model or the optimizer",
        ),
        fix=(
            "build the model with the settings that the checkpoint was saved with; strict=False"
            " only for heads that are new"
        ),
        tier=Tier.COARSE,
        key="other-model",
    ),
    cause(
        "checkpoint-world-size-mismatch",
        "world size|world_size|dp_world_size|number of processes|num_ranks|partitions",
        r"(?:checkpoint|state|loaded).*(?:DP )?world[ _]size of (?P<old>\d+).*current world[ _]size"
        r" is (?P<new>\d+)"
        r"|checkpoint.*(?:saved|written|created) (?:with|on|by|from) (?:a )?(?:world[ _]size"
        r"|number of (?:processes|ranks|GPUs))"
        r"|(?:world[ _]size|number of (?:ranks|partitions|processes)).*(?:does not match|differs?"
        r"|mismatch).*checkpoint"
        r"|checkpoint.*(?:world[ _]size|number of (?:ranks|partitions|processes)).*(?:does not"
        r" match|differs?"
        r"|mismatch)",
        what=(
            "the checkpoint was written by {old} processes and is loaded by {new}",
            "the checkpoint was written for another number of processes",
        ),
        fix=(
            "load it with as many processes as it was written by, or convert it to one file first"
            " (DeepSpeed: zero_to_fp32.py)"
        ),
    ),
    cause(
        "checkpoint-damaged",
        "failed finding central directory|invalid magic number|might be corrupted|not a"
        " zip|file is "
        "corrupt|invalid load key"
        "|deserializing header|headertoolarge|invalidheader|metadataincompletebuffer"
        "|pytorchstreamreader|checksum",
        r"failed finding central directory|[Ii]nvalid magic number; corrupt file|file might be"
        r" corrupted"
        r"|invalid load key"
        r"|Error while deserializing header|PytorchStreamReader failed"
        r"|invalid header or archive is corrupted|checksum (?:mismatch"
        r"|does not match|fail)|checkpoint.* (?:is|was|seems|be) (?:corrupt|damaged)|corrupt\w*"
        r" checkpoint",
        what="a checkpoint or data file is damaged, cut off, or not what its name says",
        fix=(
            "ls -l FILE and compare its size with the source; take the checkpoint before it (a"
            " git-lfs pointer has 130 bytes)"
        ),
    ),
    cause(
        "checkpoint-damaged",
        "ran out of input|unexpected eof|unexpected end of file|archive is corrupted|truncated",
        r"UnpicklingError: pickle data was truncated|EOFError: Ran out of input"
        r"|unexpected EOF, expected \d+ more bytes"
        r"|[Uu]nexpected end of file.*(?:checkpoint|\.(?:pt|pth|ckpt|bin|safetensors))|archive is"
        r" corrupted"
        r"|(?:checkpoint|\.(?:pt|pth|ckpt|bin|safetensors))\b.*\btruncated",
        what="a checkpoint or data file ends too early: it was not written to its end",
        fix="ls -l FILE and compare its size with the others; take the checkpoint before it",
        why="the writer was stopped, or the disk was full, while it was written",
        tier=Tier.COARSE,
    ),
    cause(
        "checkpoint-unfinished",
        ".metadata",
        r"(?:No such file or directory|not"
        r" found|missing).{0,20}['\"](?P<path>[^'\"]*/\.metadata)['\"]"
        r"|(?P<file>\S*/\.metadata) (?:does not exist|is missing|not found)",
        what=(
            (
                "the distributed checkpoint has no {path}, which is written last: its save was not"
                " finished"
            ),
            (
                "the distributed checkpoint has no {file}, which is written last: its save was not"
                " finished"
            ),
        ),
        fix="ls -a FOLDER; resume from the checkpoint before it, which has a .metadata",
        why="shards without the index that says where each tensor lies cannot be read",
    ),
    note(
        "state-key",
        "key(s) in state_dict",
        r"(?P<kind>Missing|Unexpected) key\(s\) in state_dict: *\"(?P<key>[\w.]+)\"",
    ),
)

"""Signatures of DistributedDataParallel, synchronized batch norm and mixed precision."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause, note
from paceline.signatures.tier import Tier

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "ddp-model-mismatch",
        "expects same model|appears not to match|params in this process|inconsistent",
        r"DDP expects same model across all ranks, but Rank (?P<a>\d+) has (?P<x>\d+) params, while"
        r" rank "
        r"(?P<b>\d+) has "
        r"inconsistent (?P<y>\d+) params|params\[(?P<index>\d+)\] in this process with sizes "
        r"(?P<sizes>\[[^\]]*\]) appears not to "
        r"match|DDP expects same model",
        what=(
            "rank {a} has {x} parameters, rank {b} has {y}: they hand different models to DDP",
            (
                "parameter {index} has the sizes {sizes} on this rank and others on rank 0: ranks"
                " hand different models to DDP"
            ),
            "ranks hand different models to DDP",
        ),
        fix=(
            "build the same model on every rank; what depends on data (number of classes) is"
            " computed once and broadcast"
        ),
    ),
    cause(
        "unused-parameters",
        "finished reduction in the prior iteration|did not receive grad|unused parameters|not used"
        " in producing",
        r"Expected to have finished reduction in the prior iteration|"
        r"Parameters? (?:indices )?which did not receive grad for rank (?P<rank>\d+):"
        r" *(?P<names>.{1,200})"
        r"|module has parameters that were not used in producing (?:the )?loss",
        what=(
            "parameters took no part in the loss on rank {rank}: {names}",
            "parameters took no part in the loss, so DDP waits for their gradients",
        ),
        fix=(
            "DistributedDataParallel(..., find_unused_parameters=True) (Lightning: "
            "strategy='ddp_find_unused_parameters_true'),"
            " or take the parameters out"
        ),
        why="TORCH_DISTRIBUTED_DEBUG=INFO prints their names",
        unless=r"did not find any unused",
    ),
    cause(
        "ddp-param-ready-twice",
        "mark a variable ready only once|marked as ready twice|marked ready twice|already been"
        " marked|ready twice",
        r"Expected to mark a variable ready only once|marked as ready twice|has been marked as"
        r" ready twice"
        r"|Parameter (?:at index )?.*marked.*ready.*(?:twice|multiple)|(?:parameter"
        r"|gradient).*already been (?:marked|reduced)",
        what=(
            "a parameter is marked ready twice in one backward: reentrant checkpointing, or a part"
            " that is used twice"
        ),
        fix=(
            "checkpoint(..., use_reentrant=False) (HF:"
            " gradient_checkpointing_kwargs={'use_reentrant': False}), without"
            " find_unused_parameters; or static_graph=True"
        ),
    ),
    cause(
        "ddp-inplace-buffer",
        "modified by an inplace operation|modified inplace",
        r"variables needed for gradient computation has been modified by an inplace "
        r"operation: *(?P<tensor>\[[^\]]*\[[^\]]*\]\])?"
        r"|variables needed for gradient computation has been modified",
        what=(
            (
                "a tensor that backward needs was changed in place: {tensor}; under DDP mostly a"
                " buffer that it broadcasts in each forward (likely)"
            ),
            (
                "a tensor that backward needs was changed in place; under DDP mostly a buffer that"
                " it broadcasts in each forward (likely)"
            ),
        ),
        fix=(
            "DistributedDataParallel(..., broadcast_buffers=False), or one forward for each"
            " backward, or SyncBatchNorm"
        ),
        tier=Tier.COARSE,
    ),
    cause(
        "process-group-not-initialized",
        "process group has not been initialized|process group not initialized|is not "
        "initialized|init_process_group|not initialized",
        r"Default process group (?:has not been|is not) initialized"
        r"|process group (?:has )?not (?:been )?initiali[sz]ed"
        r"|Distributed package (?:is )?not (?:been )?initiali[sz]ed|make sure to call"
        r" init_process_group"
        r"|call init_process_group\(?\)? (?:first|before)",
        what="a collective (or SyncBatchNorm) is used without a process group",
        fix=(
            "start the script with torchrun, or call init_process_group first; in a run of one"
            " process use plain BatchNorm"
        ),
    ),
    cause(
        "syncbn-single-gpu",
        "syncbatchnorm",
        r"SyncBatchNorm (?:is only supported|expected input tensor to be on|layers only work|can"
        r" only be used)",
        what=(
            "SyncBatchNorm is used where it cannot work: in a run of one process, or without GPUs"
            " and DDP"
        ),
        fix=(
            "use BatchNorm in a run of one process; torch.nn.SyncBatchNorm.convert_sync_batchnorm"
            " only where ranks run on GPUs"
        ),
    ),
    cause(
        "fp16-nan",
        "loss scale already at minimum|minimum loss scale|loss scale has reached",
        r"loss scale already at minimum|Minimum loss scale reached|loss[_ ]scale.*(?:reached|below)"
        r" (?:its "
        r"|the )?minimum",
        what="the loss scale has fallen to its minimum: gradients are NaN or Inf in every step",
        fix=(
            "use bf16, or find the NaN: torch.autograd.set_detect_anomaly(True); lower the learning"
            " rate, check inputs and labels"
        ),
        why="under fp16 each such step is skipped, so nothing is learnt",
    ),
    note(
        "loss-scale",
        "loss scale|loss_scale",
        r"(?:reducing loss scale (?:from \S+ )?to|OVERFLOW!.*reducing to|loss scale(?: is"
        r"| to)?[ :=]) *(?P<scale>[\d.]+(?:e[-+]?\d+)?)",
    ),
    note(
        "nan",
        "nan",
        r"NaN or Inf found|(?:loss|grad\w*)[^a-z]{1,6}nan\b|(?:loss|gradient)\w*"
        r" (?:is|became|contains) (?:nan|inf)",
    ),
    cause(
        "non-finite-on-one-rank",
        "nan|inf",
        r"(?:rank|process) (?P<rank>\d+)[^\n]{0,40}(?:loss|gradients?) (?:is|are|contains?)"
        r" (?:NaN|Inf)",
        what="loss or gradients are NaN or Inf on rank {rank}",
        fix="keep that rank's batch and look at it: torch.isfinite on inputs, labels and loss",
        tier=Tier.HINTED,
    ),
    cause(
        "fp16-nan",
        "floatingpointerror|non-finite|nan|loss is inf",
        r"FloatingPointError:.*(?:loss scale|[Nn]a[Nn]|inf)|Loss is (?:nan|inf)\w*, stopping|model"
        r" diverged.*nan|"
        r"(?:unscale|inf checks).*(?:nan|NaN)\b|Function '\w+' returned nan values"
        r"|total norm of order \S+ for gradients from `parameters` is non-finite"
        r"|found NaN in local (?:grad|forward)|tensor contains either `inf`, `nan`|Loss is"
        r" (?:nan|inf)\w*[.!]?$",
        what="loss or gradients became NaN or Inf",
        fix=(
            "torch.autograd.set_detect_anomaly(True) finds the operation; lower the learning rate,"
            " use bf16, check inputs"
        ),
        tier=Tier.COARSE,
        key="diverged",
    ),
    note(
        "fp16",
        "_fp16|-fp16| fp16|'fp16|.fp16|float16|16-mixed|precision=16|loss"
        " scale|loss_scale|gradscaler|unscale|half precision|.amp|use_amp|--amp",
        r"fp16(?!['\"]?\s*[:=]\s*(?:False|false|0))|\bfloat16|(?<!bf)16-mixed|precision=16\b|loss["
        r" _]scale|GradScaler"
        r"|unscale|half precision|\b(?:torch\.cuda\.)?amp\b(?!['\"]?\s*[:=]\s*(?:False|false|0))",
    ),
    note(
        "progress",
        "loss|it/s|s/it|step|epoch|iter",
        r"\bloss\w*\b.{0,12}\d|\d(?:it/s|s/it)\b|(?<!\*\* )\b(?:steps?|iter\w*|epoch)\b["
        r" :=\[#]{1,3}\d",
    ),
    note(
        "printed-loss",
        "loss",
        r"(?<!best[_ ])(?<!min[_ ])loss\w*['\"]?\s*[:= ]\s*(?:tensor\()?"
        r"(?P<value>[-+]?(?:nan|inf|\d[\d.e+-]*))\b",
    ),
    note(
        "passed-over",
        "skipp|retry|falling back|fall back|ignoring|ignored|attempt ",
        r"\bskip(?:ping|ped)\b|\b(?:will )?retry(?:ing)?\b|\bfall(?:ing)?"
        r" back\b|\bignor(?:ing|ed)\b|\battempt \d",
    ),
    note(
        "success",
        "train_runtime|stopped: `max_|training complete|training is complete|training"
        " finished|training done|success|exited with code 0|exit code 0|exit status 0|application"
        " startup complete|uvicorn running on",
        r"\btrain_runtime\b|Application startup complete|Uvicorn running on"
        r"|`Trainer\.fit` stopped: `max_\w+=\d+` reached"
        r"|\btraining (?:is )?(?:completed?|finished|done)\b"
        r"|\b(?:completed|finished|ended) successfully|successfully (?:completed|finished)"
        r"|exit(?:ed with)? (?:code|status)"
        r" 0(?!\d)",
    ),
    cause(
        "uneven-inputs",
        "exhausted inputs",
        r"at least one rank that exhausted inputs",
        what="one rank has no batches left while the others go on",
        fix="DistributedSampler with drop_last=True, or the same number of steps on every rank",
        why="collectives need all ranks: the others would wait for it",
    ),
    note(
        "stopping-on-nan",
        "is nan|is inf|nan loss|loss=nan",
        r"\b(?:loss|gradients?)\b.{0,12}\b(?:nan|inf)\b.*\b(?:stop|abort|exit)",
    ),
    note(
        "restart",
        "restart|attempts left|requeu",
        r"will restart worker group|restart_count=[1-9]|restarting (?:the )?(?:worker"
        r" group|workers|training"
        r"|job|run)\b"
        r"|\battempts? left|requeu(?:ed|ing)",
    ),
    note(
        "batches",
        "batches|loader|iterations|steps",
        r"\brank\s*[:=]?\s*(?P<rank>\d+)\b.{0,30}?(?:(?:num_)?batches|len\(\w*loader\w*\)"
        r"|iterations"
        r"|steps(?: per epoch)?)\s*[:=]\s*(?P<count>\d+)",
    ),
    note("replica", "in replica", r"Caught (?P<type>\w+) in replica (?P<replica>\d+) on device"),
    note(
        "rank-value",
        "rank",
        r"^\s*rank\s+(?P<rank>\d+) *[=:] *(?P<value>[-+]?(?:nan|inf|\d[\d.e+-]*))\s*$",
    ),
    cause(
        "replicas-differ",
        "inconsistent between workers|inconsistent across|not synchronized across|out of sync",
        r"(?:gradients?|parameters?|weights?) (?:are |is )?(?:inconsistent|not"
        r" (?:synchroni[sz]ed|equal|the same)"
        r"|out of sync)\w* "
        r"(?:between|across|on) (?:all )?(?:workers|ranks|processes|replicas)",
        what="gradients or parameters are not the same on all ranks",
        fix=(
            "every rank must build the same model and run the same layers; look for a rank with NaN"
            " or a changed buffer"
        ),
        tier=Tier.COARSE,
    ),
    cause(
        "straggler",
        "straggler",
        r"straggler detect(?:ion warning"
        r"|ed)\b(?:.*?\brank[=: ]+(?P<rank>\d+))?(?:.*?\bnode[=: ]+'?(?P<node>[\w.-]+))?",
        what=(
            "rank {rank} on {node} is slower than the others",
            "rank {rank} is slower than the others",
            "a rank is slower than the others",
        ),
        where="rank {rank}",
        fix=(
            "nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE on its node, against another node; else"
            " take the node out"
        ),
        why="every collective waits for the slowest rank",
        tier=Tier.SUSPECTED,
    ),
    note("missing-argument", "missing", r"missing \d+ required positional arguments?:"),
    cause(
        "batch-smaller-than-gpus",
        "chunk expects",
        r"chunk expects at least a 1-dimensional tensor",
        what="a batch has fewer samples than GPUs, so that one of them gets nothing",
        fix="DataLoader(..., drop_last=True), or a batch of at least one sample for each GPU",
    ),
    cause(
        "initialisation-differs",
        "initiali|parameters differ|weights differ",
        r"(?:initial(?:isation|ization)|parameters|weights) (?:are )?(?:differ|not the same"
        r"|not synchroni[sz]ed)\w* (?:between|across|on) "
        r"(?:all )?(?:ranks|processes)",
        what="ranks start with different parameters",
        fix="seed every rank alike before the model is built, or broadcast rank 0's parameters",
    ),
)

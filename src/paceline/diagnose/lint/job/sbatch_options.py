"""Tables of the options of sbatch and srun, Slurm 22.05 to 25.05: long names, short forms, kinds.
Data only.
"""

from __future__ import annotations

from collections.abc import Mapping

# Long name -> (short form, kind); the kind is "value", "flag" or "maybe" (a value only with "=").
_BOTH: dict[str, tuple[str, str]] = {
    "account": ("A", "value"),
    "acctg-freq": ("", "value"),
    "bb": ("", "value"),
    "bbf": ("", "value"),
    "begin": ("b", "value"),
    "chdir": ("D", "value"),
    "cluster-constraint": ("", "value"),
    "clusters": ("M", "value"),
    "comment": ("", "value"),
    "constraint": ("C", "value"),
    "consolidate-segments": ("", "flag"),
    "container": ("", "value"),
    "container-id": ("", "value"),
    "contiguous": ("", "flag"),
    "core-spec": ("S", "value"),
    "cores-per-socket": ("", "value"),
    "cpu-freq": ("", "value"),
    "cpus-per-gpu": ("", "value"),
    "cpus-per-task": ("c", "value"),
    "deadline": ("", "value"),
    "delay-boot": ("", "value"),
    "dependency": ("d", "value"),
    "distribution": ("m", "value"),
    "error": ("e", "value"),
    "exclude": ("x", "value"),
    "exclusive": ("", "maybe"),
    "export": ("", "value"),
    "extra": ("", "value"),
    "extra-node-info": ("B", "value"),
    "gid": ("", "value"),
    "gpu-bind": ("", "value"),
    "gpu-freq": ("", "value"),
    "gpus": ("G", "value"),
    "gpus-per-node": ("", "value"),
    "gpus-per-socket": ("", "value"),
    "gpus-per-task": ("", "value"),
    "gres": ("", "value"),
    "gres-flags": ("", "value"),
    "help": ("h", "flag"),
    "hint": ("", "value"),
    "hold": ("H", "flag"),
    "input": ("i", "value"),
    "job-name": ("J", "value"),
    "licenses": ("L", "value"),
    "mail-type": ("", "value"),
    "mail-user": ("", "value"),
    "mcs-label": ("", "value"),
    "mem": ("", "value"),
    "mem-bind": ("", "value"),
    "mem-per-cpu": ("", "value"),
    "mem-per-gpu": ("", "value"),
    "mincpus": ("", "value"),
    "network": ("", "value"),
    "nice": ("", "maybe"),
    "no-kill": ("k", "maybe"),
    "nodefile": ("F", "value"),
    "nodelist": ("w", "value"),
    "nodes": ("N", "value"),
    "ntasks": ("n", "value"),
    "ntasks-per-core": ("", "value"),
    "ntasks-per-gpu": ("", "value"),
    "ntasks-per-node": ("", "value"),
    "ntasks-per-socket": ("", "value"),
    "oom-kill-step": ("", "maybe"),
    "open-mode": ("", "value"),
    "output": ("o", "value"),
    "overcommit": ("O", "flag"),
    "oversubscribe": ("s", "flag"),
    "partition": ("p", "value"),
    "power": ("", "value"),
    "prefer": ("", "value"),
    "priority": ("", "value"),
    "profile": ("", "value"),
    "propagate": ("", "maybe"),
    "qos": ("q", "value"),
    "quiet": ("Q", "flag"),
    "reboot": ("", "flag"),
    "reservation": ("", "value"),
    "resv-ports": ("", "maybe"),
    "segment": ("", "value"),
    "signal": ("", "value"),
    "sockets-per-node": ("", "value"),
    "spread-job": ("", "flag"),
    "spread-segments": ("", "flag"),
    "stepmgr": ("", "flag"),
    "switches": ("", "value"),
    "test-only": ("", "flag"),
    "thread-spec": ("", "value"),
    "threads-per-core": ("", "value"),
    "time": ("t", "value"),
    "time-min": ("", "value"),
    "tmp": ("", "value"),
    "tres-bind": ("", "value"),
    "tres-per-task": ("", "value"),
    "uid": ("", "value"),
    "usage": ("", "flag"),
    "use-min-nodes": ("", "flag"),
    "verbose": ("v", "flag"),
    "version": ("V", "flag"),
    "wckey": ("", "value"),
    "x11": ("", "maybe"),
}
SBATCH: Mapping[str, tuple[str, str]] = {
    **_BOTH,
    "array": ("a", "value"),
    "batch": ("", "value"),
    "export-file": ("", "value"),
    "get-user-env": ("", "maybe"),
    "ignore-pbs": ("", "flag"),
    "kill-on-invalid-dep": ("", "value"),
    "no-requeue": ("", "flag"),
    "parsable": ("", "maybe"),
    "requeue": ("", "flag"),
    "wait": ("W", "flag"),
    "wait-all-nodes": ("", "value"),
    "wrap": ("", "value"),
}
SRUN: Mapping[str, tuple[str, str]] = {
    **_BOTH,
    "accel-bind": ("", "value"),
    "bcast": ("", "maybe"),
    "bcast-exclude": ("", "value"),
    "compress": ("", "maybe"),
    "cpu-bind": ("", "value"),
    "disable-status": ("X", "flag"),
    "epilog": ("", "value"),
    "exact": ("", "flag"),
    "external": ("", "flag"),
    "external-launcher": ("", "flag"),
    "het-group": ("", "value"),
    "immediate": ("I", "maybe"),
    "interactive": ("", "flag"),
    "jobid": ("", "value"),
    "kill-on-bad-exit": ("K", "maybe"),
    "label": ("l", "flag"),
    "mpi": ("", "value"),
    "msg-timeout": ("", "value"),
    "multi-prog": ("", "flag"),
    "no-allocate": ("Z", "flag"),
    "overlap": ("", "flag"),
    "preserve-env": ("E", "flag"),
    "prolog": ("", "value"),
    "pty": ("", "maybe"),
    "quit-on-interrupt": ("", "flag"),
    "relative": ("r", "value"),
    "send-libs": ("", "maybe"),
    "slurmd-debug": ("", "value"),
    "task-epilog": ("", "value"),
    "task-prolog": ("", "value"),
    "threads": ("T", "value"),
    "treewidth": ("", "value"),
    "unbuffered": ("u", "flag"),
    "wait": ("W", "value"),
    "wait-for-children": ("", "flag"),
    "whole": ("", "flag"),
}
# Other spellings of the same options.
_ALIASES = {
    "tasks": "ntasks",
    "tasks-per-node": "ntasks-per-node",
    "cpu_bind": "cpu-bind",
    "mem_bind": "mem-bind",
    "workdir": "chdir",
    "share": "oversubscribe",
    "cluster": "clusters",
    "job-id": "jobid",
    "pack-group": "het-group",
}


def names(text: str) -> frozenset[str]:
    """Return the words of a text as a set, for readable tables."""
    return frozenset(text.split())


# Options of plugins that many sites use (pyxis, shifter, the container engine, monitoring).
PLUGIN_OPTIONS = names(
    "container-image container-mounts container-workdir container-name container-save"
    " container-mount-home no-container-mount-home container-remap-root no-container-remap-root"
    " container-entrypoint no-container-entrypoint container-entrypoint-log container-writable"
    " container-readonly container-env container-image-save image module volume entrypoint"
    " environment uenv view repo disable-dcgm disable-perfparanoid disable-turbomode cuda-mps ear"
    " ear-policy ear-tag auks tmpdir nvme lustre-size enable-mps mps unbuffered-spank perf no-perf"
    " gpufreq gpu_cmode cpufreq singularity job-metrics"
)
_PLUGIN_OPTIONS_WITH_VALUE = names(
    "container-image container-mounts container-workdir container-name container-env container-save"
    " environment uenv view image volume module"
)


def canonical(typed: str, table: Mapping[str, tuple[str, str]] = SBATCH) -> str:
    """Return the long name of a long, short or uniquely abbreviated form, empty if there is
    none.
    """
    if typed in table:
        return typed
    if typed in _ALIASES:
        return _ALIASES[typed]
    if len(typed) == 1:
        return next((name for name, (short, _) in table.items() if short == typed), "")
    matches = {_ALIASES.get(name, name) for name in (*table, *_ALIASES) if name.startswith(typed)}
    return matches.pop() if len(matches) == 1 else ""


def takes_value(name: str, table: Mapping[str, tuple[str, str]] = SBATCH) -> bool:
    """Return whether the next word is an option's value; most options of pyxis take one."""
    if name in table:
        return table[name][1] == "value"
    return name in _PLUGIN_OPTIONS_WITH_VALUE

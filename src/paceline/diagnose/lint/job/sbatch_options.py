"""Tables of the options of sbatch and srun, Slurm 22.05 to 25.05: long names, short forms, kinds.
Data only.
"""

from __future__ import annotations

from collections.abc import Mapping


def _options(**words: str) -> dict[str, tuple[str, str]]:
    """Return short form and kind by long name, from words such as ``account=A`` by their kind.

    The kind is "value", "flag" or "maybe" (a value only with "=").
    """
    split = ((word.partition("="), kind) for kind, text in words.items() for word in text.split())
    return {name: (short, kind) for (name, _, short), kind in split}


_BOTH = _options(
    value="""
        account=A acctg-freq bb bbf begin=b chdir=D cluster-constraint clusters=M comment
        constraint=C container container-id core-spec=S cores-per-socket cpu-freq cpus-per-gpu
        cpus-per-task=c deadline delay-boot dependency=d distribution=m error=e exclude=x export
        extra extra-node-info=B gid gpu-bind gpu-freq gpus=G gpus-per-node gpus-per-socket
        gpus-per-task gres gres-flags hint input=i job-name=J licenses=L mail-type mail-user
        mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile=F nodelist=w
        nodes=N ntasks=n ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
        open-mode output=o partition=p power prefer priority profile qos=q reservation segment
        signal sockets-per-node switches thread-spec threads-per-core time=t time-min tmp
        tres-bind tres-per-task uid wckey
    """,
    maybe="exclusive nice no-kill=k oom-kill-step propagate resv-ports x11",
    flag="""
        consolidate-segments contiguous help=h hold=H overcommit=O oversubscribe=s quiet=Q
        reboot spread-job spread-segments stepmgr test-only usage use-min-nodes verbose=v
        version=V
    """,
)
SBATCH = _BOTH | _options(
    value="array=a batch export-file kill-on-invalid-dep wait-all-nodes wrap",
    maybe="get-user-env parsable",
    flag="ignore-pbs no-requeue requeue wait=W",
)
SRUN = _BOTH | _options(
    value="""
        accel-bind bcast-exclude cpu-bind epilog het-group jobid mpi msg-timeout prolog
        relative=r slurmd-debug task-epilog task-prolog threads=T treewidth wait=W
    """,
    maybe="bcast compress immediate=I kill-on-bad-exit=K pty send-libs",
    flag="""
        disable-status=X exact external external-launcher interactive label=l multi-prog
        no-allocate=Z overlap preserve-env=E quit-on-interrupt unbuffered=u wait-for-children
        whole
    """,
)
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
    """Return the long name of a long, short or uniquely abbreviated form, empty without one."""
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

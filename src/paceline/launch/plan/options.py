"""The options of ``paceline run``: torchrun's, with torchrun's meaning, and our own.

The help, the reference page, the parsers and the options of ``paceline submit`` follow from the
fields of ``Options``. Data only, standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline import env
from paceline.errors import Finding
from paceline.launch.plan import option_values as values
from paceline.launch.plan.option import flag, option, options_of, text
from paceline.launch.plan.starter_defaults import StarterDefaults

START_METHODS = ("fork", "forkserver", "spawn", "exec")
NUMA_MODES = ("node", "socket", "exclusive", "core-complex")
ON_HANG = ("report", "stop", "off")
EVENT_LOG_HANDLERS = ("null", "console", "dynamic_rendezvous")
RDZV_BACKENDS = ("static", "c10d", "etcd", "etcd-v2")
# Options for the number of nodes and the place of their rendezvous.
RENDEZVOUS_OPTIONS = (
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "rdzv_backend",
    "rdzv_endpoint",
)
DEFAULT_PORT = 29500
DEFAULT_C10D_PORT = 29400
LOOPBACK = ("127.0.0.1", "localhost", "::1")

RANKS = "Ranks and nodes"
ELASTIC = "Elastic rendezvous"
PROGRAM = "What is started"
BEFORE = "Before the start"
RUNNING = "While it runs"
STOPPING = "Stopping"
OUTPUT = "Output"


@dataclass(frozen=True)
class Options:
    """``paceline run`` as requested and checked. Times are in seconds."""

    script: str
    script_args: tuple[str, ...] = ()

    nnodes: tuple[int, int] = option(
        "number of nodes, or a range MIN:MAX",
        (1, 1),
        default_text="1:1",
        parse=values.node_range,
        metavar="N|MIN:MAX",
        group=RANKS,
    )
    nproc_per_node: str = option(
        "ranks on this node: a number, gpu, cpu, xpu or auto; default one per GPU, one without"
        " GPUs",
        "",
        parse=values.ranks_per_node,
        metavar="N",
        group=RANKS,
    )
    node_rank: int = option(
        "rank of this node, 0 is the head (static rendezvous)",
        0,
        parse=values.whole(0),
        metavar="N",
        group=RANKS,
    )
    master_addr: str = text(
        "address of the head (static rendezvous)", "127.0.0.1", metavar="HOST", group=RANKS
    )
    master_port: int | None = option(
        "port at the head (static rendezvous); on one node a free port",
        None,
        parse=values.port(DEFAULT_PORT),
        metavar="PORT",
        group=RANKS,
    )
    standalone: bool = flag(
        "one node with a store on a free port (what one node does anyway)", group=RANKS
    )

    rdzv_backend: str = text(
        "rendezvous: static, c10d, etcd or etcd-v2", "static", metavar="NAME", group=ELASTIC
    )
    rdzv_endpoint: str = text("where nodes meet, HOST:PORT", "", metavar="HOST:PORT", group=ELASTIC)
    rdzv_id: str = text("id of the run, the same on all nodes", "none", metavar="ID", group=ELASTIC)
    rdzv_conf: tuple[tuple[str, str], ...] = option(
        "further settings of the rendezvous, K1=V1,K2=V2",
        (),
        parse=values.settings,
        metavar="K=V,...",
        group=ELASTIC,
    )
    local_addr: str | None = text(
        "address of this node, if the one that routes to the head is wrong",
        None,
        metavar="ADDR",
        group=ELASTIC,
    )
    max_restarts: int = option(
        "how often the ranks may be started again after a failure",
        0,
        parse=values.whole(0),
        metavar="N",
        group=ELASTIC,
    )

    module: bool = flag("run a module, as python -m does", short="-m", group=PROGRAM)
    no_python: bool = flag("run a program that is not a Python script", group=PROGRAM)
    run_path: bool = flag("run the script with runpy.run_path", group=PROGRAM)
    start_method: str = option(
        "fork: from the fork server, which has imported torch; spawn: a fresh Python with"
        " paceline's entry; exec: python -u script.py, nothing seen inside",
        "fork",
        parse=values.choice(*START_METHODS),
        metavar="|".join(START_METHODS),
        group=PROGRAM,
        preference=(env.START_METHOD, str),
    )
    accelerate_config: str | None = text(
        "set what accelerate launch --config_file FILE would set; default accelerate's default"
        " configuration, if the script imports accelerate; none takes nothing",
        None,
        ours=True,
        metavar="FILE|none",
        group=PROGRAM,
    )
    numa_binding: str | None = option(
        "bind ranks to CPUs near their GPU",
        None,
        parse=values.choice(*NUMA_MODES),
        metavar="|".join(NUMA_MODES),
        group=PROGRAM,
    )
    virtual_local_rank: bool = flag("each rank sees one GPU, as device 0", group=PROGRAM)

    check: bool = flag("hold the roll call on one node too", ours=True, group=BEFORE)
    check_only: bool = flag(
        "hold the roll call, let the doctor examine every node, and end; a script need not be"
        " named",
        ours=True,
        group=BEFORE,
    )
    no_check: bool = flag(
        "start without a roll call: nodes are not compared, interfaces not tried",
        ours=True,
        group=BEFORE,
    )
    roll_call_timeout: float | None = option(
        "how long nodes are awaited before the start (300, 5m); default 15m (static) or 10m (c10d)"
        " as in torchrun, 5m in a Slurm step or under mpirun, 30m in pods",
        None,
        parse=values.duration("300"),
        ours=True,
        metavar="TIME",
        group=BEFORE,
    )
    prove: bool = flag(
        "prove on one rank, without an optimizer step, that the loss is a mean over rows, and end:"
        " 0 if it is, 1 if it mixes rows, 2 if that was not judged",
        ours=True,
        group=BEFORE,
        needs_probe=True,
        preference=(env.PROVE, bool),
    )
    no_slurm: bool = flag(
        "take nothing from Slurm: nodes, node rank and head are as typed", ours=True, group=BEFORE
    )
    secret_file: str | None = text(
        "file with a secret that all nodes have, by which their launchers know each other",
        None,
        ours=True,
        metavar="FILE",
        group=BEFORE,
    )

    hang_timeout: float | None = option(
        "end a run of which a rank makes no progress for this time (900, 15m, 2h); default: never,"
        " unless the hang is proven; a notice after 120 s",
        None,
        parse=values.duration("15m"),
        ours=True,
        metavar="TIME",
        group=RUNNING,
        needs_probe=True,
        preference=(env.HANG_TIMEOUT, float),
    )
    on_hang: str = option(
        "stop: end a run of which a hang is proven or has lasted for --hang-timeout; report: print"
        " it and continue; off: do not look",
        "stop",
        parse=values.choice(*ON_HANG),
        ours=True,
        metavar="|".join(ON_HANG),
        group=RUNNING,
        needs_probe=True,
        preference=(env.ON_HANG, str),
    )
    node_timeout: float = option(
        "time without a heartbeat of a node and without training steps, after which the node is"
        " lost (90, 5m)",
        90.0,
        default_text="90",
        parse=values.duration("2h"),
        ours=True,
        metavar="TIME",
        group=RUNNING,
    )
    check_finite: bool = flag(
        "end the run when a loss or gradient is not finite, and name the rank",
        ours=True,
        group=RUNNING,
        needs_probe=True,
    )
    check_replicas: int = option(
        "also compare the parameters of all ranks every N steps, not only after 1, 2, 4, 8, ...",
        0,
        default_text="",
        parse=values.whole(1),
        ours=True,
        metavar="N",
        group=RUNNING,
        needs_probe=True,
    )
    no_probe: bool = flag(
        "do not count steps or time the data inside the ranks",
        ours=True,
        group=RUNNING,
        preference=(env.NO_PROBE, bool),
    )
    nccl_debug: bool = flag(
        "NCCL's and torch's debug output into one file per rank", ours=True, group=RUNNING
    )

    max_time: float | None = option(
        "stop the run well after this time: seconds, 90m, 2h, or as Slurm writes it, 1-12:00:00",
        None,
        parse=values.duration("2h"),
        ours=True,
        metavar="TIME",
        group=STOPPING,
    )
    shutdown_timeout: int | None = option(
        "seconds that ranks have to end before they are killed, default 30",
        None,
        parse=values.whole(0),
        also="grace_s",
        metavar="S",
        group=STOPPING,
    )
    signals_to_handle: tuple[str, ...] = option(
        "signals to forward to the ranks",
        ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"),
        parse=values.signals,
        metavar="SIG,SIG",
        group=STOPPING,
    )

    run_dir: str | None = text(
        "folder of this run, default paceline-runs/<time>-<script>",
        None,
        ours=True,
        metavar="DIR",
        group=OUTPUT,
    )
    json: bool = flag("print the outcome as JSON to stdout at the end", ours=True, group=OUTPUT)
    tee: str = option(
        "streams that go to files and, with a prefix, to the console: as --redirects",
        "0",
        parse=values.streams,
        short="-t",
        group=OUTPUT,
    )
    redirects: str = option(
        "streams that go to files only: 0-3, or per local rank 0:1,1:2",
        "0",
        parse=values.streams,
        short="-r",
        group=OUTPUT,
    )
    local_ranks_filter: tuple[int, ...] = option(
        "local ranks that the console shows, such as 0,1",
        (),
        parse=values.local_ranks,
        metavar="N,N",
        group=OUTPUT,
    )
    log_dir: str | None = text(
        "put log files here, in torchrun's layout", None, metavar="DIR", group=OUTPUT
    )
    role: str = text("name of the ranks in prefixes", "default", metavar="NAME", group=OUTPUT)
    duplicate_stdout_filters: tuple[str, ...] = option(
        "lines of teed stdout to copy to filtered_stdout.log",
        (),
        parse=values.words,
        metavar="A,B",
        group=OUTPUT,
    )
    duplicate_stderr_filters: tuple[str, ...] = option(
        "lines of teed stderr to copy to filtered_stderr.log",
        (),
        parse=values.words,
        metavar="A,B",
        group=OUTPUT,
    )

    monitor_interval: float = option(
        "how often the launcher looks at its ranks, in seconds",
        0.1,
        parse=values.seconds,
        metavar="S",
    )
    log_line_prefix_template: str = text(
        "prefix of the lines that --tee shows, with ${role_name}, ${local_rank}, ${rank} and"
        " ${hostname}",
        "",
        metavar="TEXT",
        newer=True,
    )
    event_log_handler: str = option(
        "torch elastic's event log: null, console",
        "null",
        parse=values.choice(*EVENT_LOG_HANDLERS),
        metavar="NAME",
    )
    logs_specs: str | None = text(
        "entry point in torchrun.logs_specs that names log files", None, metavar="NAME"
    )

    # from the environment
    secret: str = field(default="", compare=False, repr=False)
    # options as typed, to repeat the command
    typed: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    starter_defaults: StarterDefaults = field(default=StarterDefaults(), compare=False)
    # option and source
    preferred: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    # about options without effect
    warnings: tuple[Finding, ...] = field(default=(), compare=False)

    @property
    def min_nodes(self) -> int:
        """The least number of nodes."""
        return self.nnodes[0]

    @property
    def max_nodes(self) -> int:
        """The greatest number of nodes."""
        return self.nnodes[1]

    @property
    def one_node(self) -> bool:
        """True if no other node can take part."""
        return self.max_nodes == 1

    @property
    def head_named(self) -> bool:
        """True if other machines can use the address of the head."""
        return bool(self.rdzv_endpoint) or self.master_addr not in LOOPBACK

    def source_of(self, name: str) -> str:
        """Return the source of an option's value: the option, or the place of the preference."""
        return dict(self.preferred).get(name, OPTION[name].long)


OPTIONS = tuple(options_of(Options))
OPTION = {declared.name: declared for declared in OPTIONS}

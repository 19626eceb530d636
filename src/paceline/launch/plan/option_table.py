"""The options of ``paceline run``: torchrun's with torchrun's meaning, and ours. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One option of the command line.

    Attributes:
        name: With underscores, as in ``PET_<NAME>``; the command line takes dashes and underscores.
        help: One line.
        default: Text of the default, as typed.
        short: A short form, such as ``-t``.
        flag: True for an option without a value.
        ours: True for what torchrun does not have.
        metavar: What stands for the value in the help.
        many: True for an option that may be given several times.
        newer: Only torchrun of torch 2.15 or newer has it: abbreviations of older ones must not become ambiguous.
    """

    name: str
    help: str
    default: str | None = None
    short: str = ""
    flag: bool = False
    ours: bool = False
    metavar: str = ""
    many: bool = False
    newer: bool = False

    @property
    def long(self) -> str:
        """The option as typed with dashes."""
        return "--" + self.name.replace("_", "-")


START_METHODS = ("fork", "forkserver", "spawn", "exec")
NUMA_MODES = ("node", "socket", "exclusive", "core-complex")
ON_HANG = ("report", "stop", "off")
EVENT_LOG_HANDLERS = ("null", "console", "dynamic_rendezvous")
RDZV_BACKENDS = ("static", "c10d", "etcd", "etcd-v2")
# Options that say how many nodes there are and where they meet.
MEETING = ("nnodes", "node_rank", "master_addr", "master_port", "rdzv_backend", "rdzv_endpoint")
DEFAULT_PORT = 29500
DEFAULT_C10D_PORT = 29400

OPTIONS: tuple[Option, ...] = (
    Option("nnodes", "number of nodes, or a range MIN:MAX", "1:1", metavar="N|MIN:MAX"),
    Option(
        "nproc_per_node",
        "ranks on this node: a number, gpu, cpu, xpu or auto; default one per GPU, one without GPUs",
        metavar="N",
    ),
    Option("node_rank", "rank of this node, 0 is the head (static rendezvous)", "0", metavar="N"),
    Option("master_addr", "address of the head (static rendezvous)", "127.0.0.1", metavar="HOST"),
    Option("master_port", "port at the head (static rendezvous); on one node a free port", metavar="PORT"),
    Option("local_addr", "address of this node, if the one that routes to the head is wrong", metavar="ADDR"),
    Option("rdzv_backend", "rendezvous: static, c10d, etcd or etcd-v2", "static", metavar="NAME"),
    Option("rdzv_endpoint", "where nodes meet, HOST:PORT", "", metavar="HOST:PORT"),
    Option("rdzv_id", "id of the run, the same on all nodes", "none", metavar="ID"),
    Option("rdzv_conf", "further settings of the rendezvous, K1=V1,K2=V2", "", metavar="K=V,..."),
    Option("standalone", "one node with a store on a free port (what one node does anyway)", flag=True),
    Option("max_restarts", "how often the ranks may be started again after a failure", "0", metavar="N"),
    Option("monitor_interval", "how often the launcher looks at its ranks, in seconds", "0.1", metavar="S"),
    Option(
        "start_method",
        "fork: from a warm process that has torch imported; spawn: a fresh Python with paceline's entry; "
        "exec: python -u script.py, nothing seen inside",
        "fork",
        metavar="|".join(START_METHODS),
    ),
    Option("role", "name of the ranks in prefixes", "default", metavar="NAME"),
    Option("module", "run a module, as python -m does", short="-m", flag=True),
    Option("no_python", "run a program that is not a Python script", flag=True),
    Option("run_path", "run the script with runpy.run_path", flag=True),
    Option("log_dir", "put log files here, in torchrun's layout", metavar="DIR"),
    Option("redirects", "streams that go to files only: 0-3, or per local rank 0:1,1:2", "0", "-r"),
    Option("tee", "streams that go to files and, with a prefix, to the console: as --redirects", "0", "-t"),
    Option(
        "log_line_prefix_template",
        "prefix of the lines that --tee shows, with ${role_name}, ${local_rank}, ${rank} and ${hostname}",
        metavar="TEXT",
        newer=True,
    ),
    Option("local_ranks_filter", "local ranks that the console shows, such as 0,1", "", metavar="N,N"),
    Option("duplicate_stdout_filters", "lines of teed stdout to copy to filtered_stdout.log", metavar="A,B"),
    Option("duplicate_stderr_filters", "lines of teed stderr to copy to filtered_stderr.log", metavar="A,B"),
    Option("event_log_handler", "torch elastic's event log: null, console", "null", metavar="NAME"),
    Option("logs_specs", "entry point in torchrun.logs_specs that names log files", metavar="NAME"),
    Option("numa_binding", "bind ranks to CPUs near their GPU", metavar="|".join(NUMA_MODES)),
    Option(
        "signals_to_handle",
        "signals to hand on to the ranks",
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        metavar="SIG,SIG",
    ),
    Option("shutdown_timeout", "seconds that ranks have to end by themselves, default 30", metavar="S"),
    Option("virtual_local_rank", "each rank sees one GPU, as device 0", flag=True),
    Option("grace_s", "the same as --shutdown-timeout", ours=True, metavar="S"),
    Option(
        "max_time",
        "stop the run well after this time: seconds, 90m, 2h, or as Slurm writes it, 1-12:00:00",
        ours=True,
        metavar="TIME",
    ),
    Option("check", "hold the roll call on one node too", flag=True, ours=True),
    Option(
        "check_only",
        "hold the roll call, let the doctor examine every node, and end; a script need not be named",
        flag=True,
        ours=True,
    ),
    Option("no_check", "start without a roll call: nodes are not compared, interfaces not tried", flag=True, ours=True),
    Option(
        "roll_call_timeout",
        "how long nodes are awaited before the start (300, 5m); default 15m (static) or 10m (c10d) as in torchrun, "
        "5m in a Slurm step",
        ours=True,
        metavar="TIME",
    ),
    Option(
        "node_timeout",
        "time without a heartbeat of a node and without training steps, after which the node is lost (90, 5m)",
        "90",
        ours=True,
        metavar="TIME",
    ),
    Option(
        "hang_timeout",
        "end a run of which a rank makes no progress for this time (900, 15m, 2h); default: never, unless the hang is "
        "proven; a notice after 120 s",
        ours=True,
        metavar="TIME",
    ),
    Option(
        "on_hang",
        "stop: end a run of which a hang is proven or has lasted for --hang-timeout; report: print it and continue; "
        "off: do not look",
        "stop",
        ours=True,
        metavar="report|stop|off",
    ),
    Option(
        "check_finite", "end the run when a loss or gradient is not finite, and name the rank", flag=True, ours=True
    ),
    Option(
        "check_replicas",
        "compare the parameters of all ranks every N optimizer steps",
        ours=True,
        metavar="N",
    ),
    Option("no_probe", "do not count steps or time the data inside the ranks", flag=True, ours=True),
    Option("nccl_debug", "NCCL's and torch's debug output into one file per rank", flag=True, ours=True),
    Option(
        "accelerate_config",
        "set what accelerate launch --config_file FILE would set; default accelerate's default configuration, if the "
        "script imports accelerate; none takes nothing",
        ours=True,
        metavar="FILE|none",
    ),
    Option("no_slurm", "take nothing from Slurm: nodes, node rank and head are as typed", flag=True, ours=True),
    Option(
        "secret_file",
        "file with a secret that all nodes have, by which their launchers know each other",
        ours=True,
        metavar="FILE",
    ),
    Option("run_dir", "folder of this run, default paceline-runs/<time>-<script>", ours=True, metavar="DIR"),
    Option("json", "print the outcome as JSON to stdout at the end", flag=True, ours=True),
)

"""Signatures of the rendezvous: stores, sockets, torchrun's rendezvous, launch variables."""

from __future__ import annotations

from paceline.signatures import texts
from paceline.signatures.signature import Signature, cause, note
from paceline.signatures.tier import Tier

_PORT_FIX = (
    (
        "take another port, --master-port {port} is held: --standalone on one node, or a port made"
        " from the job's number"
    ),
    (
        "take a free port: torchrun --standalone on one node, or a port made from the job's number;"
        " ss -ltnp tells who has it"
    ),
)
_REACH_FIX = (
    (
        "on each node: getent hosts {host}; nc -zv {host} {port}; if it is refused, the first"
        " node's program did not start"
    ),
    (
        "on each node: nc -zv $MASTER_ADDR $MASTER_PORT; use the first node's name as the others"
        " resolve it"
    ),
)
_WAIT_WHY = "the ranks that came wait for those that did not, until the timeout"

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "port-in-use",
        "eaddrinuse|address already in use|only one usage of each socket",
        r"failed to listen on any local network address(?:.*?port: (?P<port>\d+))?.*EADDRINUSE"
        r"|(?:Error|Exception|RuntimeError)\b[^(]*?(?:EADDRINUSE|Address already in use"
        r"|Only one usage of each socket)"
        r"|bind(?:\(\))?[^(]*: (?:Address already in use)|EADDRINUSE",
        what=(
            "port {port} of the master is already in use",
            "the port of the master is already in use",
        ),
        fix=_PORT_FIX,
        why="an earlier run still holds it, or two jobs on the node use the same port",
        unless=r"\[W[^\]]*socket\.cpp|tensorboard|visdom|prometheus|dashboard|jupyter",
    ),
    cause(
        "port-in-use",
        "address already in use",
        r"server socket has failed to (?:bind|listen).*?:(?P<port>\d+)\D*\(errno: 98",
        what="port {port} is already in use on this node",
        fix=_PORT_FIX,
        why="an earlier run still holds it, or two jobs on the node use the same port",
        tier=Tier.HINTED,
    ),
    cause(
        "port-in-use",
        "failed to listen on any local",
        r"server socket has failed to listen on any local network address",
        what="the port of the master cannot be listened on: it is in use",
        fix=_PORT_FIX,
        why="an earlier run still holds it, or two jobs on the node use the same port",
        unless=r"EACCES|Permission denied|code: -13|EADDRNOTAVAIL|code: -99",
    ),
    cause(
        "port-in-use",
        "permission denied|eacces",
        r"RuntimeError: Permission denied|(?:bind|listen).*(?:Permission denied|EACCES)",
        what=(
            "the port of the master may not be listened on (permission denied): it is below 1024 or"
            " reserved (likely)"
        ),
        fix="take a port from 20000 on: --master-port 29500; $RANDOM alone may give one below 1024",
        why="ports below 1024 belong to root",
        tier=Tier.COARSE,
        unless=r"ssh|rsync|/",
    ),
    cause(
        "master-addr-wrong",
        "eaddrnotavail|cannot assign requested address",
        r"(?:failed to (?:listen|bind)|bind).*(?:EADDRNOTAVAIL|Cannot assign requested address)",
        what="the master address does not belong to the node that is to listen on it",
        fix="set the master address to one of the first node: ip -br addr there lists them",
    ),
    cause(
        "master-addr-wrong",
        "network address of (|failed to connect to|trying to connect to",
        r"(?:addresses? of|connect to) \((?P<host>\d+), ?(?P<port>\d+)\)"
        r"|failed to connect to (?:\[::ffff:)?(?P<zero>0\.(?!0\.0\.0)\d+\.\d+\.\d+)",
        what=(
            (
                "the master address is the number {host}, which is read as an IP address and leads"
                " nowhere"
            ),
            (
                "the master address {zero} is no host's: a name that is a number was read as an IP"
                " address"
            ),
        ),
        fix=(
            "give the address in full: --master-addr 127.0.0.1 on one node, the first node's IP"
            " address on several"
        ),
        why="a host name made of digits counts as an IPv4 address",
        tier=Tier.HINTED,
    ),
    cause(
        "hostname-unresolvable",
        "host not found|can't resolve|nxdomain|gai error|gaierror|name or service not known"
        "|temporary failure in name resolution|nodename nor servname"
        "|could not resolve|getaddrinfo",
        r"(?<!IPv6 )network addresses of \((?P<host>[^,]+), ?(?P<port>\d+)\) cannot be retrieved"
        r"|(?:gaierror|getaddrinfo|resolve host|resolve hostname)\b.*?(?:Name or service not"
        r" known|Temporary failure"
        r"|nodename nor servname|No address associated|getaddrinfo failed)"
        r"|host not found: Name or service not known|nslookup: can't resolve '(?P<lookup>[^'()]+)'"
        r"|server can't find (?P<dns>[\w.-]+): NXDOMAIN"
        r"|ssh: Could not resolve hostname (?P<ssh>\S+?):|getaddrinfo\((?P<gai>[^,)]+).*(?:not"
        r" known|failure)",
        what=(
            "the name {host} of the master cannot be resolved",
            "the name {lookup} cannot be resolved",
            "the name {dns} cannot be resolved",
            "the name {ssh} cannot be resolved",
            "the name {gai} cannot be resolved",
            "the name of the master cannot be resolved",
        ),
        fix=(
            (
                "on each node: getent hosts {host}; use an address or name that every node resolves"
                " as --master-addr"
            ),
            (
                "on each node: getent hosts $MASTER_ADDR; use an address or name that every node"
                " resolves"
            ),
        ),
        why="no rank can reach a master whose name its node does not know",
        tier=Tier.HINTED,
        unless=(
            r"https?://|HTTP|urllib|requests\.|huggingface|wandb|HTTPSConnection|Max"
            r" retries|boto|s3\."
        ),
    ),
    cause(
        "hostname-unresolvable",
        "ipv6 network addresses",
        r"IPv6 network addresses of \((?P<host>[^,]+), ?(?P<port>\d+)\) cannot be retrieved",
        what="the name {host} of the master has no IPv6 address",
        fix=(
            "on each node: getent hosts {host}; if it has an IPv4 address, this warning does no"
            " harm"
        ),
        why="torch asks for IPv6 first; it is harmless where the IPv4 address is found",
        tier=Tier.RETRIED,
        key="ipv6",
    ),
    cause(
        "hostname-unresolvable",
        "hostname|host name",
        r"(?:unknown host|Unable to resolve host(?:name)?|No such host is known)\b[:"
        r" ]*(?P<host>[\w.-]+)?",
        what=("the name {host} cannot be resolved", "the name of the master cannot be resolved"),
        fix=(
            "on each node: getent hosts $MASTER_ADDR; use an address or name that every node"
            " resolves"
        ),
        tier=Tier.HINTED,
        unless=r"https?://|HTTP|urllib|loopback|huggingface",
    ),
    cause(
        "rendezvous-timeout",
        "clients joined|waiting for clients",
        rf"Timed out after (?P<seconds>\d+) seconds {texts.CLIENTS_MISSING}",
        what=(
            "{joined} of {total} clients joined within {seconds} s: the others did not start or did"
            " not arrive"
        ),
        fix=(
            "start the program on every node, with the same port and a node rank of its own each;"
            " compare --nnodes with the nodes of the job"
        ),
        why=_WAIT_WHY,
        tier=Tier.TIMEOUT,
    ),
    cause(
        "rendezvous-timeout",
        "clients joined|waiting for clients|wait for key|store based barrier|store-based"
        " barrier|workers joined|barrier timed out|initializing process group",
        r"waiting for clients|Timed out initializing process group(?! in store)"
        r"|Timed out (?:initializing process group )?in store[ -]based barrier"
        r"(?: on rank:? (?P<rank>\d+))?(?:.*?world_size=(?P<total>\d+),"
        r" (?:worker_count|num_workers_joined)="
        r"(?P<joined>\d+))?|store[ -]based barrier.*timed out|barrier timed out",
        what=(
            "{joined} workers joined where {total} were expected: the ranks do not add up",
            "not all ranks arrived at the start: the store's barrier ran into its timeout",
        ),
        fix=(
            "start the same command on every node; the number of processes must equal the world"
            " size"
        ),
        why=_WAIT_WHY,
        tier=Tier.TIMEOUT,
    ),
    cause(
        "rendezvous-timeout",
        "rendezvoustimeouterror",
        r"RendezvousTimeoutError",
        what="too few nodes joined the rendezvous in time",
        fix=(
            "start torchrun on every node within 10 minutes with the same --rdzv-id,"
            " --rdzv-endpoint and --nnodes"
        ),
        why=_WAIT_WHY,
        tier=Tier.TIMEOUT,
    ),
    cause(
        "rendezvous-timeout",
        "socket timeout|timeout|timed out|wait timeout",
        r"(?:RuntimeError|DistStoreError|StoreTimeout\w*|LookupError|TimeoutError): (?:Socket"
        r" Timeout"
        r"|Timeout waiting for "
        rf"key:? *(?P<key>\S+)|Wait timeout|{texts.STORE_WAIT_TIMEOUT}, keys?: *(?P<keys>\S+)"
        r"|Timed out waiting for key)"
        rf"|{texts.STORE_WAIT_TIMEOUT}, keys?:",
        what="a rank waited in vain for another one at the store: not all ranks arrived",
        fix=(
            "look for the rank that is missing in the other nodes' output; compare --nnodes and the"
            " number of processes"
        ),
        why=_WAIT_WHY,
        tier=Tier.TIMEOUT,
        unless=r"ncclUniqueId|broadcastUniqueNCCLID|HTTP|read timeout",
    ),
    cause(
        "rendezvous-timeout",
        "rendezvousclosederror|rendezvous gracefully|rendezvous has been closed|is closed",
        r"RendezvousClosedError|rendezvous '[^']*' (?:is|has been) (?:already )?closed",
        what="the rendezvous was closed: a node came to a run that was over",
        fix=(
            "give each attempt an id of its own: --rdzv-id $SLURM_JOB_ID, and start all nodes"
            " together"
        ),
        tier=Tier.TIMEOUT,
    ),
    cause(
        "late-node",
        "is still waiting|rendezvous participants|the node",
        r"(?:WAITING|waiting) for .* (?:rendezvous|participants)",
        what="a node waits for the others to join",
        fix="start the program on the other nodes too",
        tier=Tier.RETRIED,
    ),
    cause(
        "master-unreachable",
        "client socket has timed out|connect() timed out|tcpstore",
        rf"{texts.STORE_UNREACHABLE}|connect\(\) timed out"
        r"|(?:Connection to|TCPStore)[^.]*(?:timed out|Connection refused)|TCP client failed to"
        r" connect",
        what=(
            "nothing answered at the master's address {host}, port {port}, within {wait} ms",
            "nothing answered at the master's or rendezvous address in time",
        ),
        fix=_REACH_FIX,
        why=(
            "the first node's program is not running there, the address is wrong, or a firewall"
            " drops the packets"
        ),
        tier=Tier.TIMEOUT,
    ),
    cause(
        "master-unreachable",
        "failed to connect to any network address|connection to the c10d store has failed|no route"
        " to host",
        r"client socket has failed to connect to any network address of \((?P<host>[^,]+),"
        r" (?P<port>\d+)\)"
        r"|RendezvousConnectionError|connection to the C10d store has failed",
        what=(
            "nothing answers at the master's address {host}, port {port}",
            "nothing answers at the rendezvous address",
        ),
        fix=_REACH_FIX,
        why=(
            "the first node's program is not running there, the address is wrong, or a firewall"
            " drops the packets"
        ),
        tier=Tier.TIMEOUT,
    ),
    cause(
        "master-unreachable",
        "connection refused|connection timed out|no route to host|network is unreachable",
        r"client socket has failed to connect to \[?(?P<host>[^\s\]]+)\]?:(?P<port>\d+) \(errno:"
        r" \d+ - "
        r"(?P<error>[^)]+)\)",
        what="connecting to {host}, port {port}, fails: {error}",
        fix=_REACH_FIX,
        why=(
            "retries at the start are normal; at the end of a log they mean that nobody listens"
            " there"
        ),
        tier=Tier.RETRIED,
    ),
    cause(
        "master-unreachable",
        "connection refused|timed out|no route to host|unreachable",
        r"(?:ConnectionRefusedError|(?:Runtime|OS|Connection|Timeout|DistNetwork|DistStore)Error): "
        r"(?:\[Errno \d+\] )?(?:Connection refused|Connection timed out|No route to host|Network is"
        r" unreachable)"
        r"|EtcdException|etcd\S* (?:is )?unreachable",
        what="nothing answers at the address of the master",
        fix=_REACH_FIX,
        tier=Tier.TIMEOUT,
        unless=r"https?://|HTTP|urllib|requests\.|huggingface|wandb|Max retries",
    ),
    cause(
        "rdzv-host-mismatch",
        "is_host|this node is not the",
        r"(?:is_host|rendezvous host).*(?:mismatch|does not match|none of)",
        what="no node takes the rendezvous endpoint for its own, so nobody hosts the store",
        fix="on the first node: --rdzv-conf is_host=1; on the others: --rdzv-conf is_host=0",
    ),
    cause(
        "port-held-by-other",
        "invalid value returned from server|ping failed",
        r"(?:host (?P<host>[\w.-]+):(?P<port>\d+).*)?Ping failed, invalid value returned from"
        r" server",
        what=(
            "something else than the run's store answers at {host}, port {port}",
            "something else than the run's store answers at the master's port",
        ),
        fix=(
            "take another port, between 20000 and 60000; ss -ltnp on the first node tells which"
            " program holds it"
        ),
        why="a service or another program listens there, and does not speak the store's protocol",
        tier=Tier.HINTED,
    ),
    cause(
        "port-held-by-other",
        "failed to validate|validation|magic number|not a tcpstore",
        r"(?:client|store|TCPStore).*(?:failed to (?:connect/)?validate|validation failed|magic"
        r" number"
        r"|unexpected (?:query|reply))",
        what="something else than the run's store answers at the master's port",
        fix="take another port; ss -ltnp on the first node tells which program holds it",
        tier=Tier.HINTED,
        unless=r"retrying \(try=|corrupt|torch\.load|pickle",
    ),
    cause(
        "c10d-without-rdzv-endpoint",
        "master_addr is only used for static",
        r"master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified",
        what=(
            "torchrun was given --master-addr with another rendezvous than static: the address is"
            " ignored and no --rdzv-endpoint is given"
        ),
        fix=(
            "torchrun --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT ..., with the first node's"
            " name, on every node"
        ),
        why="each node then waits for itself, or for a store on its own localhost",
        tier=Tier.SUSPECTED,
    ),
    cause(
        "peer-rank-died",
        "did the remote server|broken pipe|connection was likely closed|connection reset by peer|"
        "failed to recv|failed to send|connection closed",
        rf"(?:{texts.STORE_CLOSED}|client socket has failed to (?:recv|send)"
        r"|TCPStore[^:]*: .*(?:Broken pipe|Connection (?:reset|closed))|sendBytes"
        r" failed|recvValueWithTimeout failed|"
        r"(?:Runtime|OS|DistNetwork|DistStore|BrokenPipe|Connection\w*)Error: (?:\[Errno \d+\] )?"
        r"(?:Broken pipe|Connection reset by peer|Connection closed))",
        what="the store's connection was closed: the process that hosts it ended first",
        fix="look at the end of rank 0's own output, or at the node that hosts the store",
        tier=Tier.VICTIM,
        unless=r"https?://|HTTP|urllib|requests\.|wandb",
    ),
    cause(
        "option-contradicted",
        "without libuv",
        r"use_libuv was requested but PyTorch was built without libuv",
        what="torch's store asks for libuv, which this build of torch does not have",
        fix="export USE_LIBUV=0 (Windows: set USE_LIBUV=0)",
    ),
    cause(
        "rendezvous-timeout",
        "barrier|ranks to",
        r"(?:worker|rank)s? (?:have|has) not (?:all )?(?:joined|arrived)|Waiting for (?:all"
        r" )?(?:workers|ranks"
        r"|nodes) .*timed out",
        what="not all ranks joined in time",
        fix="look for the ranks that are missing: did every node start the program?",
        tier=Tier.TIMEOUT,
    ),
    cause(
        "rendezvous-timeout",
        "deadline_exceeded|coordination service",
        r"DEADLINE_EXCEEDED: .*(?:Barrier|RegisterTask|WaitForever|GetKeyValue)"
        r"|coordination service.*(?:timed out|DEADLINE_EXCEEDED|UNAVAILABLE)",
        what="not all processes reached the coordination service in time",
        fix=(
            "start every process with the same coordinator address and number of processes; look"
            " for the missing one"
        ),
        why=_WAIT_WHY,
        tier=Tier.TIMEOUT,
    ),
    note(
        "store-barrier",
        "worker_count=|num_workers_joined=",
        r"world_size=(?P<total>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)",
    ),
    note(
        "init-file",
        "file://|filestore|init_file|init-file|dist_init|sharedfile",
        r"file://|FileStore|\binit[_-]file|dist_init\b|sharedfile",
    ),
    note(
        "rdzv-endpoint",
        "rdzv",
        r"(?:--rdzv[-_]endpoint[="
        r" ]+|rdzv_endpoint['\"]?\s*[=:]\s*)['\"]?(?P<endpoint>[\w.\[$][^\s'\"]*)",
    ),
    note(
        "torchrun-command",
        "rdzv",
        r"(?:torchrun|torch\.distributed\.run|launch)\b.*--rdzv[-_]backend[= ]c10d",
    ),
    note(
        "srun-command",
        "srun",
        r"\bsrun\b(?=.*\s(?:python|torchrun|accelerate|deepspeed|bash|\./))(?P<options>.*)",
    ),
)

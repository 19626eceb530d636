"""The port of the head is taken: by another program, or because the same command was started twice."""

import socket
from contextlib import closing

from faults.stage import fault


@fault(
    "port held by another program",
    finding="port-in-use",
    names=(r"port \d+", "pid|already in use"),
    status=2,
)
def test_another_program(stage):
    stage.script()
    with closing(socket.create_server(("", 0))) as holder:
        stage.start(None, master_port=holder.getsockname()[1])
        stage.wait(10)


@fault(
    "the same command twice, on one port",
    finding={0: "stopped-by-signal", 1: "port-in-use"},
    names={1: (r"port \d+", "pid|already in use")},
    status={0: 143, 1: 2},
    limit_s=15,
)
def test_the_same_command_twice(stage):
    stage.script(step="time.sleep(0.1)")
    with closing(socket.create_server(("", 0))) as holder:
        port = holder.getsockname()[1]
    first = stage.start(None, master_port=port)
    stage.all_up()
    second = stage.start(None, master_port=port)
    stage.broken()
    second.running.process.wait(20)
    first.signal(15)

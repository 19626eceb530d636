"""The run is ended from outside: Ctrl-C, SIGTERM, SIGHUP; also while ranks sit in a native wait."""

import signal

from faults.stage import FRAMEWORKS, fault

# Both wait for the other in gloo, where Python cannot hear a signal.
WAITS = "if step == 5:\n    leave(f'waits-{rank}', 'now')\n    dist.recv(torch.zeros(1), 1 - rank)"


def ended_by(stage, signum):
    stage.script()
    (launcher,) = stage.launch()
    stage.all_up()
    stage.broken()
    launcher.signal(signum)


@fault(
    "Ctrl-C",
    finding="stopped-by-signal",
    names=("SIGINT",),
    status=130,
    limit_s=3,
    frameworks=FRAMEWORKS,
)
def test_ctrl_c(stage):
    ended_by(stage, signal.SIGINT)


@fault(
    "Ctrl-C while all ranks sit in a native wait",
    finding="stopped-by-signal",
    names=("SIGINT",),
    status=130,
    limit_s=3,
    frameworks=FRAMEWORKS,
)
def test_ctrl_c_in_a_native_wait(stage):
    stage.script(step=WAITS)
    (launcher,) = stage.launch()
    for rank in range(2):
        stage.wait_for(f"waits-{rank}")
    stage.broken()
    launcher.signal(signal.SIGINT)


# Lightning's Trainer broadcasts in its signal handler: ranks that are at different steps then wait for each other
# until the time that they were given is over.
@fault(
    "SIGTERM",
    finding="stopped-by-signal",
    names=("SIGTERM",),
    status=143,
    frameworks=FRAMEWORKS,
    options=("--grace-s", "5"),
)
def test_sigterm(stage):
    ended_by(stage, signal.SIGTERM)


@fault(
    "SIGHUP",
    finding="sighup-terminal-closed",
    names=("SIGHUP", "terminal"),
    status=129,
    frameworks=FRAMEWORKS,
)
def test_sighup(stage):
    ended_by(stage, signal.SIGHUP)


@fault(
    "SIGTERM to the other host's launcher",
    finding="stopped-by-signal",
    names=("SIGTERM", "host-b"),
    status=143,
    num_hosts=2,
)
def test_sigterm_on_one_host(stage):
    stage.script()
    _, other = stage.launch()
    stage.all_up()
    stage.broken()
    other.signal(signal.SIGTERM)

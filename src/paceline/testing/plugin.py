"""The pytest plugin: the mark ``ranks`` and the fixtures.

pytest loads this module in every environment that has paceline installed, so it imports nothing but
pytest, and does nothing for a test without the mark or one of its fixtures.
"""

from __future__ import annotations

import contextlib
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from paceline.testing.faults import Faults
    from paceline.testing.job import RankOutcome
    from paceline.testing.mark import RanksMark
    from paceline.testing.parity import SameAtAnySize
    from paceline.testing.pool import Ranks, RanksFailed

_MARK = "ranks"
# The parameter that holds a case's number of ranks.
_PARAMETER = "ranks_world_size"
_FAILURE: pytest.StashKey[RanksFailed] = pytest.StashKey()
_POOL: pytest.StashKey[Ranks] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the ini options, and let paceline's modules be imported as they are."""
    _leave_assertions(pluginmanager)
    parser.addini(
        "ranks_timeout_s", "Seconds that the ranks of a test may take (paceline)", default="60"
    )
    parser.addini(
        "ranks_preload",
        "Modules that are imported before ranks are forked (paceline)",
        type="args",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        "ranks(*sizes, group=True, fresh=False, timeout_s=60, collective_timeout_s=30): run the"
        " test on so many gloo ranks; each size is a case (paceline)",
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the ranks."""
    ranks = config.stash.get(_POOL, None)
    if ranks is not None:
        ranks.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a case of each number of ranks."""
    if metafunc.definition.get_closest_marker(_MARK) is None:
        return
    mark = _mark_of(metafunc.definition)
    metafunc.fixturenames.append(_PARAMETER)
    names = [f"{size}-rank" if size == 1 else f"{size}-ranks" for size in mark.sizes]
    metafunc.parametrize(_PARAMETER, mark.sizes, ids=names)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse the mark where it has no effect."""
    if item.get_closest_marker(_MARK) is None:
        return
    reason = _unfit(item)
    if reason:
        _refuse(f"the mark ranks does nothing here: {reason}", item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a test with the mark in its ranks."""
    if pyfuncitem.get_closest_marker(_MARK) is None:
        return None
    from paceline.errors import PacelineError
    from paceline.testing.pool import RanksFailed

    pool = _pool(pyfuncitem.config)
    try:
        outcomes = _call(pool, pyfuncitem)
    except PacelineError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    except pytest.fail.Exception as error:  # pytest-timeout: where the ranks are says more
        error.pytrace = False
        raise
    except RanksFailed as failure:
        pyfuncitem.stash[_FAILURE] = failure
        raise _original(failure) from None
    finally:
        for name, text in pool.output.items():
            pyfuncitem.add_report_section("call", name, text)
    _pass_on(outcomes)
    return True


# The older kind of wrapper: pluggy before 1.2 refuses the newer one, in every session of a user.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Show the tracebacks of the ranks instead of that of the test process."""
    outcome = yield
    failure = item.stash.get(_FAILURE, None)
    if failure is None:
        return
    report = outcome.get_result()
    if report.when == "call" and report.longrepr is not None:
        report.longrepr = RanksRepr(failure, str(item.path))
        del item.stash[_FAILURE]


@pytest.fixture(scope="session")
def ranks(pytestconfig: pytest.Config) -> Ranks:
    """Gloo ranks for tests that compare runs: ``ranks.run(function, *args, world_size=2)``."""
    return _pool(pytestconfig)


@pytest.fixture
def same_at_any_size(pytestconfig: pytest.Config) -> SameAtAnySize:
    """Check that a function returns the same numbers on 1, 2 and 3 ranks."""
    from paceline.testing.parity import SameAtAnySize

    return SameAtAnySize(_pool(pytestconfig))


@pytest.fixture
def faults() -> Faults:
    """Break a rank: ``faults.die(rank=1, step=3)``, ``faults.hang``, ``faults.nan``."""
    from paceline.testing.faults import Faults

    return Faults()


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Any:
    """The number of this rank, in a test with the mark ``ranks``; known in its body only."""
    from paceline.testing.job import PerRank

    _world_size(request)
    return PerRank("rank")


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """Number of ranks of a test with the mark ``ranks``."""
    return _world_size(request)


class RanksRepr:
    """A failure as pytest shows it: printed, in its summary and in JUnit's XML."""

    def __init__(
        self,
        failure: RanksFailed,
        path: str,  # of the test
    ) -> None:
        self._text = str(failure)
        # what pytest's summary takes the line from
        self.reprcrash = SimpleNamespace(path=path, lineno=0, message=failure.headline)

    def __str__(self) -> str:
        return self._text

    def toterminal(self, writer: Any) -> None:
        """Print the text; lines of assertions are red, as usual."""
        for line in self._text.splitlines():
            is_error = line.startswith("E ")
            writer.line(line, red=is_error, bold=is_error)


def _leave_assertions(pluginmanager: Any) -> None:
    """Keep pytest from rewriting the assertions of paceline's modules, which users never see.

    pytest marks all packages of a distribution that has a plugin. Its loader reads and hashes the
    source of each module that it imports, or rewrites it, where Python only reads the compiled one.
    """
    with contextlib.suppress(AttributeError):  # private names, which another version may not have
        hook = pluginmanager.rewrite_hook
        hook._must_rewrite.discard("paceline")
        hook._marked_for_rewrite_cache.clear()


def _world_size(request: pytest.FixtureRequest) -> int:
    size = _parameters(request.node).get(_PARAMETER)
    if size is None:
        name = request.fixturename
        _refuse(f"the fixture {name} belongs to tests with the mark ranks", request.node.nodeid)
    return int(size)


def _parameters(item: Any) -> dict[str, Any]:
    """Return the parameters of a case; empty for a test without any."""
    return dict(getattr(getattr(item, "callspec", None), "params", {}))


def _unfit(item: pytest.Item) -> str:
    """Return why a test cannot run in ranks; empty if it can."""
    function = getattr(item, "obj", None)
    if inspect.iscoroutinefunction(function):
        return "the test is asynchronous"
    if inspect.isgeneratorfunction(function):
        return "the test is a generator"
    if _PARAMETER not in _parameters(item):
        return "give it to a test function or a plain class, not to unittest or to a parameter"
    return ""


def _refuse(what: str, where: str) -> NoReturn:
    from paceline.errors import Finding

    fix = "@pytest.mark.ranks(1, 2, 3) above a test function"
    finding = Finding("option-contradicted", what, where=where, fix=fix)
    pytest.fail(finding.render(), pytrace=False)


def _mark_of(node: Any) -> RanksMark:
    """Return the mark of a test; an invalid one fails the test with a finding."""
    from paceline.errors import UsageError
    from paceline.testing.mark import parse

    mark = node.get_closest_marker(_MARK)
    try:
        return parse(mark.args, mark.kwargs, where=node.nodeid)
    except UsageError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _pool(config: pytest.Config) -> Ranks:
    """Return the ranks of this process; they start with the first call."""
    started = config.stash.get(_POOL, None)
    if started is not None:
        return started
    from paceline.testing.pool import Ranks
    from paceline.testing.processes import Style

    config.stash[_POOL] = Ranks(
        Style.of(config),
        preload=config.getini("ranks_preload"),
        timeout_s=_timeout_s(config.getini("ranks_timeout_s")),
    )
    return config.stash[_POOL]


def _timeout_s(text: str) -> float:
    from paceline.errors import Finding

    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        what = f"ranks_timeout_s = {text} is not a number of seconds"
        raise pytest.UsageError(
            Finding("option-invalid", what, where="pytest's ini file", fix="60").render()
        )
    return value


def _call(pool: Ranks, item: pytest.Function) -> dict[int, RankOutcome]:
    __tracebackhide__ = True
    from paceline.testing.job import GROUP, VARIABLES, PerRank
    from paceline.testing.pool import RankCall

    mark = _mark_of(item)
    names = inspect.signature(item.obj).parameters
    arguments = {
        name: PerRank("monkeypatch") if isinstance(value, pytest.MonkeyPatch) else value
        for name, value in item.funcargs.items()
        if name in names
    }
    return pool.call(
        RankCall(item.obj, (), arguments, (item.module.__name__,)),
        world_size=_parameters(item)[_PARAMETER],
        kind=GROUP if mark.group else VARIABLES,
        fresh=mark.fresh,
        timeout_s=mark.timeout_s,
        collective_timeout_s=mark.collective_timeout_s,
    )


def _original(failure: RanksFailed) -> BaseException:
    """Return the exception of the rank that failed first: ``xfail(raises=...)`` looks at it."""
    from paceline.testing import report
    from paceline.testing.job import unpack

    first = next(iter(report.failures(failure.outcomes).values()))
    error = unpack(first.exception) if first.exception else failure
    return error if isinstance(error, Exception) else failure


def _pass_on(outcomes: dict[int, RankOutcome]) -> None:
    """Skip the test, or let it fail as expected, if a rank did."""
    from paceline.testing.job import SKIPPED, XFAILED

    for outcome in outcomes.values():
        if outcome.kind == SKIPPED:
            pytest.skip(outcome.headline)
        if outcome.kind == XFAILED:
            pytest.xfail(outcome.headline)

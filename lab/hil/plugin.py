"""The pytest plugin of `fenced-lab[hil]`: a daemon under test as a fixture, and what tries it.

`--fenced-socket-dir` takes a daemon that serves already; without it the harness starts one with the probe models, or
with `--fenced-bundle` and `--fenced-root`, in the vehicle environment. Fixtures: `fenced_daemon`, `fenced_camera`,
`fenced_consumer`, `fenced_clock`, `fenced_scenario`, `fenced_fault`. Every test's JUnit properties tell the model's
digest and the latency's quantiles; `--fenced-report` writes one page. docs/hil.md shows how.
"""

# ruff: noqa: PLC0415 (pytest loads this module in every run: nothing heavy is imported before a fixture is asked for)

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from client.consumer import Consumer
    from lab.hil.bench import Bench
    from lab.hil.clock import Clock
    from lab.hil.faults.fault import Finding
    from lab.hil.run import Report
    from lab.hil.stage import Stage

MARKERS = (
    "fenced_needs(need): skip the test on a bench without `probes` or without a daemon of its `own`",
    "fenced_row(row): which row of the cases the test is about, as `frames/12`; told in its JUnit properties",
)
_NEEDS = {"serving": "SERVING", "probes": "PROBES", "own": "OWN"}


@dataclass
class Session:
    """What one run of pytest saw, for its report."""

    outcomes: list[tuple[str, str, float]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


_SESSION = pytest.StashKey[Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options."""
    group = parser.getgroup("fenced", "a fenced daemon under test")
    group.addoption("--fenced-socket-dir", type=Path, metavar="DIR", help="a daemon that serves already")
    group.addoption("--fenced-audit", type=Path, metavar="FILE", help="its audit log, where it can be read")
    group.addoption("--fenced-lab", type=Path, metavar="DIR", help="the probe lab whose bundles it serves")
    group.addoption("--fenced-bundle", type=Path, metavar="FILE", help="what the harness's daemon serves, not probes")
    group.addoption("--fenced-root", type=Path, metavar="FILE", help="the root that vouches for --fenced-bundle")
    group.addoption("--fenced-vehicle", type=Path, metavar="DIR", help="the environment that holds bin/fenced")
    group.addoption("--fenced-real-time", action="store_true", help="fenced_clock waits for each period")
    group.addoption("--fenced-report", type=Path, metavar="FILE", help="write one HTML page about the run")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[_SESSION] = Session()
    if (config.getoption("--fenced-bundle") is None) != (config.getoption("--fenced-root") is None):
        raise pytest.UsageError("--fenced-bundle needs the --fenced-root that vouches for it, and the other way round")


@pytest.fixture(scope="session")
def fenced_daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The daemon under test, as a `lab.hil.bench.Bench`: clients of it, its status, its models."""
    from lab.hil.bench import Bench
    from lab.hil.daemon import VEHICLE

    option, folder = request.config.getoption, tmp_path_factory.mktemp("fenced")
    vehicle = option("--fenced-vehicle") or VEHICLE
    with ExitStack() as stack:
        if sockets := option("--fenced-socket-dir"):
            yield stack.enter_context(Bench.attached(sockets, folder, option("--fenced-lab"), vehicle))
        elif bundle := option("--fenced-bundle"):
            yield stack.enter_context(Bench.serving(folder, bundle, option("--fenced-root"), vehicle=vehicle))
        else:
            yield stack.enter_context(Bench.started(folder, vehicle=vehicle))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tells the rows of marked tests, and lets those with needs ask the bench first."""
    for item in items:
        for mark in item.iter_markers("fenced_row"):
            item.user_properties.append(("fenced_row", mark.args[0]))
        if isinstance(item, pytest.Function) and item.get_closest_marker("fenced_needs"):
            item.fixturenames.append("_fenced_needs")


@pytest.fixture
def _fenced_needs(request: pytest.FixtureRequest, fenced_daemon: Bench) -> None:
    """Skips a test whose needs the bench does not meet."""
    from lab.hil.bench import Need
    from lab.hil.verdict import Unavailable

    for mark in request.node.iter_markers("fenced_needs"):
        if mark.args[0] not in _NEEDS:
            raise pytest.UsageError(f"fenced_needs takes one of {', '.join(_NEEDS)}, not {mark.args[0]!r}")
        try:
            fenced_daemon.require(Need[_NEEDS[mark.args[0]]])
        except Unavailable as missing:
            pytest.skip(str(missing))


@pytest.fixture
def fenced_camera(request: pytest.FixtureRequest, fenced_daemon: Bench) -> Iterator[Callable[..., Stage]]:
    """Opens a camera with a consumer of its results: `fenced_camera(source="road", seed=1, model=None, frames=None)`.

    `source`: road, noise, or file with `frames`. Each `step(index)` of what it returns is one frame period.
    """
    from lab.hil.scenario import CameraPlan
    from lab.hil.served import as_camera
    from lab.hil.stage import Stage
    from lab.hil.view import make_view

    stages: list[Stage] = []

    def open_camera(source: str = "noise", *, seed: int = 1, model: str | None = None, frames: Path | None = None,
                    rate_hz: float = 20.0, slots: int = 3) -> Stage:  # fmt: skip
        served = next(one for one in fenced_daemon.models if model in (one.name, None) and len(one.streams) == 1)
        contract = as_camera(next(iter(served.streams.values())))
        view = make_view(CameraPlan(source, seed, frames, slots), None, contract, rate_hz)
        stage = Stage(fenced_daemon, served, view, slots, 1 / rate_hz)
        stages.append(stage)
        stage.open()
        return stage

    yield open_camera
    for stage in stages:
        stage.close()
        request.node.user_properties += _properties(stage.model.name, stage.model.digest, stage.trace.latency_ms())


@pytest.fixture
def fenced_consumer(fenced_daemon: Bench) -> Iterator[Callable[..., Consumer]]:
    """Subscribes: `fenced_consumer(model=None, **more)`, more as of `client.consumer.Consumer.subscribe`."""
    with ExitStack() as stack:
        yield lambda model=None, **more: stack.enter_context(
            fenced_daemon.consumer(model or fenced_daemon.first.name, **more)
        )


@pytest.fixture
def fenced_clock(request: pytest.FixtureRequest) -> Clock:
    """Frame periods: `for index in fenced_clock.periods(seconds=2, rate_hz=20)`; lock-step unless asked otherwise."""
    from lab.hil.clock import Clock

    return Clock(real_time=request.config.getoption("--fenced-real-time"))


@pytest.fixture
def fenced_scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str | Path], Report]:
    """Plays a scenario file and fails the test unless all that it expects is met; returns its Report.

    A path is taken from the test's own folder. With `--fenced-socket-dir` it is played against that daemon.
    """
    from lab.hil.daemon import VEHICLE
    from lab.hil.report import shown
    from lab.hil.run import Attached, play
    from lab.hil.scenario_toml import load_scenario
    from lab.hil.verdict import WrongAnswer

    option, session = request.config.getoption, request.config.stash[_SESSION]

    def run(path: str | Path) -> Report:
        scenario = load_scenario(request.path.parent / path)
        sockets = option("--fenced-socket-dir")
        folder = tmp_path / f"scenario-{len(session.reports)}"
        report = play(scenario, folder, vehicle=option("--fenced-vehicle") or VEHICLE,
                      attached=Attached(sockets, option("--fenced-audit")) if sockets else None)  # fmt: skip
        session.reports.append(report)
        digests = ", ".join(sorted({one.digest for one in report.trace.results()}))
        request.node.user_properties += _properties(report.model.name, digests, report.trace.latency_ms())
        wrong = [one for one in report.checks if not one.passed]
        if wrong:
            found = "; ".join(f"{one.measure} {one.bound}: {one.why or shown(one.found)}" for one in wrong)
            raise WrongAnswer(scenario.name, "all expectations met", found)
        return report

    return run


@pytest.fixture
def fenced_fault(request: pytest.FixtureRequest, fenced_daemon: Bench) -> Callable[[str], Finding]:
    """Injects the fault of a row, as `fenced_fault("frames/12")`: fails on a wrong answer, skips where it cannot."""
    from lab.hil.faults.fault import Outcome, try_fault
    from lab.hil.faults.index import FAULTS

    def inject(row: str) -> Finding:
        finding = try_fault(next(one for one in FAULTS if one.row == row), fenced_daemon)
        request.config.stash[_SESSION].findings.append(finding)
        request.node.user_properties.append(("fenced_row", row))
        if finding.outcome is Outcome.WRONG:
            pytest.fail(f"{row}: {finding.fault.answer}; {finding.words}", pytrace=False)
        if finding.outcome is Outcome.UNAVAILABLE:
            pytest.skip(f"{row}: {finding.words}")
        return finding

    return inject


def _properties(model: str, digest: str, latency_ms: dict[str, float]) -> list[tuple[str, object]]:
    return [
        ("fenced_model", model), ("fenced_model_digest", digest),
        *((f"fenced_latency_ms_{name}", f"{value:.3f}") for name, value in latency_ms.items()),
    ]  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes how each test came out, if there will be a page."""
    report = yield
    if item.config.getoption("--fenced-report") is None:
        return report
    if report.when == "call" or report.outcome != "passed":
        word = report.outcome if report.when == "call" or report.skipped else "error"
        item.config.stash[_SESSION].outcomes.append((report.nodeid, word, report.duration))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the page, if one was asked for."""
    path = session.config.getoption("--fenced-report")
    if path is not None:
        from lab.hil.session_page import session_page

        seen = session.config.stash[_SESSION]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(session_page(seen.outcomes, seen.reports, seen.findings), encoding="utf-8")

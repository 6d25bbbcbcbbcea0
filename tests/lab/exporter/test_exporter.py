"""The exporter over HTTP: what a daemon says, also when it is away; and that a reader that stops stalls nobody."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families

from daemon.metrics import family_names
from lab.exporter.source import FAMILIES, DaemonCollector
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, picture, run_one

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
PATIENT = ("--timeout-s", str(LIMIT_S))


class Exporter:
    """An exporter's process, and its page."""

    def __init__(self, sockets: Path, *options: str) -> None:
        program = "from lab.exporter.main import main; raise SystemExit(main())"
        command = [sys.executable, "-c", program, "--sockets", str(sockets), "--port", "0", *PATIENT, *options]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        found = re.search(r"http://127.0.0.1:(\d+)/metrics", self.child.stdout.readline())
        assert found is not None
        self.port = int(found[1])

    def page(self, accept: str = OPEN_METRICS) -> str:
        """One scrape."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def stop(self) -> int:
        """As its service manager ends it."""
        self.child.send_signal(signal.SIGTERM)
        self.child.communicate(timeout=60)
        return self.child.returncode


@contextlib.contextmanager
def exporting(sockets: Path, *options: str) -> Iterator[Exporter]:
    exporter = Exporter(sockets, *options)
    try:
        yield exporter
    finally:
        exporter.child.kill()
        exporter.child.communicate()


def numbers(text: str) -> dict[str, float]:
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.fixture
def maker(tmp_path: Path) -> BundleMaker:
    (tmp_path / "models").mkdir()
    return BundleMaker(tmp_path / "models")


@pytest.fixture
def daemon(tmp_path: Path, maker: BundleMaker) -> Iterator[DaemonThread]:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as running:
        yield running


def test_a_scrape_gives_everything_in_either_format_and_the_exporter_ends_in_order(daemon: DaemonThread) -> None:
    with exporting(daemon.sockets) as exporter, daemon.camera() as camera, daemon.consumer() as consumer:
        run_one(camera, consumer, 1, picture(1))
        text = exporter.page()
        assert text.endswith("# EOF\n")
        families = {one.name for one in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
        assert families == {*family_names(), *(name.removesuffix("_total") for name in FAMILIES)}
        assert numbers(text)["fenced_published_total"] == numbers(text)["fenced_latency_seconds_count"] == 1
        plain = {one.name for one in prometheus_families(exporter.page("text/plain"))}  # type: ignore[no-untyped-call]
        assert {"fenced_published", "fenced_latency_seconds", "fenced_exporter_up"} <= plain
        assert exporter.stop() == 0


def test_an_exporter_outlives_its_daemon_and_says_that_it_is_away(tmp_path: Path, maker: BundleMaker) -> None:
    with exporting(tmp_path / "sockets", "--least-interval-s", "0") as exporter:
        away = numbers(exporter.page())
        assert (away["fenced_exporter_up"], away["fenced_exporter_failures_total"]) == (0, 1)
        assert "fenced_ready" not in away
        for _ in range(2):
            with DaemonThread(tmp_path, [maker.write(TinyModel())], maker):
                found = numbers(exporter.page())
                assert (found["fenced_exporter_up"], found["fenced_ready"]) == (1, 1)
            assert numbers(exporter.page())["fenced_exporter_up"] == 0


def test_a_session_that_the_daemon_closed_for_its_silence_is_opened_anew(daemon: DaemonThread) -> None:
    collector = DaemonCollector(daemon.sockets / "control.sock", timeout_s=LIMIT_S, least_interval_s=0)
    registry = CollectorRegistry()
    registry.register(collector)
    assert registry.get_sample_value("fenced_ready") == 1
    daemon.service.loop.call_soon(lambda: [peer.close() for peer in list(daemon.service.server._peers)])
    daemon.wait_for(lambda status: status["peers"]["control"] == 1)  # the one that asks this
    assert registry.get_sample_value("fenced_ready") == 1
    assert registry.get_sample_value("fenced_exporter_failures_total") == 0
    collector.close()


def test_many_scrapes_ask_the_daemon_once(daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    service = daemon.service
    metrics = service.metrics
    monkeypatch.setattr(service, "metrics", lambda: (asked.append(1), metrics())[1])
    collector = DaemonCollector(daemon.sockets / "control.sock", timeout_s=LIMIT_S, least_interval_s=3600)
    for _ in range(5):
        assert "fenced_ready" in {family.name for family in collector.collect()}
    assert len(asked) == 1
    collector.close()


def test_a_scraper_that_stops_reading_stalls_neither_frames_nor_another_scraper(daemon: DaemonThread) -> None:
    with exporting(daemon.sockets, "--least-interval-s", "0") as exporter, contextlib.ExitStack() as stack:
        camera, consumer = stack.enter_context(daemon.camera()), stack.enter_context(daemon.consumer())
        for _ in range(8):
            stalled = stack.enter_context(socket.socket())
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            stalled.connect(("127.0.0.1", exporter.port))
            stalled.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n" * 50)  # and reads nothing
        half = stack.enter_context(socket.create_connection(("127.0.0.1", exporter.port)))
        half.sendall(b"GET /metr")  # and says no more
        for sequence in range(1, 21):
            run_one(camera, consumer, sequence, picture(sequence))
        assert numbers(exporter.page())["fenced_published_total"] == 20


def test_an_exporter_that_is_stopped_stalls_no_frame(daemon: DaemonThread) -> None:
    with (
        exporting(daemon.sockets, "--least-interval-s", "0") as exporter,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        exporter.page()
        exporter.child.send_signal(signal.SIGSTOP)
        for sequence in range(1, 21):
            run_one(camera, consumer, sequence, picture(sequence))
        exporter.child.send_signal(signal.SIGCONT)
        assert numbers(exporter.page())["fenced_published_total"] == 20


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = "import sys; from lab.exporter.main import main; raise SystemExit(main(sys.argv[1:]))"
        done = subprocess.run(
            [sys.executable, "-c", command, "--port", str(port)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr

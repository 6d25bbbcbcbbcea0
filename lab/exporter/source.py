"""What a daemon says of itself, as Prometheus' client library takes it: asked at most so often, however many scrape.

The daemon answers on the thread that serves frames, so it is asked at most once in `least_interval_s`; scrapes in
between are given the same answer. A daemon that is away, refuses or does not answer in time is a metric, not an error:
`fenced_exporter_up` is 0 and its own metrics are absent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from abi.packet import ProtocolError
from client.control import Control
from client.errors import ConnectionLost, Refused

FAMILIES = {
    "fenced_exporter_up": "1 when the daemon answered the last time that it was asked.",
    "fenced_exporter_answer_seconds": "How long its last answer took.",
    "fenced_exporter_age_seconds": "How old the answer is that this scrape is given.",
    "fenced_exporter_failures": "How often the daemon was asked in vain.",
}
"""The exporter's own metrics."""


def _parsed(text: str) -> list[Metric]:
    """The families of a text. ValueError where it is not OpenMetrics."""
    return list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


class DaemonCollector(Collector):
    """Collects from the control socket at `path`; for one registry, from any thread."""

    def __init__(self, path: Path, *, timeout_s: float = 2.0, least_interval_s: float = 1.0) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._least_interval_s = least_interval_s
        self._lock = threading.Lock()
        self._control: Control | None = None
        self._families: list[Metric] = []
        self._asked_at_s = float("-inf")
        self._answer_s = 0.0
        self._up = False
        self._failures = 0
        self.why = ""
        # Why the last answer failed; empty where it did not.

    def collect(self) -> Iterator[Metric]:
        """The daemon's families, where it answers, and the exporter's own."""
        with self._lock:
            if time.monotonic() - self._asked_at_s >= self._least_interval_s:
                self._ask()
            families = [*self._families, *self._own()]
        yield from families

    def describe(self) -> list[Metric]:
        """Nothing beforehand: a registry would else ask the daemon when the collector is registered."""
        return []

    def close(self) -> None:
        """Ends the session with the daemon."""
        with self._lock:
            self._let_go()

    def _ask(self) -> None:
        began_s = self._asked_at_s = time.monotonic()
        try:
            self._families, self.why = self._answer(), ""
        except (Refused, ConnectionLost, ProtocolError, OSError, TimeoutError, ValueError) as error:
            self._let_go()
            self._families, self.why = [], f"{type(error).__name__}: {error}"
            self._failures += 1
        self._up = not self.why
        self._answer_s = time.monotonic() - began_s

    def _answer(self) -> list[Metric]:
        """One answer, over a new session where the one before was closed (a daemon closes sessions that are silent)."""
        if self._control is not None:
            try:
                return _parsed(self._control.metrics())
            except (ConnectionLost, OSError):
                self._let_go()
        self._control = Control(self._path, name="fenced-exporter", timeout_s=self._timeout_s)
        return _parsed(self._control.metrics())

    def _let_go(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def _own(self) -> list[Metric]:
        up, answer, age, failures = FAMILIES
        age_s = time.monotonic() - self._asked_at_s
        return [
            GaugeMetricFamily(up, FAMILIES[up], value=int(self._up)),
            GaugeMetricFamily(answer, FAMILIES[answer], value=self._answer_s),
            GaugeMetricFamily(age, FAMILIES[age], value=age_s),
            CounterMetricFamily(failures, FAMILIES[failures], value=self._failures),
        ]

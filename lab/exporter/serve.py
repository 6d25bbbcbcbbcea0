"""Serving a daemon's metrics over HTTP until SIGTERM: a thread for each scrape, one session with the daemon."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from prometheus_client import CollectorRegistry, start_http_server

from lab.exporter.source import DaemonCollector

DONE, FAULT = 0, 1


def serve(arguments: argparse.Namespace) -> int:
    """Serves by the options of `lab.exporter.main`; returns the exit status."""
    collector = DaemonCollector(
        arguments.sockets / "control.sock",
        timeout_s=arguments.timeout_s,
        least_interval_s=arguments.least_interval_s,
    )
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(arguments.port, arguments.address, registry)
    except OSError as error:
        where = f"{arguments.address}:{arguments.port}"
        print(f"fenced-exporter: cannot listen on {where}: {error}; choose another --port", file=sys.stderr)
        return FAULT
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(f"fenced-exporter: http://{arguments.address}:{server.server_port}/metrics", flush=True)
    stop.wait()
    server.shutdown()
    thread.join()
    collector.close()
    return DONE

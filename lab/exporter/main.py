"""`fenced-exporter`: serves a daemon's metrics over HTTP, as OpenMetrics or Prometheus text, until SIGTERM.

A process of its own, since the daemon has no network: it needs the control socket's group and a place under [observe],
by which it may look and not command. Whoever reaches its port may read; by default it listens on this machine alone.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server

from client.terminal import guarded
from lab.exporter.source import DaemonCollector

DONE, FAULT = 0, 1
DEFAULT_PORT = 9877


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    arguments = _parser().parse_args(argv)
    return guarded("fenced-exporter", lambda: _serve(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fenced-exporter", description="A daemon's metrics for Prometheus.")
    parser.add_argument("--sockets", type=Path, default=Path("/run/fenced"), help="the daemon's socket folder")
    parser.add_argument("--address", default="127.0.0.1", help="where to listen (default: this machine alone)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"default: {DEFAULT_PORT}; 0: any that is free")
    parser.add_argument("--timeout-s", type=float, default=2.0, help="how long the daemon may take to answer")
    parser.add_argument("--least-interval-s", type=float, default=1.0, help="ask the daemon no more often than this")
    return parser


def _serve(arguments: argparse.Namespace) -> int:
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

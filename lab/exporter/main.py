"""`fenced-exporter`: serves a daemon's metrics over HTTP, as OpenMetrics or Prometheus text, until SIGTERM.

A process of its own, since the daemon has no network: it needs the control socket's group and a place under [observe],
by which it may look and not command. Whoever reaches its port may read; by default it listens on this machine alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from client.terminal import guarded

DEFAULT_PORT = 9877


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    arguments = _parser().parse_args(argv)
    return guarded("fenced-exporter", lambda: _serve(arguments))


def _serve(arguments: argparse.Namespace) -> int:
    from lab.exporter.serve import serve  # noqa: PLC0415 (so that Ctrl-C during its imports has its words)

    return serve(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fenced-exporter", description="A daemon's metrics for Prometheus.")
    parser.add_argument("--sockets", type=Path, default=Path("/run/fenced"), help="the daemon's socket folder")
    parser.add_argument("--address", default="127.0.0.1", help="where to listen (default: this machine alone)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"default: {DEFAULT_PORT}; 0: any that is free")
    parser.add_argument("--timeout-s", type=float, default=2.0, help="how long the daemon may take to answer")
    parser.add_argument("--least-interval-s", type=float, default=1.0, help="ask the daemon no more often than this")
    return parser

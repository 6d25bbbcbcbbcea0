"""The board as rich shows it: the daemon, its models with their latency, the streams with their ledgers, the faults."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lab.top.board import Board

__all__ = ["render", "sparkline"]

BARS: Final = "▁▂▃▄▅▆▇█"
SPARK_WIDTH: Final = 24
ENDS: Final = ("superseded", "late", "torn", "refused", "lost")
KEYS: Final = "q quit · p pause"


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """The newest `width` values as bars from zero to the largest of them."""
    shown = values[-width:]
    most = max(shown, default=0.0)
    if most <= 0:
        return BARS[0] * len(shown)
    return "".join(BARS[min(len(BARS) - 1, int(value / most * len(BARS)))] for value in shown)


def render(board: Board, *, paused: bool = False) -> RenderableType:
    """The whole view."""
    if board.status is None:
        return Group(Text(board.problem or "asking the daemon …", style="yellow"), Text(KEYS, style="dim"))
    status = board.status
    return Group(_head(board, status), Text(), _models(board, status), Text(), _streams(board, status), Text(),
                 _foot(status, paused=paused))  # fmt: skip


def _head(board: Board, status: Mapping[str, Any]) -> Text:
    device, uptime_s = status["device"], status["uptime_ms"] // 1000
    text = Text.assemble(
        ("fenced ", "bold"), f"{status['version']}  ",
        (status["state"], "bold green" if status["state"] == "serving" else "bold yellow"),
        f"  pid {status['pid']}  up {uptime_s // 3600}:{uptime_s // 60 % 60:02}:{uptime_s % 60:02}  ",
        f"{device['driver']}: {device['name']}, {device['cores']} cores  ",
    )  # fmt: skip
    count = board.in_flight
    return text.append(f"fences in flight {count}", style="bold cyan" if count else "dim")


def _models(board: Board, status: Mapping[str, Any]) -> Table:
    table = Table("model", "release", "state", "device", box=None, pad_edge=False, header_style="dim", expand=False)
    for name in ("waiting", "results", "missed", "p50 ms", "last ms"):
        table.add_column(name, justify="right")
    table.add_column("latency")
    for model in status["models"]:
        values, runs = board.latency_ms(model["name"]), model["runs"]
        table.add_row(
            Text(model["name"], style="bold"), f"{model['version']} ({model['release']})", _state(model),
            Text("● running", style="cyan") if model["busy"] else Text("○ idle", style="dim"),
            str(model["waiting"]), str(runs["published"]), _count(runs["deadline_missed"]),
            f"{statistics.median(values):.2f}" if values else "-", f"{values[-1]:.2f}" if values else "-",
            Text(sparkline(values), style="blue"),
        )  # fmt: skip
    return table


def _state(model: Mapping[str, Any]) -> Text:
    mode, left = model.get("mode", "serving"), model["probation_frames_left"]
    if mode != "serving":
        return Text(str(mode), style="bold yellow")
    return Text(f"on trial, {left} left", style="yellow") if left else Text("confirmed", style="green")


def _streams(board: Board, status: Mapping[str, Any]) -> Table:
    table = Table("stream", box=None, pad_edge=False, header_style="dim")
    for name in ("run/s", "submitted", "run", *ENDS, "held", "not sent"):
        table.add_column(name, justify="right")
    table.add_column("why")
    for name, ledger in status["streams"].items():
        rate_hz, why = board.rate_hz(name), ledger["refusals"] | ledger["reasons"]
        table.add_row(
            Text(name, style="bold"), "-" if rate_hz is None else f"{rate_hz:.1f}", str(ledger["submitted"]),
            Text(str(ledger["run"]), style="green"), *(_count(ledger[end]) for end in ENDS), str(ledger["held"]),
            _count(ledger["camera_dropped"]), ", ".join(f"{reason} {count}" for reason, count in why.items()),
        )  # fmt: skip
    if not status["streams"]:
        table.add_row(Text("no camera yet", style="dim"))
    return table


def _count(number: int) -> Text:
    return Text(str(number), style="yellow" if number else "dim")


def _foot(status: Mapping[str, Any], *, paused: bool) -> Group:
    peers, faults, refused = status["peers"], status["faults"], sum(status["guard"]["refused"].values())
    bad = {name.replace("_", " "): count for name, count in faults.items() if count}
    if refused:
        bad["forbidden acts"] = refused
    sealed = "sealed" if status["guard"]["sealed"] else "NOT sealed"
    return Group(
        Text(f"peers: {peers['camera']} cameras, {peers['consumer']} consumers, {peers['control']} control · "
             f"guard {sealed} · audit {status['audit']['entries']} entries, {status['audit']['sha256'][:16]}…"),
        Text("faults: " + (", ".join(f"{name} {count}" for name, count in bad.items()) or "none"),
             style="bold red" if bad else "green"),
        Text(f"{KEYS}{'  PAUSED' if paused else ''}", style="dim"),
    )  # fmt: skip

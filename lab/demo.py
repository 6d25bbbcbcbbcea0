"""`make demo`: the whole way once, on this machine, with nothing prepared.

Compile the lane example and sign it; serve it from the vehicle environment; drive it with the synthetic road camera at
20 Hz and print truth beside output; try a tampered bundle; replay the recorded log bit-exact; write a report.
"""

from __future__ import annotations

import platform
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from client.control import Control
from client.errors import Refused
from lab.compile.compiler import compile_spec
from lab.folder import make_anew
from lab.hil.daemon import DaemonProcess
from lab.replay.drive import Drive, Outcome
from lab.replay.log import LogWriter
from lab.replay.record import record
from lab.replay.replay import ReplayReport, replay
from lab.replay.report import DriveTrace, drive_page
from lab.replay.source import RoadSource
from lab.sign.pack import open_checked
from lab.sign.throwaway import sign_throwaway

SPEC = Path(__file__).parents[1] / "examples" / "lane" / "spec.toml"
SEED = 2026
"""Of the road: not one that the lane model was trained or evaluated on."""
OFFSET_LIMIT_M = 0.15
"""The demo fails when the mean error of the lane's offset is not below this."""
NS_PER_MS = 1e6


@dataclass(frozen=True)
class _Signed:
    bundle: Path
    root: Path


def run(folder: Path, *, frames: int, rate_hz: float) -> int:
    """Run the demo in `folder`, which is made anew. Returns 0 when everything it claims was seen, else 1."""
    console = Console(highlight=False, soft_wrap=True)
    make_anew(folder)
    signed = _build(console, folder)
    log_path = folder / "drive.mcap"
    with DaemonProcess(folder / "daemon", [signed.bundle], signed.root, ["road"]) as daemon:
        _say(console, "serve", f"READY after {daemon.ready_s:.2f} s, from the vehicle environment")
        trace, counts, units = _drive(console, daemon, log_path, frames, rate_hz)
        refused = _tamper(console, daemon, signed)
        report = _replay(console, daemon, log_path, frames)
        with Control(daemon.sockets / "control.sock") as control:
            status = control.status()
    page = folder / "report.html"
    error_m = trace.mean_error("lane_offset_m")
    passed = error_m < OFFSET_LIMIT_M and counts["run"] == frames and refused and report.equal == frames
    tables = _results(trace, units, counts, report, refused) | _circumstances(status)
    lead = _lead(passed, frames, rate_hz)
    page.write_text(drive_page("fenced demo: the lane example", lead, trace, units, tables), encoding="utf-8")
    _say(console, "result", f"mean lane offset error {error_m:.3f} m (limit {OFFSET_LIMIT_M}); "
         f"latency p50 {statistics.median(trace.latency_ms):.2f} ms, worst {max(trace.latency_ms):.2f} ms")  # fmt: skip
    _say(console, "report", str(page))
    _say(console, "demo", "passed" if passed else "FAILED")
    return 0 if passed else 1


def _say(console: Console, step: str, text: str) -> None:
    console.print(f"[bold]{step:>9}[/bold]  {text}")


def _bar(console: Console) -> Progress:
    return Progress(TextColumn("{task.description:>11}"), BarColumn(), TimeElapsedColumn(), console=console,
                    transient=True)  # fmt: skip


def _build(console: Console, folder: Path) -> _Signed:
    bundle = folder / "lane.fenced"
    with _bar(console) as progress:
        report = compile_spec(SPEC, bundle, progress=progress)
    _say(console, "compile", f"{len(report.launches)} launches, {report.flops / 1e6:.1f} MFLOP a frame, "
         f"{report.bundle_bytes / 1024:.0f} KiB; every check passed")  # fmt: skip
    root = sign_throwaway(bundle, folder)
    _say(console, "sign", "signed by the roles build and release, under a root of this demo's own")
    return _Signed(bundle, root)


def _drive(console: Console, daemon: DaemonProcess, log_path: Path, frames: int,
           rate_hz: float) -> tuple[DriveTrace, Counter[str], dict[str, str]]:  # fmt: skip
    source, trace = RoadSource(SEED, rate_hz=rate_hz), DriveTrace()
    units: dict[str, str] = {}
    picture = source.format
    _say(console, "drive", f"{frames} frames of {picture.width}×{picture.height} {picture.pixel.name}, {rate_hz:g} Hz")
    console.print("    frame   offset m: truth  output   heading rad: truth   output   latency ms   fence")

    def show(index: int, truth: Mapping[str, float], outcome: Outcome) -> None:
        if outcome.delivery is None:
            console.print(f"    {index + 1:5}   {outcome.status}")
            return
        receipt = outcome.delivery.receipt
        output = {name: float(array.reshape(-1)[0]) for name, array in outcome.delivery.outputs.items()}
        units.update(outcome.delivery.units)
        latency_ms = (receipt.published_ns - receipt.frames[0].sof_monotonic_ns) / NS_PER_MS
        trace.add(truth, output, latency_ms, (receipt.completed_ns - receipt.started_ns) / NS_PER_MS)
        console.print(
            f"    {index + 1:5}      {truth['lane_offset_m']:+11.3f}  {output['lane_offset_m']:+6.3f}"
            f"         {truth['heading_rad']:+11.4f}  {output['heading_rad']:+7.4f}   {latency_ms:10.2f}   "
            f"{receipt.fence_value:5}"
        )

    model = "lane"
    with (
        Drive(daemon.sockets, source.stream, picture, model) as drive,
        LogWriter(log_path, about={"source": f"synthetic road, seed {SEED}"}) as log,
    ):
        counts = record(drive, source, log, model, frames, rate_hz=rate_hz, on_frame=show)
    return trace, counts, units


def _tamper(console: Console, daemon: DaemonProcess, signed: _Signed) -> bool:
    """Flip one byte of the weights: `fenced verify` must refuse with exit code 3, and the running daemon too."""
    tampered = signed.bundle.with_name("tampered.fenced")
    content = bytearray(signed.bundle.read_bytes())
    with open_checked(signed.bundle) as (sealed, _, stated):
        spans = dict(zip((blob.name for blob in stated.blobs), sealed.layout.blobs, strict=True))
    content[spans["weights"].offset_bytes] ^= 0x01
    tampered.write_bytes(content)
    done = daemon.command("verify", str(tampered), "--root", str(signed.root))
    _say(console, "tamper", f"one byte flipped: fenced verify exits {done.returncode}")
    console.print(f"           {done.stderr.strip()}", style="red", markup=False)
    try:
        with Control(daemon.sockets / "control.sock") as control:
            control.activate(tampered.resolve())
    except Refused as refused:
        _say(console, "", f"the daemon refuses it too ({refused.what}), and serves on")
        return done.returncode == 3 and "digest-mismatch" in done.stderr and "digest-mismatch" in refused.what
    return False


def _replay(console: Console, daemon: DaemonProcess, log_path: Path, frames: int) -> ReplayReport:
    with _bar(console) as progress:
        task = progress.add_task("replay", total=frames)
        report = replay(daemon.sockets, log_path, on_frame=lambda done: progress.update(task, completed=done))
    size_mb = log_path.stat().st_size / 1e6
    _say(console, "replay", f"{report.frames} frames of {log_path.name} ({size_mb:.0f} MB): {report.equal} bit-exact")
    return report


def _lead(passed: bool, frames: int, rate_hz: float) -> str:
    verdict = "Passed: all that this page claims was seen." if passed else "FAILED: see the tables."
    return (
        f"{verdict} {frames} frames of a synthetic road camera, whose truth is known, went at {rate_hz:g} Hz through "
        "the signed lane model in the daemon. Latency runs from the start of frame, here the instant of submission, to "
        "the published result; whatever else the machine did at the time is in it."
    )


def _results(trace: DriveTrace, units: Mapping[str, str], counts: Counter[str], report: ReplayReport,
             refused: bool) -> dict[str, Mapping[str, object]]:  # fmt: skip
    p50, p99 = (f"{value:.2f}" for value in np.percentile(trace.latency_ms, [50, 99]))
    tampered = "refused by `fenced verify` and by the daemon" if refused else "NOT REFUSED"
    return {
        "Error": {f"mean |{name} − truth|, {units[name]}": f"{trace.mean_error(name):.4f}" for name in trace.output},
        "Latency, ms": {"p50": p50, "p99": p99, "worst": f"{max(trace.latency_ms):.2f}",
                        "on the device, p50": f"{statistics.median(trace.device_ms):.2f}"},
        "Frames by how they ended": dict(counts),
        "Tampered bundle": {"one-byte change": tampered},
        "Replay of the log": {"frames": report.frames, "bit-exact": report.equal, "mismatched": report.mismatched,
                              "log": report.log, "SHA-256 of the log": report.log_sha256,
                              "model that was logged": report.logged_digest,
                              "model that served": report.served_digest},
    }  # fmt: skip


def _circumstances(status: Mapping[str, Any]) -> dict[str, Mapping[str, object]]:
    """The daemon's own words, `fenced status`, after drive and replay; and the machine."""
    (model,), device = status["models"], status["device"]
    ledger = [f"{name} {count}" for name, count in status["streams"]["road"].items() if isinstance(count, int)]
    return {
        "Daemon, after drive and replay": {
            "version": status["version"],
            "model": f"{model['name']} {model['version']}, release {model['release']}",
            "golden vectors": f"{model['golden_vectors']}, run on the device at load; loaded in {model['load_ms']} ms",
            "frames": ", ".join(ledger),
            "forbidden acts refused": sum(status["guard"]["refused"].values()),
            "audit log": f"{status['audit']['entries']} entries, head {status['audit']['sha256']}",
        },
        "Machine": {"device": f"{device['driver']}: {device['name']}, {device['cores']} cores",
                    "system": platform.platform(), "Python": platform.python_version()},
    }  # fmt: skip

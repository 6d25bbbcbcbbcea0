"""`make arm64`: what a vehicle of the other architecture would run, run there: on this machine, by emulation.

Cross-compiles the lane bundle, builds and signs the image for aarch64, and in an emulated Debian runs the image's own
self-test, daemon, camera and consumer. Their outputs are held against an x86-64 daemon's on the same pictures; a log
recorded on x86-64 is replayed against the emulated daemon; a bundle of the other architecture is refused by name.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.compile.compiler import compile_spec
from lab.folder import make_anew
from lab.hil.daemon import PATIENT, VEHICLE, DaemonProcess
from lab.image.emulated import EmulatedMachine, EmulationMissing
from lab.image.sign import sign_image
from lab.image.target import ImageTarget
from lab.image.tree import build_image
from lab.replay.compare import Tolerance
from lab.replay.drive import Drive
from lab.replay.log import LogWriter
from lab.replay.record import record
from lab.replay.replay import replay
from lab.replay.source import RoadSource
from lab.sign.sign import sign_bundle
from lab.sign.signer import open_signer
from lab.sign.throwaway import sign_throwaway

ARCH, CPU = "aarch64", "cortex_a78"
MODEL, STREAM, SEED = "lane", "road", 2027
FRAMES, LOGGED_FRAMES = 8, 12
TOLERANCE = 1e-5
"""Between the architectures, in metres and radians: their compilers join multiplications and additions differently."""
READY_LIMIT_S = 300.0
_CHECKOUT = Path(__file__).resolve().parents[2]
_LANE = _CHECKOUT / "examples" / "lane"
_MODELS, _IMAGE, _SOCKETS = "var/lib/fenced-models", "opt/fenced", "run/fenced"
_CONFIG = """\
state_directory = "/var/lib/fenced"
root_paths = ["/var/lib/fenced-models/root.json"]
image_manifest_path = "/opt/fenced/image.json"
bundle_paths = ["/var/lib/fenced-models/lane.fenced"]
[limits]
max_age_ms = 600000
idle_timeout_ms = 600000
[stream.road]
uids = [0]
"""


class Failed(Exception):
    """Something did not come out as it must."""


@dataclass(frozen=True)
class Made:
    """What was built: a bundle for each architecture, their root, and the signed image."""

    foreign: Path
    native: Path
    root: Path
    image: Path


def main(argv: Sequence[str] | None = None) -> int:
    """Runs everything; returns 0 when all that it claims was seen, 1 where something was not, 2 without emulation."""
    parser = argparse.ArgumentParser(prog="python -m lab.image.arm64", description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("build/arm64"), help="folder; keeps the Debian root")
    arguments = parser.parse_args(argv)
    folder: Path = arguments.output
    try:
        machine = EmulatedMachine(folder / "root", ARCH)
        run(machine, folder)
    except EmulationMissing as missing:
        print(f"arm64: {missing}", file=sys.stderr)
        return 2
    except Failed as failed:
        print(f"arm64: FAILED: {failed}", file=sys.stderr)
        return 1
    print("arm64: passed")
    return 0


def run(machine: EmulatedMachine, folder: Path) -> None:
    """Everything that the module says, step by step, a line each. Raises Failed."""
    made = _build(folder)
    _install(machine, made)
    _selftest(machine)
    _refuse_the_other(machine)
    log_path = folder / "made/drive.mcap"
    with DaemonProcess(folder / "made/native", [made.native], made.root, [STREAM], limits=PATIENT) as daemon:
        native = _film(
            [str(VEHICLE / "bin/python")], str(next(VEHICLE.glob("lib/python*/site-packages"))), daemon.sockets
        )
        source = RoadSource(SEED, rate_hz=20.0)
        with Drive(daemon.sockets, STREAM, source.format, MODEL) as drive, LogWriter(log_path, about={}) as log:
            record(drive, source, log, MODEL, LOGGED_FRAMES, rate_hz=None)
    with _serving(machine) as sockets:
        script = machine.root / "root/film.py"
        shutil.copy(Path(__file__).with_name("film.py"), script)
        python = [*machine.command("/usr/bin/python3", "-IBS")]
        emulated = _film(python, f"/{_IMAGE}/lib", Path(f"/{_SOCKETS}"), machine.inside(script), machine.environment)
        _compare(native, emulated)
        _replay(sockets, log_path)


def _say(step: str, text: str) -> None:
    print(f"{step:>9}  {text}", flush=True)


def _build(folder: Path) -> Made:
    made = folder / "made"
    make_anew(made)
    spec = made / "spec.toml"
    text = (_LANE / "spec.toml").read_text()
    spec.write_text(text.replace('arch = "x86_64"', f'arch = "{ARCH}"').replace('cpu = "x86_64_v3"', f'cpu = "{CPU}"'))
    shutil.copy(_LANE / "lane.onnx", made)
    foreign, native = made / "lane.fenced", made / "lane.x86_64.fenced"
    report = compile_spec(spec, foreign, without_device=True)
    _say("compile", f"lane for {report.target}: code {report.code_bytes} bytes, {len(report.launches)} launches")
    compile_spec(_LANE / "spec.toml", native)
    root = sign_throwaway(foreign, made)
    for role in ("build", "release"):
        sign_bundle(native, made / "keys" / role, role)
    image = made / "image"
    built = build_image(image, ImageTarget(ARCH), Path("build/image") / ARCH)
    sign_image(image, open_signer(made / "keys" / "release", None))
    _say("image", f"{built.files} files, {built.size_bytes / 1e6:.1f} MB for {ARCH}, signed")
    return Made(foreign, native, root, image)


def _install(machine: EmulatedMachine, made: Made) -> None:
    for name in (_IMAGE, _MODELS, _SOCKETS, "var/lib/fenced"):
        shutil.rmtree(machine.root / name, ignore_errors=True)
    shutil.copytree(made.image, machine.root / _IMAGE)
    models = machine.root / _MODELS
    models.mkdir(parents=True)
    for path in (made.foreign, made.native, made.root):
        shutil.copy(path, models)
        (models / path.name).chmod(0o644)
    (machine.root / "etc/fenced").mkdir(exist_ok=True)
    (machine.root / "etc/fenced/fenced.toml").write_text(_CONFIG)


def _fenced(machine: EmulatedMachine, *words: str) -> subprocess.CompletedProcess[str]:
    return machine.run(f"/{_IMAGE}/bin/fenced", *words)


def _selftest(machine: EmulatedMachine) -> None:
    device = json.loads(_fenced(machine, "devices", "--json").stdout)
    _say("machine", f"{device['arch']}: {' '.join(device['features'])}")
    done = _fenced(machine, "selftest", f"/{_MODELS}/lane.fenced", "--root", f"/{_MODELS}/root.json", "--json")
    if done.returncode:
        raise Failed(f"selftest exits {done.returncode}: {done.stderr}{done.stdout}")
    found = json.loads(done.stdout)
    passed = sum(check["verdict"] == "passed" for check in found["checks"])
    _say("selftest", f"{found['golden_vectors']} golden vectors; {passed} of {len(found['checks'])} conformance checks "
         "passed, the others need a kernel of adjustable length")  # fmt: skip


def _refuse_the_other(machine: EmulatedMachine) -> None:
    done = _fenced(machine, "verify", f"/{_MODELS}/lane.x86_64.fenced", "--root", f"/{_MODELS}/root.json")
    if done.returncode != 3 or "target-mismatch: architecture: expected x86_64" not in done.stderr:
        raise Failed(f"the x86-64 bundle was not refused by its architecture: {done.returncode} {done.stderr}")
    _say("refuse", done.stderr.strip())


@contextmanager
def _serving(machine: EmulatedMachine) -> Iterator[Path]:
    """The image's daemon in the root; gives its sockets' folder as the host sees it."""
    sockets, log_path = machine.root / _SOCKETS, machine.root / "root/daemon.log"
    command = machine.command(f"/{_IMAGE}/bin/fenced", "serve", "--config", "/etc/fenced/fenced.toml")
    with log_path.open("wb") as log:
        child = subprocess.Popen(command, env=machine.environment, stdout=log, stderr=log)
    try:
        began_s = time.monotonic()
        while "serving lane" not in log_path.read_text():
            if child.poll() is not None or time.monotonic() - began_s > READY_LIMIT_S:
                raise Failed(f"the emulated daemon does not serve: {log_path.read_text()[-2000:]}")
            time.sleep(0.2)
        _say("serve", f"READY after {time.monotonic() - began_s:.1f} s, image checked against its signature")
        yield sockets
    finally:
        child.kill()  # and with it, by --kill-child, everything in its PID namespace
        child.wait()


def _film(
    python: Sequence[str], library: str, sockets: Path, script: str = "", environment: dict[str, str] | None = None
) -> dict[str, Any]:
    words = [script or str(Path(__file__).with_name("film.py")), library, str(sockets), STREAM, MODEL, str(FRAMES)]
    done = subprocess.run(
        [*python, *words], env=environment or dict(os.environ), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"camera and consumer: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    if found["ledger"]["run"] != FRAMES:
        raise Failed(f"not every frame ran on {found['machine']}: {found['ledger']}")
    return found


def _compare(native: dict[str, Any], emulated: dict[str, Any]) -> None:
    if emulated["machine"] != ARCH or native["machine"] == ARCH:
        raise Failed(f"{native['machine']} was held against {emulated['machine']}")
    for one in (native, emulated):
        if all(outputs == one["outputs"][0] for outputs in one["outputs"]):
            raise Failed(f"outputs on {one['machine']} are the same for every frame")
    worst = {
        name: max(abs(a - b) for one, other in zip(native["outputs"], emulated["outputs"], strict=True)
                  for a, b in zip(one[name], other[name], strict=True))
        for name in native["outputs"][0]
    }  # fmt: skip
    if not all(one <= TOLERANCE for one in worst.values()):
        raise Failed(f"outputs differ by more than {TOLERANCE:g}: {worst}")
    shown = ", ".join(f"{name} {one:.2g}" for name, one in worst.items())
    _say("compare", f"{FRAMES} frames, {native['machine']} and {ARCH}: largest differences {shown}")


def _replay(sockets: Path, log_path: Path) -> None:
    report = replay(sockets, log_path, tolerance=Tolerance(TOLERANCE, 0.0), any_model=True)
    if report.equal + report.within != LOGGED_FRAMES:
        raise Failed(f"the x86-64 log: {report.equal} equal, {report.within} within, {report.mismatched} mismatched")
    _say("replay", f"{report.frames} frames of an x86-64 log: {report.equal} equal in every bit, "
         f"{report.within} within {TOLERANCE:g}")  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())

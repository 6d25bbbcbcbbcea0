"""The lane example, compiled, signed and served from the vehicle environment: what the daemon's benchmarks drive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.compile.compiler import compile_spec
from lab.hil.daemon import DaemonProcess
from lab.sign.throwaway import sign_throwaway

SPEC = Path(__file__).parents[2] / "examples" / "lane" / "spec.toml"
MODEL, STREAM = "lane", "road"


@contextmanager
def served_lane(folder: Path) -> Iterator[DaemonProcess]:
    """A daemon that serves the lane model, with everything it needs in `folder` (new or empty)."""
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / "lane.fenced"
    compile_spec(SPEC, bundle)
    root = sign_throwaway(bundle, folder)
    with DaemonProcess(folder / "daemon", [bundle], root, [STREAM]) as daemon:
        yield daemon

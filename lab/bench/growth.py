"""Cost against growth without a daemon: launches from 1 to 1000, and bundles from 1 to 500 MB."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from daemon.models import describe_machine
from hal.accelerator import DeviceOptions, open_accelerator
from lab.bench import dispatch, verify
from lab.bench.chain import bind
from lab.bench.curve import Curve, Samples, make_curve
from lab.bench.served import SPEC
from lab.compile.compiler import compile_spec
from signing.trust import TrustStore

LAUNCHES = (1, 3, 10, 30, 100, 300, 1000)
BUNDLE_MB = {1: 31, 10: 21, 50: 11, 100: 9, 250: 5, 500: 4}
"""How often each size is loaded."""
TURNS, EACH = 15, 4
"""Turns of one call of TinyJit and so many of ours."""
_MEMORY_BYTES = 4 << 30


def launches(turns: int = TURNS) -> list[Curve]:
    """Submit to the fence seen, as in `lab.bench.dispatch`, where the scheduler puts our worker."""
    target = dispatch.open_bench_target("cpu")
    found: dict[float, Samples] = {}
    with target.context():
        accelerator = open_accelerator("cpu", DeviceOptions())
        try:
            for count in LAUNCHES:
                peer, module, expected = dispatch.chain(target, count)
                chain = bind(accelerator, module)
                found[count] = dispatch.alternate(chain.run, peer, EACH * turns, turns)
                if bytes(chain.output.view) != expected:
                    raise RuntimeError(f"the two sides of {count} launches compute different bytes")
                accelerator.unload(chain.executable)
        finally:
            accelerator.close()
    return [make_curve("launches", "launch", found, cost="submit to the fence seen", peer="TinyJit call + synchronize",
                       note="1024 float additions a launch, one thread")]  # fmt: skip


def bundle_sizes(folder: Path) -> list[Curve]:
    """Verify and load, as in `lab.bench.verify`."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / "lane.fenced"
    compile_spec(SPEC, plain)
    found: dict[float, Samples] = {}
    accelerator = open_accelerator("cpu")
    try:
        machine = describe_machine(accelerator, _MEMORY_BYTES)
        for size_mb, times in BUNDLE_MB.items():
            path, root = verify.padded(plain, size_mb, folder / f"{size_mb}")
            trusted = TrustStore.bootstrap(root.read_bytes())
            ours, theirs = [], []
            for turn in range(times + 1):
                taken, unload = _loaded(lambda: verify.load(path, trusted, accelerator, machine))  # noqa: B023
                unload()
                if turn:  # the first warms up
                    ours.append(taken)
                    theirs.append(verify.timed(lambda: verify.hash_file(path))[0])  # noqa: B023
            path.unlink()
            found[size_mb] = (ours, theirs)
    finally:
        accelerator.close()
    return [make_curve("bundle size", "MB", found, cost="from the bundle's path to a loaded model",
                       peer="sha256 of the file", note="from the page cache")]  # fmt: skip


def _loaded(load: Callable[[], Callable[[], None]]) -> tuple[int, Callable[[], None]]:
    began_ns = time.perf_counter_ns()
    unload = load()
    return time.perf_counter_ns() - began_ns, unload

"""Verify and load: from a bundle's path to a loaded model, against the SHA-256 of the same file.

Ours reads the file once into sealed memory while it is hashed, checks signatures, digests and target, admits the graph
and maps code and weights: all that comes before the self-test. The peer is what nobody can do without who wants to know
what is in a file: `hashlib.file_digest`. Both find the file in the page cache and take turns. The model is the lane
example with random ballast as a further attachment, which is hashed like every other blob. The note gives the processor
time of both too: what it takes where no second core is free. Peak memory is that of a process that does it once.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from abi.graph import decode
from daemon.models import describe_machine
from hal.accelerator import Accelerator, Module, SealedSpan, open_accelerator
from lab.bench.row import Row, make_row
from lab.bench.served import SPEC
from lab.compile.compiler import compile_spec
from lab.sign.pack import BlobData, describe_blob, open_checked, write_bundle
from lab.sign.throwaway import sign_throwaway
from signing import store
from signing.statement import Attachment
from signing.trust import Machine, TrustStore, verify_bundle

MB = 10**6
TIMES = {1: 101, 100: 11, 500: 5}
"""How often each size, in MB, is loaded."""
REACH = 1 / 1.3
SLACK_KIB = 16 * 1024
_LIMIT_BYTES = 4 << 30
_MEMORY_BYTES = 4 << 30


def run(folder: Path) -> list[Row]:
    """Two rows for each of TIMES: time, and peak memory."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / "lane.fenced"
    compile_spec(SPEC, plain)
    rows = []
    accelerator = open_accelerator("cpu")
    try:
        for size_mb, times in TIMES.items():
            rows += _rows(accelerator, *padded(plain, size_mb, folder / f"{size_mb}"), size_mb, times)
    finally:
        accelerator.close()
    return rows


def padded(plain: Path, size_mb: int, folder: Path) -> tuple[Path, Path]:
    """A signed copy of the bundle that is `size_mb` MB long, and its root."""
    folder.mkdir()
    bundle = folder / "padded.fenced"
    with open_checked(plain) as (sealed, _, stated):
        parts = {one.name: sealed.view(span) for one, span in zip(stated.blobs, sealed.layout.blobs, strict=True)}
        ballast = os.urandom(max(0, size_mb * MB - plain.stat().st_size))
        blobs: dict[str, BlobData] = {**parts, "ballast": ballast}
        padded = replace(
            stated,
            blobs=tuple(describe_blob(name, data) for name, data in blobs.items()),
            attachments=(*stated.attachments, Attachment("ballast", "application/octet-stream")),
        )
        write_bundle(bundle, padded, blobs)
        del parts, blobs
    return bundle, sign_throwaway(bundle, folder)


def load(path: Path, trusted: TrustStore, accelerator: Accelerator, machine: Machine) -> Callable[[], None]:
    """Verify and load the bundle; returns what unloads it."""
    sealed = store.read_bundle(path, limit_bytes=_LIMIT_BYTES)
    bundle = verify_bundle(sealed, trusted, machine=machine, now_unix_s=int(time.time()))
    weights = SealedSpan(bundle.memfd, *bundle.blob_span("weights"))
    module = Module(decode(bundle.blob("graph")), bundle.blob("code"), bundle.blob("weights"), weights)
    executable = accelerator.load(module)

    def unload() -> None:
        accelerator.unload(executable)
        bundle.close()

    return unload


def load_once(path: Path, root: Path) -> int:
    """KiB by which the memory of this process rises at its peak while it verifies and loads the bundle once."""
    accelerator = open_accelerator("cpu")
    trusted = TrustStore.bootstrap(root.read_bytes())
    machine = describe_machine(accelerator, _MEMORY_BYTES)
    before_kib = _peak_kib()
    load(path, trusted, accelerator, machine)()
    return _peak_kib() - before_kib


def _rows(accelerator: Accelerator, path: Path, root: Path, size_mb: int, times: int) -> list[Row]:
    trusted = TrustStore.bootstrap(root.read_bytes())
    machine = describe_machine(accelerator, _MEMORY_BYTES)
    unloads: list[Callable[[], None]] = []
    ours, peer = [], []
    for turn in range(times + 1):
        taken = timed(lambda: unloads.append(load(path, trusted, accelerator, machine)))
        unloads.pop()()
        if turn:  # the first warms up
            ours.append(taken)
            peer.append(timed(lambda: hash_file(path)))
    (ours_ns, ours_cpu_ns), (peer_ns, peer_cpu_ns) = zip(*ours, strict=True), zip(*peer, strict=True)
    size_kib = path.stat().st_size / 1024
    measure = (
        f"import pathlib, sys\nfrom {__name__} import load_once\nprint(load_once(*map(pathlib.Path, sys.argv[1:])))"
    )
    command = [sys.executable, "-c", measure, str(path), str(root)]
    peaks = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(2)]
    path.unlink()
    return [
        make_row(f"verify + load {size_mb} MB", ours_ns, peer_ns, "sha256 of the file", reach=REACH,
                 note=f"to a mapped model; fastest of each {min(peer_ns) / min(ours_ns):.2f}×, of processor time "
                      f"{min(peer_cpu_ns) / min(ours_cpu_ns):.2f}×; reading and hashing overlap on two free cores; "
                      f"load now {os.getloadavg()[0]:.1f} on {os.cpu_count()}"),
        make_row(f"peak memory, {size_mb} MB", peaks, [size_kib], "the file itself", unit="KiB",
                 reach=size_kib / (size_kib + SLACK_KIB), note="rise of VmHWM in a fresh process"),
    ]  # fmt: skip


def hash_file(path: Path) -> None:
    """The peer: SHA-256 of the file."""
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")


def timed(work: Callable[[], object]) -> tuple[int, int]:
    """Nanoseconds that `work` took: of the clock, and of the processors in all threads."""
    began_ns, began_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    work()
    return time.perf_counter_ns() - began_ns, time.process_time_ns() - began_cpu_ns


def _peak_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise RuntimeError("this kernel tells no VmHWM")

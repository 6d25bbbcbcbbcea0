"""A small coverage-guided fuzzer: inputs that reach new lines of `abi` or `signing` are kept and mutated further.

It traces which lines follow which in the packages under test, so it needs nothing but Python. The corpus is a folder of
files a target; an input that breaks the invariant is written beside them as `crash-…` and raised.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import abi
import signing

PACKAGES = tuple(str(Path(package.__file__).parent) for package in (abi, signing))
INTERESTING = (0, 1, 2, 3, 7, 8, 16, 17, 63, 64, 127, 128, 253, 254, 255)
LONGEST = 4096

Arc = tuple[str, int, int]


def arcs_of(target: Callable[[bytes], None], data: bytes) -> set[Arc]:
    """The (file, line, next line) that an input reaches in the packages under test."""
    arcs: set[Arc] = set()

    def follow(frame: FrameType) -> Callable[[FrameType, str, Any], Any]:
        file, last = frame.f_code.co_filename, -1

        def line(inner: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                arcs.add((file, last, inner.f_lineno))
                last = inner.f_lineno
            return line

        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return follow(frame) if frame.f_code.co_filename.startswith(PACKAGES) else None

    previous = sys.gettrace()
    sys.settrace(call)
    try:
        target(data)
    finally:
        sys.settrace(previous)
    return arcs


def mutated(data: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """One to four random changes."""
    out = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(out) + 1)
        match draw.randrange(7):
            case 0 if at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(out):
                out[at] = draw.choice(INTERESTING)
            case 6 if at < len(out):
                out[at] = draw.randrange(256)
            case 2:
                out[at:at] = draw.randbytes(draw.choice((1, 2, 4, 8)))
            case 3:
                del out[at : at + draw.choice((1, 2, 4, 8, 16))]
            case 4:
                other = draw.choice(others)
                start = draw.randrange(len(other) + 1)
                out[at : at + draw.randrange(17)] = other[start : start + draw.randrange(65)]
            case _:
                out[at:at] = out[at : at + draw.randrange(33)]
    return bytes(out[:LONGEST])


def fuzz(
    target: Callable[[bytes], None],
    seeds: Iterable[bytes],
    corpus: Path,
    *,
    seed: int,
    seconds: float = math.inf,
    most_runs: float = math.inf,
) -> tuple[int, int, int]:
    """Fuzz for a while; runs, inputs kept, and arcs that they reach. Raises what the target raises."""
    corpus.mkdir(parents=True, exist_ok=True)
    draw, known, kept, runs = random.Random(seed), set[Arc](), list[bytes](), 0
    pending = [*seeds, *(file.read_bytes() for file in sorted(corpus.glob("[0-9a-f]*")))]
    end = time.monotonic() + seconds
    while pending or (kept and runs < most_runs and time.monotonic() < end):
        data = pending.pop() if pending else mutated(draw.choice(kept), kept, draw)
        runs += 1
        try:
            arcs = arcs_of(target, data)
        except BaseException:
            (corpus / f"crash-{_name(data)}").write_bytes(data)
            raise
        if not arcs <= known:
            known |= arcs
            kept.append(data)
            (corpus / _name(data)).write_bytes(data)
    return runs, len(kept), len(known)


def keep(target: Callable[[bytes], None], seeds: Iterable[bytes], found: Path, corpus: Path) -> int:
    """Copy into `corpus` the inputs in `found`, shortest first, that reach what nothing before reached; how many."""
    known, kept = set[Arc](), 0
    for data in (*seeds, *(file.read_bytes() for file in sorted(corpus.glob("*")))):
        known |= arcs_of(target, data)
    for data in sorted((file.read_bytes() for file in found.iterdir()), key=lambda one: (len(one), one)):
        arcs = arcs_of(target, data)
        if not arcs <= known:
            known |= arcs
            kept += 1
            corpus.mkdir(parents=True, exist_ok=True)
            (corpus / _name(data)).write_bytes(data)
    return kept


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]

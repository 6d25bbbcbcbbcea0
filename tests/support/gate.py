"""Runs that a test holds on the device: they begin, say so, and end when they are let, however slow the machine.

The daemon under test is a thread of the test's own process, so a frame's pixels can name bytes of the test's memory: a
kernel that begins with `hold` writes into the first that it is there, and goes on when the second is set. A frame that
names no gate runs at once, golden vectors too.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest

from hal.cpu import CpuAccelerator
from lab.compile.link import Kernel, link
from tests.simulators import BundleSimulator
from tests.support.bundles import CPU, KERNELS, NAMES, PIXELS, BundleMaker, Pixels, TinyModel
from tests.support.daemons import LIMIT_S, picture

__all__ = ["BUDGET_NS", "Gate", "HeldModel", "hold", "open_at_reset"]

BUDGET_NS = 500_000_000
"""Of a run that is to hang: short for a test, and long for the golden vectors, which take microseconds."""

_MAGIC = 0x6E65706F6E65706F
_AT = 8  # of the pixels: two u64, the magic and the address of [begun, open]
_memory: list[ctypes.Array[ctypes.c_uint8]] = []  # kept to the end: a test that failed may leave its run behind


def hold(frame: str) -> str:
    """C for the beginning of a kernel, whose parameter `unsigned char* {frame}` is the frame."""
    return f"""unsigned long long held[2];
      __builtin_memcpy(held, {frame} + {_AT}, 16);
      if (held[0] == {_MAGIC}ull) {{
        volatile unsigned char* gate = (volatile unsigned char*)held[1];
        gate[0] = 1;
        while (!gate[1]) ; }}"""


class Gate:
    """Closed until `open`, or the end of the context; to be entered after the daemon."""

    def __init__(self) -> None:
        self._bytes = (ctypes.c_uint8 * 2)()
        _memory.append(self._bytes)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.open()

    def holds(self, pixels: Pixels) -> Pixels:
        """The picture with this gate in it."""
        held = pixels.copy()
        held[_AT : _AT + 16] = np.frombuffer(struct.pack("<QQ", _MAGIC, ctypes.addressof(self._bytes)), np.uint8)
        return held

    def picture(self, seed: int) -> Pixels:
        """A probe frame's pixels, whose run waits at this gate."""
        return self.holds(picture(seed))

    def wait(self) -> None:
        """Until a run has come to it: the device is at work."""
        deadline = time.monotonic() + LIMIT_S
        while not self._bytes[0]:
            assert time.monotonic() < deadline, "no run came to the gate"
            time.sleep(0.001)

    def open(self) -> None:
        """Lets the run end, and every later one pass."""
        self._bytes[1] = 1


def open_at_reset(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """The run that is held ends once the device is being reset, and not before."""
    reset = CpuAccelerator.reset

    def reset_as_it_ends(accelerator: CpuAccelerator, deadline_ns: int) -> None:
        gate.open()
        reset(accelerator, deadline_ns)

    monkeypatch.setattr(CpuAccelerator, "reset", reset_as_it_ends)


@functools.cache
def _code() -> bytes:
    at = NAMES.index("slow")
    text = f"""void slow(float* restrict o, unsigned char* restrict a) {{
      {hold("a")}
      for (int i = 0; i < {PIXELS}; i++) o[i] = a[i]; }}"""
    held = Kernel(text, "slow")
    return link((*KERNELS[:at], held, *KERNELS[at + 1 :]), arch=platform.machine(), cpu=CPU)


@dataclass(frozen=True)
class HeldModel(TinyModel):
    """values = pixel, once the gate in the frame is open; a frame without one runs at once."""

    kernel: str = "slow"
    budget_ns: int = 600_000_000_000

    def write(self, maker: BundleMaker) -> Path:
        """The signed bundle."""

        def edit(simulator: BundleSimulator) -> None:
            simulator.blobs["code"] = _code()

        return maker.write(self, edit=edit)

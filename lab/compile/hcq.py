"""From captured kernels to the `code` blob of an HCQ bundle: tinygrad's binaries, one after another.

A binary is what tinygrad's compiler for the GPU made: an ELF object for AMD, a cubin for NV, the driver's container for
QCOM. It is good for one architecture, which the statement binds. The vehicle lays the arguments out itself: an 8-byte
address for each buffer, in order, as tinygrad's own HCQ does; scalars there are none (`lab.compile.capture`).
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.compile.capture import Kernel
from lab.compile.refusal import CompileRefusal, CompileRefused

_ALIGN_BYTES = 256


def lay_out(kernels: Sequence[Kernel]) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """The blob, and each kernel's (offset, size) in it; equal binaries share a place. Raises CompileRefused."""
    blob = bytearray()
    places: dict[bytes, tuple[int, int]] = {}
    for kernel in kernels:
        if not kernel.binary:
            raise CompileRefused(
                CompileRefusal.FOREIGN_DEVICE, f"kernel {kernel.name}", expected="a binary for the GPU",
                found="source only", todo="choose a renderer that compiles, in DEV",
            )  # fmt: skip
        if kernel.binary not in places:
            blob += bytes(-len(blob) % _ALIGN_BYTES)
            places[kernel.binary] = (len(blob), len(kernel.binary))
            blob += kernel.binary
    return bytes(blob), tuple(places[kernel.binary] for kernel in kernels)

"""A module's weights as read-only pages: the sealed memory they were verified in, or a sealed copy of it."""

from __future__ import annotations

import os

from hal.accelerator import Module
from hal.error import HalCode, HalError
from hal.memory import PAGE_BYTES, Mapping, Seal, seal_copy, seals


def map_weights(module: Module) -> Mapping | None:
    """The sealed weights themselves where they can be mapped, else a copy; None where the module has none.

    Raises HalError SEAL_MISSING, OUT_OF_MEMORY.
    """
    if module.weights.nbytes == 0:
        return None
    span = module.weights_span
    if span is not None and span.offset % PAGE_BYTES == 0:
        if not seals(span.descriptor) & Seal.WRITE:  # FUTURE_WRITE leaves older mappings writable
            raise HalError(HalCode.SEAL_MISSING, "the weights' memory can still be written", expected="F_SEAL_WRITE")
        return Mapping.of(span.descriptor, span.size_bytes, offset=span.offset)
    return map_sealed_copy("fenced-weights", module.weights)


def map_sealed_copy(name: str, data: memoryview) -> Mapping:
    """A private, sealed, read-only copy of `data`."""
    descriptor = seal_copy(name, data)
    try:
        return Mapping.of(descriptor, data.nbytes)
    finally:
        os.close(descriptor)

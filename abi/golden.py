"""Self-test input bytes made from a seed, so that a bundle need not carry whole camera frames.

The bytes are a function of the seed and of the buffer's length alone, the same on every machine.
Byte i is the top byte of splitmix64 output number i // RUN_BYTES, so values come in runs of RUN_BYTES equal
bytes: as pixels they are stripes that survive a bilinear resize instead of averaging to grey, and every
byte value occurs. Different seeds give unrelated bytes. Source of the mixer: Steele, Lea, Flood, "Fast Splittable
Pseudorandom Number Generators", OOPSLA 2014 (its reference constants).
Several inputs of one run are told apart by `input_seed`. Aux inputs use `fill_elements`: raw bytes would make NaNs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abi.graph import DType

RUN_BYTES = 64
_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_CHUNK_RUNS = 1 << 14  # bounds the scratch memory to a few hundred KiB whatever the frame's size


def fill(out: NDArray[np.uint8], seed: int) -> None:
    """Write the golden bytes of `seed` into all of `out` (1-D, uint8, contiguous).

    `seed` is a u64. Raises ValueError for another shape, type or seed.
    """
    if out.dtype != np.uint8 or out.ndim != 1 or not out.flags.c_contiguous:
        raise ValueError(f"golden bytes need a contiguous 1-D uint8 array, got {out.dtype} of shape {out.shape}")
    if not 0 <= seed <= _MASK:
        raise ValueError(f"a golden seed is a u64, got {seed}")
    for first in range(0, out.size, _CHUNK_RUNS * RUN_BYTES):
        part = out[first : first + _CHUNK_RUNS * RUN_BYTES]
        runs = -(-part.size // RUN_BYTES)
        values = _splitmix64(seed, first // RUN_BYTES, runs)
        whole = part.size // RUN_BYTES
        part[: whole * RUN_BYTES].reshape(whole, RUN_BYTES)[:] = values[:whole, None]
        part[whole * RUN_BYTES :] = values[whole:].repeat(part.size - whole * RUN_BYTES)


def fill_elements(out: NDArray[np.uint8], dtype: DType, seed: int) -> None:
    """Write golden elements of `dtype` into the bytes of `out`: floats in [-1, 1), integers 0..127, booleans 0 or 1.

    Element i is made from byte i * RUN_BYTES of `fill`, so every element differs from its neighbours.
    Raises ValueError where `out` is not a whole number of elements.
    """
    item = dtype.item_bytes
    if item == 0 or out.size % item:
        raise ValueError(f"{out.size} bytes are not a whole number of {dtype.name.lower()} elements of {item} bytes")
    if not 0 <= seed <= _MASK:
        raise ValueError(f"a golden seed is a u64, got {seed}")
    raw = _splitmix64(seed, 0, out.size // item)
    signed = raw.astype(np.float32) / np.float32(128) - np.float32(1)
    if dtype is DType.FLOAT32:
        values: NDArray[Any] = signed
    elif dtype is DType.FLOAT16:
        values = signed.astype(np.float16)
    elif dtype is DType.BFLOAT16:  # the upper half of a float32; these values are exact in 8 significant bits
        values = (signed.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    elif dtype is DType.BOOL8:
        values = raw & np.uint8(1)
    else:
        values = (raw & np.uint8(127)).astype(f"i{item}")
    out[:] = values.view(np.uint8)


def input_seed(seed: int, index: int) -> int:
    """The seed of input number `index` (0.. , frames first, then aux, in the entrypoint's order) of a golden run."""
    if not 0 <= seed <= _MASK or index < 0:
        raise ValueError(f"a golden seed is a u64 and an input index is not negative, got {seed}, {index}")
    return seed if index == 0 else int(_mix(np.array([(seed + index * _GAMMA) & _MASK], np.uint64))[0])


def _splitmix64(seed: int, first: int, count: int) -> NDArray[np.uint8]:
    """Top bytes of outputs first .. first + count - 1 of the splitmix64 stream that starts at `seed`."""
    steps = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    return (_mix(steps * np.uint64(_GAMMA) + np.uint64(seed)) >> np.uint64(56)).astype(np.uint8)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

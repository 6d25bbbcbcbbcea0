"""The largest graph that is admitted. Bounds on counts keep admission itself cheap; bounds on bytes keep a bundle from
taking the machine. A device with less memory states it in `memory_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_FRAMES_PER_RUN = 8  # result.capnp: frame0 .. frame7


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts are of table entries; `arguments` and `values` per launch; `axes` per shape."""

    buffers: int = 16384
    programs: int = 8192
    launches: int = 16384
    arguments: int = 64
    values: int = 16
    frames: int = 16
    aux: int = 64
    states: int = 1024
    outputs: int = 256
    entrypoints: int = 64
    goldens: int = 64
    axes: int = 8
    cores: int = 64
    threads: int = 64
    grid: int = (1 << 31) - 1
    group: int = 1024
    name_bytes: int = 256
    align_bytes: int = 4096
    aux_bytes: int = 1 << 20
    memory_bytes: int = 1 << 34
    budget_ns: int = 600_000_000_000
    miss_window: int = 65536


"""arena, state, weights, code and one copy of every bound buffer together stay within `memory_bytes`."""

"""The interpreter's own memory in huge pages, gathered once when everything is loaded.

Between two frames of a camera all caches go cold, those of the page tables with them, and a frame's way leads through
some hundred pages of objects. Gathered in a handful of huge pages they are found at once. Linux copies what is there
(MADV_COLLAPSE, since 6.1); a kernel that cannot leaves it as it is, and nothing depends on it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator

HUGE_BYTES = 2 << 20  # of x86_64, and of aarch64 with pages of 4 KiB; elsewhere the kernel refuses
_MADV_COLLAPSE = 25  # asm-generic/mman-common.h


def gather() -> int:
    """Asks for huge pages under the private memory of this process; how many bytes of it are in them now."""
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
            places = tuple(huge_places(maps))
    except OSError:
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return HUGE_BYTES * sum(not madvise(at, HUGE_BYTES, _MADV_COLLAPSE) for at in places)


def huge_places(maps: Iterable[str]) -> Iterator[int]:
    """Addresses of the whole huge pages in anonymous private memory, by the lines of /proc/PID/maps (proc(5))."""
    for line in maps:
        fields = line.split()
        if fields[1] != "rw-p" or fields[5:] not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in fields[0].split("-"))
        yield from range(-(-start // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES, HUGE_BYTES)

"""The interpreter's memory in huge pages: which memory is asked for, and that it keeps what it holds."""

from __future__ import annotations

import mmap

import pytest

from daemon import huge_pages
from daemon.huge_pages import HUGE_BYTES, gather, huge_places

MAPS = """\
00400000-00a00000 r-xp 00000000 fe:00 3272724 /usr/bin/python3.11
00a00000-00e00000 rw-p 00600000 fe:00 3272724 /usr/bin/python3.11
56007c83b000-56007ccbd000 rw-p 00000000 00:00 0 [heap]
7fc6a2100000-7fc6a2900000 rw-p 00000000 00:00 0
7fc6a2a00000-7fc6a2bff000 rw-p 00000000 00:00 0
7fc6a2c00000-7fc6a2e00000 rw-s 00000000 00:01 77 /memfd:fenced-frame-0 (deleted)
7fc6a3000000-7fc6a3200000 ---p 00000000 00:00 0
7ffd10000000-7ffd10400000 rw-p 00000000 00:00 0 [stack]
"""


def test_whole_huge_pages_of_private_memory_are_asked_for_and_nothing_else() -> None:
    heap = [0x56007CA00000]
    objects = [0x7FC6A2200000, 0x7FC6A2400000, 0x7FC6A2600000]
    assert list(huge_places(MAPS.splitlines())) == heap + objects


def test_what_is_gathered_keeps_what_it_holds() -> None:
    with mmap.mmap(-1, 4 * HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at : at + 8] = at.to_bytes(8, "little")
        assert gather() % HUGE_BYTES == 0
        assert all(memory[at : at + 8] == at.to_bytes(8, "little") for at in range(0, len(memory), mmap.PAGESIZE))


def test_a_kernel_that_cannot_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_MADV_COLLAPSE", 1 << 20)
    assert gather() == 0

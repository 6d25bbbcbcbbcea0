"""The result ring: what a reader sees at each moment of a writer's work."""

from __future__ import annotations

import mmap
import os

import numpy as np

from abi.graph import DType, OutputView
from daemon.ring import ResultRing, place_views

VIEWS = (OutputView("a", DType.FLOAT32, (3,), "m", 500, 12), OutputView("b", DType.UINT8, (70,), "1", 0, 70))


def test_outputs_are_placed_apart_on_cache_lines_behind_the_word() -> None:
    placed, slot_bytes = place_views(VIEWS)
    assert [view.offset for view in placed] == [64, 128]
    assert slot_bytes == mmap.PAGESIZE
    assert [(view.name, view.size_bytes, view.unit) for view in placed] == [("a", 12, "m"), ("b", 70, "1")]


def test_slots_come_in_turn_with_even_sequences_that_never_repeat() -> None:
    ring = ResultRing("test", VIEWS, 3)
    published = [ring.publish((memoryview(bytes([n]) * 12), memoryview(bytes([n]) * 70))) for n in range(7)]
    assert [slot for slot, _ in published] == [0, 1, 2, 0, 1, 2, 0]
    sequences = [sequence for _, sequence in published]
    assert sequences == sorted(set(sequences))
    assert not any(sequence & 1 for sequence in sequences)
    reader = mmap.mmap(ring.descriptor, 3 * ring.slot_bytes, prot=mmap.PROT_READ)
    for slot, number in ((0, 6), (1, 4), (2, 5)):
        at = slot * ring.slot_bytes
        assert int(np.frombuffer(reader[at : at + 8], np.uint64)[0]) == sequences[number]
        assert reader[at + 64 : at + 76] == bytes([number]) * 12
        assert reader[at + 128 : at + 198] == bytes([number]) * 70
    reader.close()
    ring.close()


def test_the_word_is_odd_while_the_outputs_are_written() -> None:
    ring = ResultRing("test", VIEWS, 2)
    reader = mmap.mmap(ring.descriptor, 2 * ring.slot_bytes, prot=mmap.PROT_READ)
    seen = []

    class Watching(tuple[memoryview, ...]):
        """Outputs that look at the ring's word at the moment they are copied."""

        def __iter__(self):  # type: ignore[no-untyped-def]
            for part in super().__iter__():
                seen.append(reader[0])
                yield part

    ring.publish(Watching((memoryview(bytes(12)), memoryview(bytes(70)))))
    assert seen == [1, 1]
    assert reader[0] == 2
    reader.close()
    ring.close()


def test_a_reader_keeps_the_ring_after_the_daemon_has_closed_it() -> None:
    ring = ResultRing("test", VIEWS, 2)
    kept = os.dup(ring.descriptor)
    ring.publish((memoryview(b"x" * 12), memoryview(bytes(70))))
    ring.close()
    reader = mmap.mmap(kept, ring.slot_bytes, prot=mmap.PROT_READ)
    assert reader[64:76] == b"x" * 12
    reader.close()
    os.close(kept)

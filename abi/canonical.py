"""A strict look at a Cap'n Proto message before it is read: one segment, and nothing hidden in it.

Every pointer is followed once (Cap'n Proto encoding, "Structs" and "Lists"): objects lie inside the segment and do
not overlap, there are no far pointers and no capabilities, and bits that no object holds are zero. So a message
cannot be larger when read than it is on the wire, and no byte of it escapes the reader's sight. Objects may
stand in any order and may have more fields than this schema knows, as builders in other languages make them.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["CanonicalError", "check"]

WORD_BYTES: Final = 8
MAX_DEPTH: Final = 16
_ELEMENT_BITS: Final = (0, 1, 8, 16, 32, 64, 64)  # by list element size code 0..6
_VOID, _POINTERS, _COMPOSITE = 0, 6, 7

Buffer = bytes | bytearray | memoryview


class CanonicalError(ValueError):
    """The message's structure is not allowed; the text says which rule it breaks."""


def check(message: Buffer) -> None:
    """Raise CanonicalError unless the bytes are exactly one single-segment message with nothing hidden in it."""
    size = len(message)
    if size < 2 * WORD_BYTES or size % WORD_BYTES:
        raise CanonicalError(f"a message is whole words and has a root pointer; found {size} bytes")
    segments, words = struct.unpack_from("<II", message)
    if segments != 0 or words != size // WORD_BYTES - 1:
        expected = f"one segment of {size // WORD_BYTES - 1} words"
        raise CanonicalError(f"expected {expected}, found {segments + 1} segments of which the first has {words} words")
    _Walk(struct.unpack_from(f"<{words}Q", message, WORD_BYTES)).run()


class _Walk:
    """One pass over the pointers of a segment, as words. `taken` holds the words that an object owns."""

    def __init__(self, words: tuple[int, ...]) -> None:
        self.words = words
        self.taken = bytearray(len(words))

    def run(self) -> None:
        self.taken[0] = 1
        pending = [(0, 0)]  # (index of a pointer, its depth)
        while pending:
            index, depth = pending.pop()
            if self.words[index]:
                if depth > MAX_DEPTH:
                    raise CanonicalError(f"pointers nest deeper than {MAX_DEPTH}")
                pending += [(inner, depth + 1) for inner in self._object(index)]
        for index, word in enumerate(self.words):
            if word and not self.taken[index]:
                raise CanonicalError(f"word {index} belongs to no object and is not zero")

    def _object(self, index: int) -> range | list[int]:
        """Claim the object that the pointer at `index` points to; the indices of its own pointers."""
        pointer = self.words[index]
        kind = pointer & 3
        if kind > 1:
            raise CanonicalError(f"the pointer at word {index} is a far pointer or a capability")
        offset = pointer >> 2 & 0x3FFFFFFF
        start = index + 1 + (offset - (1 << 30) if offset >> 29 else offset)
        if kind == 0:
            data, pointers = pointer >> 32 & 0xFFFF, pointer >> 48
            self._claim(index, start, data + pointers)
            return range(start + data, start + data + pointers)
        return self._list(index, start, pointer >> 32 & 7, pointer >> 35)

    def _list(self, index: int, start: int, code: int, count: int) -> range | list[int]:
        if code == _COMPOSITE:
            return self._composite(index, start, count)
        if code == _VOID and count:
            raise CanonicalError(f"the list at word {start} has {count} elements but takes no space")
        bits = count * _ELEMENT_BITS[code]
        self._claim(index, start, -(-bits // 64))
        if bits % 64 and self.words[start + bits // 64] >> bits % 64:
            raise CanonicalError(f"the padding after the list at word {start} is not zero")
        return range(start, start + count) if code == _POINTERS else []

    def _composite(self, index: int, start: int, words: int) -> range | list[int]:
        """A list of structs: a tag word in the form of a struct pointer, whose offset is the count."""
        self._claim(index, start, words + 1)
        tag = self.words[start]
        count, data, pointers = tag >> 2 & 0x3FFFFFFF, tag >> 32 & 0xFFFF, tag >> 48
        step = data + pointers
        if tag & 3 or count * step != words or (step == 0 and count):
            raise CanonicalError(f"the tag of the struct list at word {start} does not fit its {words} words")
        first = start + 1
        return [
            at for element in range(first, first + words, step or 1) for at in range(element + data, element + step)
        ]

    def _claim(self, index: int, start: int, count: int) -> None:
        if start < 0 or start + count > len(self.words):
            raise CanonicalError(f"the pointer at word {index} leaves the segment")
        if any(self.taken[start : start + count]):
            raise CanonicalError(f"the object at word {start} overlaps another")
        self.taken[start : start + count] = b"\1" * count

"""A small writer of ELF shared objects, to try the code check with objects that no linker would make."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_TLS, PT_GNU_STACK = 1, 2, 3, 7, 0x6474E551
R, W, X = 4, 2, 1
TEXT_AT, TEXT_BYTES = 0x10000, 0x100


@dataclass
class Elf:
    """A shared object whose exported functions are `symbols`; the other fields are what a test wants to spoil."""

    symbols: Sequence[str] = ()
    machine: int = 62
    kind: int = 3
    identity: bytes = b"\x7fELF\x02\x01\x01"
    text_flags: int = R | X
    stack_flags: int | None = R | W
    symbol_type: int = 2
    symbol_section: int = 1
    symbol_address: int = TEXT_AT
    extra_tags: Sequence[tuple[int, int]] = ()
    without_tags: Sequence[int] = ()
    symbol_entry_bytes: int = 24
    extra_segments: Sequence[tuple[int, int]] = ()
    end_dynamic: bool = True
    segment_bytes: int = 56
    chain: int | None = None
    binding: int = 1
    hash_words: Sequence[int] | None = None  # DT_HASH: buckets and chains
    gnu_hash: bytes = b""
    dynamic_shift: int = 0  # of the dynamic section's address against its place in the file
    load_memory_bytes: int | None = None  # of the first segment
    text_address: int = TEXT_AT
    text_offset: int = TEXT_AT
    tags: dict[int, int] = field(default_factory=dict)

    def build(self) -> bytes:
        """The object's bytes: headers, symbol table, strings, hash and dynamic section below TEXT_AT, then text."""
        strings, entries = b"\0", [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
        for name in self.symbols:
            info = self.binding << 4 | self.symbol_type
            entries.append(struct.pack("<IBBHQQ", len(strings), info, 0, self.symbol_section, self.symbol_address, 8))
            strings += name.encode() + b"\0"
        chain = len(entries) if self.chain is None else self.chain
        words = [0] * (1 + len(entries)) if self.hash_words is None else self.hash_words
        hashes = struct.pack(f"<{2 + len(words)}I", 1, chain, *words)
        header_bytes = 64 + 56 * (5 + len(self.extra_segments))
        table_at = -(-header_bytes // 8) * 8
        strings_at = table_at + 24 * len(entries)
        hash_at = -(-(strings_at + len(strings)) // 8) * 8
        gnu_at = -(-(hash_at + len(hashes)) // 8) * 8
        dynamic_at = -(-(gnu_at + len(self.gnu_hash)) // 8) * 8
        tags = {4: hash_at, 5: strings_at, 6: table_at, 10: len(strings), 11: self.symbol_entry_bytes}
        tags |= ({0x6FFFFEF5: gnu_at} if self.gnu_hash else {}) | self.tags
        pairs = [(tag, value) for tag, value in tags.items() if tag not in self.without_tags]
        pairs += [*self.extra_tags, *([(0, 0)] if self.end_dynamic else [])]
        dynamic = b"".join(struct.pack("<qQ", tag, value) for tag, value in pairs)
        low = dynamic_at + len(dynamic)
        segments = [
            (PT_LOAD, R, 0, 0, low, low if self.load_memory_bytes is None else self.load_memory_bytes),
            (PT_LOAD, self.text_flags, self.text_offset, self.text_address, TEXT_BYTES, TEXT_BYTES),
            (PT_DYNAMIC, R, dynamic_at, dynamic_at + self.dynamic_shift, len(dynamic), len(dynamic)),
            *((kind, flags, 0, 0, 0, 0) for kind, flags in self.extra_segments),
        ]
        if self.stack_flags is not None:
            segments.append((PT_GNU_STACK, self.stack_flags, 0, 0, 0, 0))
        out = bytearray(TEXT_AT + TEXT_BYTES)
        struct.pack_into(
            "<16sHHIQQQIHHHHHH", out, 0,
            self.identity, self.kind, self.machine, 1, 0, 64, 0, 0, 64, self.segment_bytes, len(segments), 64, 0, 0,
        )  # fmt: skip
        for index, (kind, flags, offset, address, size, memory) in enumerate(segments):
            struct.pack_into("<IIQQQQQQ", out, 64 + 56 * index, kind, flags, offset, address, address, size, memory, 8)
        for at, data in (
            (table_at, b"".join(entries)),
            (strings_at, strings),
            (hash_at, hashes),
            (gnu_at, self.gnu_hash),
            (dynamic_at, dynamic),
        ):
            out[at : at + len(data)] = data
        return bytes(out)

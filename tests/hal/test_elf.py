"""What may be mapped as code: each rule of `hal.elf` against an object that breaks it."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.elf import MAX_SYMBOLS, CodeError, check_code
from tests.support.elf import PT_DYNAMIC, PT_INTERP, PT_LOAD, PT_TLS, TEXT_AT, TEXT_BYTES, Elf, R, W, X

NAMES = ("w0", "w1")
FLAGS_1 = 0x6FFFFFFB
DOES_MORE = "has a symbol 'w0' that does more than name a place (type and binding"
NOT_AS_IT_STANDS = "has a segment that cannot be mapped as it stands in the file"
SHARED = "has segments that share pages or are out of order"
LEADS_OUT = "has a hash table that leads out of its symbols"


def gnu_hash(
    begun: list[int], chains: list[int], first: int = 1, buckets: int | None = None, blooms: int | None = None
) -> bytes:
    """A GNU hash table with one filter word: where each chain begins, and a word a symbol from `first` on."""
    head = (len(begun) if buckets is None else buckets, first, 1 if blooms is None else blooms, 6)
    return struct.pack(f"<4IQ{len(begun)}I{len(chains)}I", *head, 0, *begun, *chains)


def refusal(elf: Elf | bytes, symbols: tuple[str, ...] = NAMES, arch: str = "x86_64") -> str:
    data = elf.build() if isinstance(elf, Elf) else elf
    with pytest.raises(CodeError) as caught:
        check_code(memoryview(data), arch, symbols)
    return str(caught.value)


def test_an_object_with_every_symbol_is_accepted() -> None:
    check_code(memoryview(Elf(NAMES).build()), "x86_64", NAMES)
    check_code(memoryview(Elf(NAMES, machine=183).build()), "aarch64", NAMES)
    check_code(memoryview(Elf(NAMES, symbol_address=TEXT_AT + TEXT_BYTES - 1).build()), "x86_64", NAMES)
    check_code(memoryview(Elf(NAMES, hash_words=[1, 0, 2, 0]).build()), "x86_64", NAMES)
    check_code(memoryview(Elf(NAMES, gnu_hash=gnu_hash([1, 0, 2], [1, 1])).build()), "x86_64", NAMES)
    check_code(memoryview(Elf(NAMES, gnu_hash=gnu_hash([0], [], first=3)).build()), "x86_64", NAMES)
    check_code(memoryview(Elf(NAMES, extra_tags=[(30, 8), (FLAGS_1, 1)]).build()), "x86_64", NAMES)
    check_code(memoryview(Elf(NAMES, load_memory_bytes=TEXT_AT).build()), "x86_64", NAMES)


def test_an_object_without_symbols_exports_none() -> None:
    assert refusal(Elf((), chain=0, hash_words=[0])) == "exports no function 'w0' in executable pages"


@pytest.mark.parametrize(
    ("elf", "text"),
    [
        (Elf(NAMES, identity=b"\x7fELF\x01\x01\x01"), "not a 64-bit little-endian ELF shared object"),
        (Elf(NAMES, identity=b"\x7fELF\x02\x02\x01"), "not a 64-bit little-endian ELF shared object"),
        (Elf(NAMES, kind=2), "not a 64-bit little-endian ELF shared object"),
        (Elf(NAMES, machine=183), "made for ELF machine 183, this is x86_64 (62)"),
        (Elf(NAMES, text_flags=R | W | X), "has pages that are both writable and executable"),
        (Elf(NAMES, stack_flags=R | W | X), "asks for an executable stack"),
        (Elf(NAMES, stack_flags=None), "does not say that its stack is not executable"),
        (Elf(NAMES, extra_segments=[(PT_INTERP, R)]), "asks for an interpreter or thread-local storage"),
        (Elf(NAMES, extra_segments=[(PT_TLS, R)]), "asks for an interpreter or thread-local storage"),
        (Elf(NAMES, segment_bytes=64), "program headers of 64 bytes, expected 56"),
        (Elf(NAMES, end_dynamic=False), "has a dynamic section without an end"),
        (Elf(NAMES, extra_tags=[(5, 64)]), "states dynamic tag 5 twice"),
        (Elf(NAMES, without_tags=[4]), "has no readable symbol table (DT_HASH, DT_SYMTAB, DT_STRTAB)"),
        (Elf(NAMES, without_tags=[11]), "has no readable symbol table (DT_HASH, DT_SYMTAB, DT_STRTAB)"),
        (Elf(NAMES, symbol_entry_bytes=16), "has no readable symbol table (DT_HASH, DT_SYMTAB, DT_STRTAB)"),
        (Elf(NAMES, chain=MAX_SYMBOLS + 1), f"has {MAX_SYMBOLS + 1} symbols in 1 chains, at most {MAX_SYMBOLS}"),
        (Elf(NAMES, symbol_section=0), "leaves 'w0' undefined"),
        (Elf(NAMES, symbol_type=1), "exports no function 'w0' in executable pages"),
        (Elf(NAMES, symbol_type=10), f"{DOES_MORE} 0x1a)"),
        (Elf(NAMES, symbol_type=6), f"{DOES_MORE} 0x16)"),
        (Elf(NAMES, binding=10), f"{DOES_MORE} 0xa2)"),
        (Elf(NAMES, binding=3), f"{DOES_MORE} 0x32)"),
        (Elf(NAMES, symbol_section=0xFF00), "exports no function 'w0' in executable pages"),
        (Elf((*NAMES, "w0")), "has two symbols 'w0'"),
        (Elf(NAMES, symbol_address=64), "exports no function 'w0' in executable pages"),
        (Elf(NAMES, symbol_address=TEXT_AT + TEXT_BYTES), "exports no function 'w0' in executable pages"),
        (Elf(NAMES, text_flags=R), "exports no function 'w0' in executable pages"),
        (Elf(("w0",)), "exports no function 'w1' in executable pages"),
        (Elf(NAMES, tags={6: 0x90000}), "points at 72 bytes at 0x90000, which no segment holds"),
        (Elf(NAMES, extra_tags=[(14, 1)]), "states dynamic tag 0xe as 0x1, which the lab's linker does not"),
        (Elf(NAMES, extra_tags=[(30, 0x18)]), "states dynamic tag 0x1e as 0x18, which the lab's linker does not"),
        (Elf(NAMES, extra_tags=[(FLAGS_1, 0x9)]),
         f"states dynamic tag {FLAGS_1:#x} as 0x9, which the lab's linker does not"),
        (Elf(NAMES, extra_segments=[(PT_DYNAMIC, R)]), "has two dynamic sections"),
        (Elf(NAMES, dynamic_shift=-16), "has a dynamic section that is not where its address says"),
        (Elf(NAMES, dynamic_shift=16), "points at 96 bytes at 0x1d0, which no segment holds"),
        (Elf(NAMES, load_memory_bytes=64), NOT_AS_IT_STANDS),
        (Elf(NAMES, text_offset=TEXT_AT - 8), NOT_AS_IT_STANDS),
        (Elf(NAMES, text_address=0), SHARED),
        (Elf(NAMES, load_memory_bytes=TEXT_AT + 1), SHARED),
        (Elf(NAMES, hash_words=[3, 0, 0, 0]), LEADS_OUT),
        (Elf(NAMES, hash_words=[1, 0, 0, 3]), LEADS_OUT),
        (Elf(NAMES, gnu_hash=gnu_hash([1], [0, 0])), LEADS_OUT),
        (Elf(NAMES, gnu_hash=gnu_hash([3], [0, 1])), LEADS_OUT),
        (Elf(NAMES, gnu_hash=gnu_hash([1], [1], first=2)), LEADS_OUT),
        (Elf(NAMES, gnu_hash=gnu_hash([1], [0, 1], buckets=MAX_SYMBOLS + 1)),
         f"has {MAX_SYMBOLS + 1} chains and 1 filters, at most {MAX_SYMBOLS}"),
        (Elf(NAMES, gnu_hash=gnu_hash([1], [0, 1], blooms=MAX_SYMBOLS + 1)),
         f"has 1 chains and {MAX_SYMBOLS + 1} filters, at most {MAX_SYMBOLS}"),
        (Elf(NAMES, tags={10: 1}), "the object is cut off or its tables point outside it"),
    ],
)  # fmt: skip
def test_an_object_that_breaks_a_rule_is_refused(elf: Elf, text: str) -> None:
    assert refusal(elf) == text


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        (1, "needs a library"),
        (7, "asks for relocations (DT_RELA)"),
        (12, "runs an initialiser (DT_INIT)"),
        (13, "runs a finaliser (DT_FINI)"),
        (15, "names a library path (DT_RPATH)"),
        (17, "asks for relocations (DT_REL)"),
        (22, "relocates its code (DT_TEXTREL)"),
        (23, "asks for relocations (DT_JMPREL)"),
        (25, "runs initialisers (DT_INIT_ARRAY)"),
        (26, "runs finalisers (DT_FINI_ARRAY)"),
        (29, "names a library path (DT_RUNPATH)"),
        (32, "runs initialisers (DT_PREINIT_ARRAY)"),
        (36, "asks for relocations (DT_RELR)"),
        (0x7FFFFFFD, "loads an auxiliary object (DT_AUXILIARY)"),
        (0x7FFFFFFF, "loads a filter object (DT_FILTER)"),
    ],
)
def test_an_object_that_acts_when_it_is_loaded_is_refused(tag: int, text: str) -> None:
    assert refusal(Elf(NAMES, extra_tags=[(tag, 0)])) == text


def test_an_unknown_architecture_is_refused() -> None:
    assert refusal(Elf(NAMES), arch="riscv64") == "made for ELF machine 62, this is riscv64 (unknown)"


def test_a_segment_past_the_end_is_refused() -> None:
    data = bytearray(Elf(NAMES).build())
    struct.pack_into("<Q", data, 64 + 56 + 32, TEXT_BYTES + 1)  # the file size of segment 1
    assert refusal(bytes(data)) == "segment 1 reaches past the end of the object"


def test_an_object_without_dynamic_section_is_refused() -> None:
    data = bytearray(Elf(NAMES).build())
    assert struct.unpack_from("<I", data, 64 + 2 * 56) == (PT_DYNAMIC,)
    struct.pack_into("<I", data, 64 + 2 * 56, PT_LOAD)
    assert refusal(bytes(data)) == "has no dynamic section"


@given(st.integers(0, TEXT_AT + TEXT_BYTES))
def test_any_cut_object_is_refused(length: int) -> None:
    data = Elf(NAMES).build()
    if length < len(data):
        refusal(data[:length])


@given(st.lists(st.tuples(st.integers(0, 0x400), st.integers(0, 255)), max_size=6))
def test_any_spoiled_object_is_accepted_or_refused_and_nothing_else(changes: list[tuple[int, int]]) -> None:
    data = bytearray(Elf(NAMES).build())
    for at, value in changes:
        data[at] = value
    with contextlib.suppress(CodeError):
        check_code(memoryview(bytes(data)), "x86_64", NAMES)

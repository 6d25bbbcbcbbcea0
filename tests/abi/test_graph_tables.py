"""The graph's long tables: read from the bytes as pycapnp reads them, and nothing else is read at all."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from abi import schema
from abi.graph import GraphError, GraphErrorCode, decode, encode
from abi.graph_tables import Tables
from tests.support.graphs import valid_graph

RAW = encode(valid_graph())
ROOT = 16  # its two data words, then its pointers: driver, buffers, programs, launches, …
BUFFERS, PROGRAMS, LAUNCHES = (ROOT + 16 + 8 * place for place in (1, 2, 3))


def word(at: int) -> int:
    value: int = struct.unpack_from("<Q", RAW, at)[0]
    return value


def target(at: int) -> int:
    """Where the pointer at byte `at` points: a list's first element, or the tag of a list of structs."""
    return at + 8 + 8 * (word(at) >> 2 & 0x3FFFFFFF)


def spoiled(at: int, value: int) -> bytes:
    return RAW[:at] + struct.pack("<Q", value) + RAW[at + 8 :]


PROGRAM = target(PROGRAMS) + 8  # three data words; name, symbol, argumentAccess
LAUNCH = target(LAUNCHES) + 8  # one data word; arguments, global, local, values
NAME, ACCESS, ARGUMENTS, GLOBAL = PROGRAM + 24, PROGRAM + 40, LAUNCH + 8, LAUNCH + 16


def test_they_are_what_pycapnp_reads() -> None:
    tables = Tables(RAW)
    with schema.graph.Graph.from_bytes(RAW) as m:
        assert [(b.kind, b.size_bytes, b.offset, b.align_bytes, b.initial_offset, b.initial_from_weights)
                for b in tables.buffers] == [
            (b.kind.raw, b.sizeBytes, b.offset, b.alignBytes, b.initialOffset, b.initialFromWeights)
            for b in m.buffers]  # fmt: skip
        assert [(p.name, p.symbol, p.argument_access, p.code_offset, p.code_bytes, p.flops)
                for p in tables.programs] == [
            (p.name, p.symbol, tuple(a.raw for a in p.argumentAccess), p.codeOffset, p.codeBytes, p.flops)
            for p in m.programs]  # fmt: skip
        read: Any = [
            (x.program, [(a.buffer, a.offset, a.sizeBytes) for a in x.arguments],
             tuple(getattr(x, "global")), tuple(x.local), tuple(x.values))
            for x in m.launches
        ]  # fmt: skip
    assert [
        (x.program, [(a.buffer, a.offset, a.size_bytes) for a in x.arguments], x.global_size, x.local_size, x.values)
        for x in tables.launches
    ] == read
    assert (tables.buffers, tables.programs, tables.launches) == (
        valid_graph().buffers, valid_graph().programs, valid_graph().launches,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (8, word(8) | 1, "the root pointer points to no struct"),
        (BUFFERS, word(BUFFERS) ^ 1, f"the pointer at byte {BUFFERS} points to no list"),
        (BUFFERS, word(BUFFERS) & ~(7 << 32) | 5 << 32, "the list buffers is not of such structs"),
        (target(BUFFERS), word(target(BUFFERS)) + (1 << 32), "the list buffers is not of such structs"),
        (target(PROGRAMS), word(target(PROGRAMS)) + (1 << 48), "the list programs is not of such structs"),
        (ARGUMENTS, 0, f"the pointer at byte {ARGUMENTS} points to no list"),
        (GLOBAL, word(GLOBAL) & ~(7 << 32) | 2 << 32, f"the pointer at byte {GLOBAL} points to no numbers"),
        (NAME, word(NAME) + (1 << 32), f"the pointer at byte {NAME} points to no text"),
        (target(NAME), 0xFF, "utf-8"),
        (target(BUFFERS) + 8, 99, "an enumerant that this schema does not have"),
        (target(ACCESS), 99, "an enumerant that this schema does not have"),
        (BUFFERS, word(BUFFERS) | 0xFFFFFF << 2, "a pointer leaves the message"),
        (GLOBAL, word(GLOBAL) | 0xFFFFFF << 2, "a pointer leaves the message"),
        (GLOBAL, word(GLOBAL) | 0xFFFFFFF << 35, "its lists hold more than the message"),
    ],
)
def test_bytes_that_are_no_tables_are_refused(at: int, value: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Tables(spoiled(at, value))
    with pytest.raises(GraphError) as refused:
        decode(spoiled(at, value))
    assert refused.value.code is GraphErrorCode.MALFORMED


def test_lists_that_share_their_bytes_cannot_make_a_small_message_large() -> None:
    graph = valid_graph()
    shared = bytearray(encode(replace(graph, launches=graph.launches[:1] * 100)))
    step = 8 * 5
    behind = LAUNCH + 100 * step  # of the first message, too: what stands before the launches is the same
    count = (len(shared) - behind) // 4
    for at in range(LAUNCH + 16, behind, step):  # each launch's `global` is everything behind the launches
        struct.pack_into("<Q", shared, at, 1 | (behind - at - 8) // 8 << 2 | 4 << 32 | count << 35)
    with pytest.raises(ValueError, match="its lists hold more than the message"):
        Tables(bytes(shared))

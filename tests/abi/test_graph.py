"""The captured graph's bytes: one spelling, everything else refused, and nothing lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi import graph as g
from abi import schema
from abi.graph import GraphError, GraphErrorCode, decode, encode
from tests.support.graphs import edit, valid_graph

SCHEMA_NAMES = {"global_size": "global", "local_size": "local"}


def refusal(act: Callable[[], object]) -> GraphErrorCode:
    with pytest.raises(GraphError) as caught:
        act()
    assert caught.value.what in str(caught.value)
    return caught.value.code


def camel(name: str) -> str:
    first, *rest = SCHEMA_NAMES.get(name, name).split("_")
    return first + "".join(part.title() for part in rest)


@pytest.mark.parametrize(
    ("value", "struct"),
    [
        (g.Buffer, "Buffer"), (g.Program, "Program"), (g.Argument, "Argument"), (g.Launch, "Launch"),
        (g.FrameInput, "FrameInput"), (g.AuxInput, "AuxInput"), (g.StateBuffer, "StateBuffer"), (g.Output, "Output"),
        (g.Entrypoint, "Entrypoint"), (g.GoldenVector, "GoldenVector"), (g.Graph, "Graph"),
    ],
)  # fmt: skip
def test_values_mirror_the_schema(value: Any, struct: str) -> None:
    declared = set(getattr(schema.graph, struct).schema.fieldnames)
    assert {camel(item.name) for item in fields(value)} == declared


@pytest.mark.parametrize(
    ("enum", "module", "name"),
    [
        (g.BufferKind, schema.graph, "BufferKind"), (g.Access, schema.graph, "Access"),
        (g.EntryRole, schema.graph, "EntryRole"), (g.MissPolicy, schema.graph, "MissPolicy"),
        (g.DType, schema.result, "DType"), (g.NanPolicy, schema.result, "NanPolicy"),
    ],
)  # fmt: skip
def test_enums_mirror_the_schema(enum: Any, module: Any, name: str) -> None:
    declared = getattr(module, name).schema.enumerants
    assert {camel(item.name.lower()): int(item) for item in enum} == declared


def test_a_graph_survives_the_way_to_bytes_and_back() -> None:
    graph = valid_graph()
    assert decode(encode(graph)) == graph
    assert encode(decode(encode(graph))) == encode(graph)


def test_other_graphs_have_other_bytes() -> None:
    graph = valid_graph()
    assert encode(edit(graph, "launches.2.values", (-6,))) != encode(graph)
    assert decode(encode(edit(graph, "launches.2.values", (-(1 << 63),)))).launches[2].values == (-(1 << 63),)


def test_the_bytes_are_what_pycapnp_reads() -> None:
    with schema.graph.Graph.from_bytes(encode(valid_graph())) as message:
        assert message.driver == "cpu"
        assert message.buffers[4].initialOffset == 192
        assert str(message.programs[2].argumentAccess[0]) == "readWrite"
        assert list(getattr(message.launches[0], "global")) == [2]
        assert message.outputs[1].view.name == "heading"


def test_a_large_graph_still_has_one_segment() -> None:
    graph = valid_graph()
    graph = replace(graph, launches=graph.launches * 400)
    data = encode(graph)
    assert len(data) > 300_000
    assert data[:4] == bytes(4)
    assert decode(data) == graph


def test_a_graph_above_the_limit_is_refused_both_ways() -> None:
    for times in (1, 3):
        program = replace(valid_graph().programs[0], name="n" * (times * g.MAX_GRAPH_BYTES))
        graph = replace(valid_graph(), programs=(program,))
        assert refusal(lambda large=graph: encode(large)) is GraphErrorCode.TOO_LARGE  # type: ignore[misc]
    assert refusal(lambda: decode(bytes(g.MAX_GRAPH_BYTES + 1))) is GraphErrorCode.TOO_LARGE


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("threads", -1), ("threads", 1 << 32), ("threads", None), ("driver", 5), ("driver", "\udc80"),
        ("buffers", None),
        ("buffers.0.size_bytes", 1 << 64), ("launches.0.values", (1 << 63,)), ("programs.0.argument_access", (7,)),
        ("goldens.0.seed", "1"), ("outputs.0.absolute_tolerance", "x"),
    ],
)  # fmt: skip
def test_a_value_that_its_field_cannot_hold_is_refused(path: str, value: Any) -> None:
    assert refusal(lambda: encode(edit(valid_graph(), path, value))) is GraphErrorCode.VALUE


def test_cut_and_lengthened_bytes_are_refused() -> None:
    data = encode(valid_graph())
    for length in (0, 8, 15, 16, 64, len(data) - 8, len(data) - 1):
        assert refusal(lambda n=length: decode(data[:n])) is GraphErrorCode.TRUNCATED  # type: ignore[misc]
    assert refusal(lambda: decode(data + bytes(8))) is GraphErrorCode.TRUNCATED


def test_a_second_segment_is_refused() -> None:
    data = encode(valid_graph())
    assert refusal(lambda: decode(b"\x01" + data[1:])) is GraphErrorCode.SEGMENTS


def test_a_second_spelling_of_the_same_graph_is_refused() -> None:
    data = bytearray(encode(valid_graph()))
    words = len(data) // 8
    data += bytes(8)  # an unreferenced word
    data[4:8] = words.to_bytes(4, "little")
    assert refusal(lambda: decode(bytes(data))) is GraphErrorCode.NOT_CANONICAL


def test_an_unknown_enumerant_is_refused() -> None:
    with schema.graph.Graph.from_bytes(encode(valid_graph())) as reader:
        message = reader.as_builder()
    message.buffers[0].kind = 99
    assert refusal(lambda: decode(message.to_bytes())) is GraphErrorCode.MALFORMED


def test_a_list_that_claims_more_than_it_holds_is_refused() -> None:
    root = b"\0\0\0\0" + (3).to_bytes(4, "little")
    pointer = (0).to_bytes(4, "little") + (0).to_bytes(2, "little") + (2).to_bytes(2, "little")
    empty = (0).to_bytes(8, "little")
    void_list = ((0 << 2) | 1).to_bytes(4, "little") + ((1 << 29) - 1 << 3 & 0xFFFFFFFF).to_bytes(4, "little")
    assert refusal(lambda: decode(root + pointer + empty + void_list)) in (
        GraphErrorCode.MALFORMED,
        GraphErrorCode.NOT_CANONICAL,
    )


@given(st.binary(max_size=400))
def test_any_bytes_are_a_graph_or_a_refusal(data: bytes) -> None:
    size = len(data) // 8 * 8
    framed = bytes(4) + (size // 8).to_bytes(4, "little") + data[:size]
    for candidate in (data, framed):
        try:
            found = decode(candidate)
        except GraphError:
            continue
        assert encode(found) == candidate


@given(st.lists(st.tuples(st.integers(8, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_spoiled_graph_is_another_graph_or_a_refusal(changes: list[tuple[int, int]]) -> None:
    data = bytearray(encode(valid_graph()))
    for at, value in changes:
        data[at % (len(data) - 8) + 8] = value
    try:
        found = decode(memoryview(data))
    except GraphError:
        return
    assert encode(found) == bytes(data)

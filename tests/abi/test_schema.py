"""The flat codecs: derived from the schema, byte-equal to pycapnp, and strict."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import capnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi import colour, flat, graph_values, messages, packet, schema

RANGES = {"H": (0, 2**16 - 1), "I": (0, 2**32 - 1), "Q": (0, 2**64 - 1), "q": (-(2**63), 2**63 - 1)}
CODES = {"uint16": "H", "enum": "H", "uint32": "I", "uint64": "Q", "int64": "q"}
FLAT = [
    (flat.SUBMIT, schema.session.Submit, flat.Submit),
    (flat.RELEASE, schema.session.Release, flat.Release),
    (flat.RESULT, schema.result.Result, flat.Result),
]


def fields_of(struct_schema: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    """(schema path, type) of every field in code order, groups descended; written apart from the code under test."""
    found: list[tuple[tuple[str, ...], str]] = []
    for field in struct_schema.fields_list:
        inner = (*path, str(field.proto.name))
        if str(field.proto.which()) == "group":
            found += fields_of(field.schema, inner)
        else:
            found.append((inner, str(field.proto.slot.type.which())))
    return found


def by_pycapnp(module: Any, values: dict[tuple[str, ...], int]) -> bytes:
    """The message as pycapnp builds it."""
    message = module.new_message()
    for (*groups, name), value in values.items():
        target = message
        for group in groups:
            target = getattr(target, group)
        setattr(target, name, value)
    return bytes(message.to_bytes())


def draw_values(data: st.DataObject, module: Any) -> dict[tuple[str, ...], int]:
    values = {}
    for path, kind in fields_of(module.schema):
        low, high = (0, 1) if kind == "enum" else RANGES[CODES[kind]]
        values[path] = data.draw(st.integers(low, high))
    return values


@pytest.mark.parametrize(("codec", "module", "record"), FLAT)
def test_records_mirror_the_schema(codec: Any, module: Any, record: Any) -> None:
    expected = ["_".join(schema.snake_case(part) for part in path) for path, _ in fields_of(module.schema)]
    assert list(record._fields) == expected
    assert codec.names == record._fields


@pytest.mark.parametrize(("codec", "module", "record"), FLAT)
@given(data=st.data())
def test_packing_equals_pycapnp_and_comes_back(codec: Any, module: Any, record: Any, data: st.DataObject) -> None:
    values = draw_values(data, module)
    value = record(*values.values())
    wire = by_pycapnp(module, values)
    assert codec.pack(value) == wire
    for view in (wire, bytearray(wire), memoryview(wire)):
        assert codec.unpack(view) == value
    assert type(codec.unpack(wire)) is record
    assert codec.size_bytes == len(wire)


@pytest.mark.parametrize(("codec", "module", "record"), FLAT)
@given(data=st.data())
def test_pycapnp_reads_what_was_packed(codec: Any, module: Any, record: Any, data: st.DataObject) -> None:
    values = draw_values(data, module)
    with module.from_bytes(codec.pack(record(*values.values()))) as reader:
        for (*groups, name), value in values.items():
            target = reader
            for group in groups:
                target = getattr(target, group)
            found = getattr(target, name)
            assert getattr(found, "raw", found) == value


@pytest.mark.parametrize("field", ["stream_id", "slot", "generation", "eof_ns", "flags"])
@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1])
def test_a_value_that_does_not_fit_is_refused(field: str, value: int) -> None:
    with pytest.raises(schema.FlatError) as refusal:
        flat.SUBMIT.pack(flat.Submit(1, 0, 1, 1, 0, 0, 0, 0, 0)._replace(**{field: value}))
    assert refusal.value.what == "Submit"
    assert str(value) in refusal.value.found


@pytest.mark.parametrize("change", [-8, -1, 1, 8])
def test_a_wrong_length_is_refused(change: int) -> None:
    wire = flat.SUBMIT.pack(flat.Submit(1, 0, 1, 1, 0, 0, 0, 0, 0))
    with pytest.raises(schema.FlatError) as refusal:
        flat.SUBMIT.unpack(wire[:change] if change < 0 else wire + bytes(change))
    assert refusal.value.what == "Submit length"
    assert refusal.value.expected == f"{len(wire)} bytes"
    assert refusal.value.found == f"{len(wire) + change} bytes"


@pytest.mark.parametrize(
    ("at", "what"),
    [(0, "segment table"), (4, "segment table"), (8, "root pointer"), (12, "root pointer"), (14, "root pointer")],
)
def test_another_prefix_is_refused(at: int, what: str) -> None:
    wire = bytearray(flat.RELEASE.pack(flat.Release(1, 0, 1, 1, 0, 0, 0)))
    wire[at] ^= 1
    with pytest.raises(schema.FlatError) as refusal:
        flat.RELEASE.unpack(wire)
    assert refusal.value.what == f"Release {what}"
    assert refusal.value.expected != refusal.value.found
    assert f"expected {refusal.value.expected}, found {refusal.value.found}" in str(refusal.value)


@pytest.mark.parametrize(("codec", "module", "record"), FLAT)
def test_every_bit_outside_the_fields_is_refused(codec: Any, module: Any, record: Any) -> None:
    """So that there is one encoding of each value: a flipped bit changes the value or is refused."""
    wire = codec.pack(record(*[0] * len(record._fields)))
    zero = codec.unpack(wire)
    for bit in range(len(wire) * 8):
        flipped = bytearray(wire)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert codec.unpack(flipped) != zero
        except schema.FlatError:
            continue


def test_bits_in_a_gap_are_named() -> None:
    wire = bytearray(flat.SUBMIT.pack(flat.Submit(*[0] * 9)))
    wire[-1] = 1
    with pytest.raises(schema.FlatError, match="Submit bytes between fields: expected zeros, found a set bit"):
        flat.SUBMIT.unpack(wire)


class Small(NamedTuple):
    """In the order of offsets, which is not that of the declaration: Cap'n Proto fills gaps."""

    a: int
    c: int
    d: int
    b: int
    e: int


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a @0 :UInt32; b @1 :Text;", "has pointers"),
        ("a @0 :UInt32; b @1 :Bool;", "b is of type bool"),
        ("a @0 :UInt32; b @1 :Float32;", "b is of type float32"),
        ("a @0 :UInt32; b @1 :UInt8 = 3;", "b has a default"),
        ("a @0 :UInt32; b @1 :UInt8 = 0;", "b has a default"),
        ("union { a @0 :UInt32; b @1 :UInt32; }", "has a union"),
        ("g :group { union { a @0 :UInt32; b @1 :UInt32; } }", "has a union"),
        ("b @0 :UInt32; a @1 :UInt32;", "does not mirror"),
        ("a @0 :UInt32;", "does not mirror"),
    ],
)
def test_a_struct_that_cannot_be_flat_is_refused_at_import(tmp_path: Path, body: str, reason: str) -> None:
    file = tmp_path / "case.capnp"
    file.write_text(f"@0xb0a53f3b7b2b44d1;\nstruct Case{abs(hash(body))} {{ {body} }}\n")
    module = capnp.SchemaParser().load(str(file))
    case = next(getattr(module, name) for name in dir(module) if name.startswith("Case"))
    with pytest.raises(schema.SchemaError, match=reason):
        schema.FlatCodec(case.schema, Pair)


def test_small_and_signed_fields_and_gaps_are_packed_as_pycapnp_packs_them(tmp_path: Path) -> None:
    file = tmp_path / "small.capnp"
    file.write_text(
        "@0xb0a53f3b7b2b44d2;\nstruct Small { a @0 :Int8; b @1 :Int32; c @2 :UInt8; d @3 :Int16; e @4 :UInt64; }\n"
    )
    small = capnp.SchemaParser().load(str(file)).Small
    codec = schema.FlatCodec(small.schema, Small)
    message = small.new_message(a=-1, b=-2, c=255, d=-3, e=9)
    wire = bytes(message.to_bytes())
    assert codec.pack(Small(-1, 255, -3, -2, 9)) == wire
    assert codec.unpack(wire) == Small(-1, 255, -3, -2, 9)


ENUMS = [
    (schema.frame, enum)
    for enum in (
        colour.Range, colour.Matrix, colour.Primaries, colour.Transfer, colour.ChromaSite, colour.CfaOrder,
        colour.ClockId, colour.TimeMark,
    )
] + [
    (schema.session, enum)
    for enum in (
        packet.Kind, packet.RefusalCode, messages.Role, messages.DeliveryPolicy, messages.CommandKind,
        flat.ReleaseStatus,
    )
] + [(schema.result, graph_values.DType), (schema.result, graph_values.NanPolicy)]  # fmt: skip


@pytest.mark.parametrize(("module", "enum"), ENUMS)
def test_enums_equal_the_schema(module: Any, enum: Any) -> None:
    declared = {
        schema.snake_case(name).upper(): value
        for name, value in getattr(module, enum.__name__).schema.enumerants.items()
    }
    assert {member.name: int(member) for member in enum} == declared


def test_the_segment_table_and_root_pointer_are_those_of_the_encoding() -> None:
    wire = flat.RELEASE.pack(flat.Release(1, 2, 3, 4, 5, 6, 7))
    assert struct.unpack_from("<IIIHH", wire) == (0, 6, 0, 5, 0)


def uncommented(text: str) -> list[str]:
    """The fields of a schema without a comment beside or under them; the copies of `frame0` need none."""
    lines, inside, found = text.splitlines(), [""], []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        opened = re.match(r" *(?:struct |enum )?(\w+) (?::group )?{", line)
        field = re.match(r" +(\w+) @\d+ :", line)
        if opened:
            inside.append(opened[1])
        elif line.strip() == "}":
            inside.pop()
        elif field and "#" not in line and not following.lstrip().startswith("#"):
            found.append(f"{inside[-1]}.{field[1]}")
    return [name for name in found if not re.match(r"frame[1-7]\.", name)]


@pytest.mark.parametrize("name", ["frame", "graph", "result", "session", "state"])
def test_every_field_has_a_comment(name: str) -> None:
    assert uncommented((Path(schema.__file__).parent / f"{name}.capnp").read_text()) == []


def test_a_field_without_a_comment_is_found() -> None:
    assert uncommented("struct One {\n  a @0 :UInt8;\n  b @1 :UInt8;\n  # That one.\n}\n") == ["One.a"]

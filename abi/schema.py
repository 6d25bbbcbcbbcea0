"""The `.capnp` schemas, loaded once, and codecs for their flat structs.

`frame`, `session`, `result`, `graph` and `state` are pycapnp modules. A *flat* struct (no pointers, defaults, bit
fields or unions) always has the same length and its fields the same places, so `FlatCodec` derives one `struct.Struct`
from the schema node and needs no pycapnp per packet. Its bytes equal pycapnp's: an 8-byte segment table, an
8-byte root pointer (Cap'n Proto encoding, "Serialization Over a Stream" and "Structs"), the data words.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import capnp

__all__ = ["FlatCodec", "FlatError", "SchemaError", "frame", "graph", "result", "session", "snake_case", "state"]

_HERE = Path(__file__).resolve().parent
_IMPORTS = [str(Path(capnp.__file__).resolve().parent.parent)]  # so that "/capnp/c++.capnp" resolves

WORD_BYTES = 8
PREFIX_BYTES = 2 * WORD_BYTES  # segment table and root pointer

# struct codes and sizes in bytes of the slot types that a flat struct may hold.
_CODES = {
    "int8": ("b", 1), "uint8": ("B", 1), "int16": ("h", 2), "uint16": ("H", 2), "enum": ("H", 2),
    "int32": ("i", 4), "uint32": ("I", 4), "int64": ("q", 8), "uint64": ("Q", 8),
}  # fmt: skip

T = TypeVar("T", bound=tuple[int, ...])


def _load(name: str) -> Any:
    return capnp.load(str(_HERE / name), imports=_IMPORTS)


frame: Any = _load("frame.capnp")
result: Any = _load("result.capnp")
session: Any = _load("session.capnp")
graph: Any = _load("graph.capnp")
state: Any = _load("state.capnp")


class SchemaError(TypeError):
    """A struct of the schema cannot be flat, or a record does not mirror it. A fault of this package, at import."""


class FlatError(ValueError):
    """Bytes that are not the one encoding of a flat struct, or a value that does not fit its field.

    `what` names the part, `expected` and `found` say how it differs.
    """

    def __init__(self, what: str, expected: str, found: str) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")
        self.what, self.expected, self.found = what, expected, found


def snake_case(name: str) -> str:
    """The Python name of a schema's camelCase name: `sofNs` becomes `sof_ns`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def _slots(schema: Any, prefix: str) -> Iterator[tuple[int, str, str, int]]:
    """(byte offset in the data section, snake_case path, struct code, bytes) of every field, groups descended."""
    if schema.node.struct.discriminantCount:
        raise SchemaError(f"{schema.node.displayName} has a union and cannot be flat")
    for field in schema.fields_list:
        proto = field.proto
        path = prefix + snake_case(proto.name)
        if proto.which() == "group":
            yield from _slots(field.schema, path + "_")
            continue
        kind = str(proto.slot.type.which())
        if kind not in _CODES:
            raise SchemaError(f"{path} is of type {kind} and cannot be in a flat struct")
        if proto.slot.hadExplicitDefault:
            raise SchemaError(f"{path} has a default and cannot be in a flat struct")
        code, size = _CODES[kind]
        yield proto.slot.offset * size, path, code, size


def _formats(slots: list[tuple[int, str, str, int]], data_bytes: int) -> tuple[str, str, int]:
    """The struct format of the fields, of everything else (prefix and gaps), and the number of gap bytes."""
    fields, rest, place, gaps, passed = f"<{PREFIX_BYTES}x", "<QQ", 0, 0, 0
    for offset, code, size in [*((at, code, size) for at, _, code, size in slots), (data_bytes, "", 0)]:
        gap = offset - place
        if gap:
            fields += f"{gap}x"
            rest += f"{passed}x{gap}B"  # no part of it is empty: each that is there costs every packet a look
            passed = 0
        fields += code
        place, gaps, passed = offset + size, gaps + gap, passed + size
    return fields, f"{rest}{passed}x", gaps


class FlatCodec(Generic[T]):
    """Packs and unpacks one flat struct as one fixed-offset record.

    `record` is a NamedTuple class whose fields are the struct's, in the order of their offsets, in snake_case,
    a group's name before its fields' (`receipt.frame0.sofNs` is `receipt_frame0_sof_ns`). Enums are their
    ordinals. There is one encoding of each value and `unpack` refuses every other: another segment count,
    length or root pointer, or a set bit outside the fields. Raises SchemaError when record and struct differ.
    """

    def __init__(self, schema: Any, record: type[T]) -> None:
        node = schema.node
        words = int(node.struct.dataWordCount)
        if node.struct.pointerCount:
            raise SchemaError(f"{node.displayName} has pointers and cannot be flat")
        slots = sorted(_slots(schema, ""))
        self.names = tuple(path for _, path, _, _ in slots)
        if getattr(record, "_fields", None) != self.names:
            raise SchemaError(f"{record.__name__} does not mirror {node.displayName}: expected fields {self.names}")
        fields, rest, gaps = _formats(slots, words * WORD_BYTES)
        self._fields = struct.Struct(fields)
        self._message = struct.Struct(f"<QQ{fields.removeprefix(f'<{PREFIX_BYTES}x')}")
        self._rest = struct.Struct(rest)
        # Segment table: (segments - 1) u32, words u32. Root pointer: kind 0, offset 0, data words, 0 pointers.
        self._expected_rest = ((words + 1) << 32, words << 32) + (0,) * gaps
        self._prefix = self._expected_rest[:2]
        self._record = record
        self.size_bytes = self._fields.size

    def pack(self, value: T) -> bytes:
        """The message as bytes. Raises FlatError when a field's value does not fit its type."""
        try:
            return self._message.pack(*self._prefix, *value)
        except struct.error as error:
            raise FlatError(self._record.__name__, "every field within its type", f"{value} ({error})") from None

    def unpack(self, view: bytes | bytearray | memoryview, offset: int = 0) -> T:
        """The record in `view`, which holds exactly one message from `offset` to its end.

        Raises FlatError for any other bytes.
        """
        if len(view) - offset != self.size_bytes:
            found = f"{len(view) - offset} bytes"
            raise FlatError(f"{self._record.__name__} length", f"{self.size_bytes} bytes", found)
        rest = self._rest.unpack_from(view, offset)
        if rest != self._expected_rest:
            self._refuse(rest)
        return tuple.__new__(self._record, self._fields.unpack_from(view, offset))

    def _refuse(self, rest: tuple[int, ...]) -> None:
        name = self._record.__name__
        for part, at in (("segment table", 0), ("root pointer", 1)):
            if rest[at] != self._expected_rest[at]:
                raise FlatError(f"{name} {part}", f"{self._expected_rest[at]:#x}", f"{rest[at]:#x}")
        raise FlatError(f"{name} bytes between fields", "zeros", "a set bit")

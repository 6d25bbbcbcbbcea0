"""The graph's long tables (buffers, programs, launches) read straight from the message's bytes.

pycapnp costs about a microsecond a field, which at a thousand launches is tens of milliseconds. Offsets come from the
schema at import. This reader believes what it reads: it follows pointers as `abi.graph.encode` lays them out and raises
ValueError where it cannot; all lists together may hold no more than the message. It is safe because `abi.graph.decode`
encodes again what was read and refuses any difference: what this reader misunderstands is refused, never accepted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

from abi import schema
from abi.graph_values import Access, Argument, Buffer, BufferKind, Launch, Program

__all__ = ["Tables"]

_WORD: Final = 8
_ROOT: Final = 8  # after the segment table stands the root pointer
_STRUCT, _LIST, _COMPOSITE = 0, 1, 7
_POINTER: Final = struct.Struct("<Q")
_DATA: Final = {"enum": ("H", 16), "uint16": ("H", 16), "uint32": ("I", 32), "uint64": ("Q", 64)}  # code, bits
_ELEMENTS: Final = {3: ("H", 2), 4: ("I", 4), 5: ("q", 8)}  # struct code and bytes by a list's element size
_BYTES: Final = 2


class _Shape:
    """Where a struct's fields stand: `take` its data fields in the schema's order, `at` its pointers in bytes."""

    def __init__(self, described: Any) -> None:
        node = described.schema.node.struct
        self.words = int(node.dataWordCount), int(node.pointerCount)
        self.step = _WORD * sum(self.words)
        slots: list[tuple[int, str, int]] = []  # bit offset, struct code, place in the schema
        self.at: dict[str, int] = {}
        for place, field in enumerate(described.schema.fields_list):
            name, slot, kind = field.proto.name, field.proto.slot, str(field.proto.slot.type.which())
            if kind in _DATA:
                code, bits = _DATA[kind]
                slots.append((slot.offset * bits, code, place))
            elif kind == "bool":  # the only one of its byte: nothing else here has less than 16 bits
                slots.append((slot.offset, "?", place))
            else:
                self.at[name] = _WORD * (self.words[0] + slot.offset)
        slots.sort()
        form, end = "<", 0
        for bit, code, _ in slots:
            form += f"{bit // 8 - end}x{code}"
            end = bit // 8 + struct.calcsize(f"<{code}")
        self._data = struct.Struct(f"{form}{_WORD * self.words[0] - end}x")
        places = [place for _, _, place in slots]
        self._in_order = itemgetter(*sorted(range(len(places)), key=places.__getitem__))

    def data(self, raw: bytes, start: int) -> Any:
        """The data fields of the struct at `start`, in the schema's order: a tuple, or the value where it is one."""
        return self._in_order(self._data.unpack_from(raw, start))

    def all_data(self, raw: bytes, elements: range) -> Iterator[Any]:
        """`data` of each of neighbouring structs that have no pointers."""
        return map(self._in_order, self._data.iter_unpack(raw[elements.start : elements.stop]))


_GRAPH: Final = _Shape(schema.graph.Graph)
_BUFFER: Final = _Shape(schema.graph.Buffer)
_PROGRAM: Final = _Shape(schema.graph.Program)
_ARGUMENT: Final = _Shape(schema.graph.Argument)
_LAUNCH: Final = _Shape(schema.graph.Launch)
_KINDS: Final = tuple(BufferKind)
_ACCESS: Final = tuple(Access)


class Tables:
    """The three tables of the message `raw`, which is one segment behind its 8-byte table."""

    def __init__(self, raw: bytes) -> None:
        """Read them. Raises ValueError for bytes that `encode` does not write."""
        self._raw = raw
        self._left_bytes = len(raw)
        try:
            self._read()
        except struct.error as error:
            raise ValueError(f"a pointer leaves the message: {error}") from error
        except IndexError as error:
            raise ValueError("an enumerant that this schema does not have") from error

    def _read(self) -> None:
        pointer = self._pointer(_ROOT)
        if pointer & 3 != _STRUCT:
            raise ValueError("the root pointer points to no struct")
        root = self._target(_ROOT, pointer)
        self.buffers = tuple(
            Buffer(_KINDS[kind], *rest)
            for kind, *rest in _BUFFER.all_data(self._raw, self._structs(root, _GRAPH, "buffers", _BUFFER))
        )
        self.programs = tuple(self._program(at) for at in self._structs(root, _GRAPH, "programs", _PROGRAM))
        self.launches = tuple(self._launch(at) for at in self._structs(root, _GRAPH, "launches", _LAUNCH))

    def _program(self, at: int) -> Program:
        access = tuple(_ACCESS[item] for item in self._scalars(at + _PROGRAM.at["argumentAccess"]))
        name, symbol = self._text(at + _PROGRAM.at["name"]), self._text(at + _PROGRAM.at["symbol"])
        return Program(name, symbol, access, *_PROGRAM.data(self._raw, at))

    def _launch(self, at: int) -> Launch:
        arguments = self._structs(at, _LAUNCH, "arguments", _ARGUMENT)
        return Launch(
            _LAUNCH.data(self._raw, at),
            tuple(Argument(*one) for one in _ARGUMENT.all_data(self._raw, arguments)),
            self._scalars(at + _LAUNCH.at["global"]),
            self._scalars(at + _LAUNCH.at["local"]),
            self._scalars(at + _LAUNCH.at["values"]),
        )

    def _pointer(self, at: int) -> int:
        value: int = _POINTER.unpack_from(self._raw, at)[0]
        return value

    @staticmethod
    def _target(at: int, pointer: int) -> int:
        """Where the pointer at `at` points. `encode` lays out forwards, so its 30-bit offset is never negative."""
        return at + _WORD + _WORD * (pointer >> 2 & 0x3FFFFFFF)

    def _list(self, at: int) -> tuple[int, int, int]:
        """(element size code, count or words, start) of the list that the pointer at `at` names."""
        pointer = self._pointer(at)
        if pointer & 3 != _LIST:
            raise ValueError(f"the pointer at byte {at} points to no list")
        return pointer >> 32 & 7, pointer >> 35, self._target(at, pointer)

    def _spend(self, size_bytes: int) -> None:
        """Lists that share their bytes could make a small message large (a list of lists, all one): refuse them."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise ValueError("its lists hold more than the message")

    def _structs(self, at: int, owner: _Shape, name: str, shape: _Shape) -> range:
        """The starts of the structs in the list `name` of the struct at `at`."""
        code, words, tag_at = self._list(at + owner.at[name])
        tag, first = self._pointer(tag_at), tag_at + _WORD
        if code != _COMPOSITE or (tag >> 32 & 0xFFFF, tag >> 48) != shape.words:
            raise ValueError(f"the list {name} is not of such structs as this schema has")
        self._spend(_WORD * words)
        return range(first, first + _WORD * words, shape.step)

    def _scalars(self, at: int) -> tuple[int, ...]:
        code, count, start = self._list(at)
        if code not in _ELEMENTS:
            raise ValueError(f"the pointer at byte {at} points to no numbers")
        letter, size_bytes = _ELEMENTS[code]
        self._spend(count * size_bytes)
        return struct.unpack_from(f"<{count}{letter}", self._raw, start)

    def _text(self, at: int) -> str:
        code, count, start = self._list(at)
        if code != _BYTES:
            raise ValueError(f"the pointer at byte {at} points to no text")
        self._spend(count)
        return self._raw[start : start + count - 1].decode()

"""What may be mapped as a CPU bundle's code: an ELF shared object that does nothing by being loaded.

Read before the dynamic loader sees it: right machine, no page both writable and executable, no executable stack, no
library, no initialiser or finaliser, no undefined symbol, no relocation (one kind runs code); and every symbol that
the graph and the driver will call is a function in executable pages. Numbers: System V ABI, "Object Files"; elf.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MACHINES = {"x86_64": 62, "aarch64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_IDENTITY = b"\x7fELF\x02\x01\x01"  # 64 bit, little endian, version 1
_ET_DYN = 3
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_TLS, _PT_GNU_STACK = 1, 2, 3, 7, 0x6474E551
_PF_X, _PF_W = 1, 2
_STT_FUNC = 2
_DT_NULL, _DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 0, 1, 4, 5, 6, 10, 11
_FORBIDDEN = {
    _DT_NEEDED: "needs a library",
    7: "asks for relocations (DT_RELA)",
    17: "asks for relocations (DT_REL)",
    23: "asks for relocations (DT_JMPREL)",
    36: "asks for relocations (DT_RELR)",
    12: "runs an initialiser (DT_INIT)",
    13: "runs a finaliser (DT_FINI)",
    15: "names a library path (DT_RPATH)",
    22: "relocates its code (DT_TEXTREL)",
    25: "runs initialisers (DT_INIT_ARRAY)",
    26: "runs finalisers (DT_FINI_ARRAY)",
    29: "names a library path (DT_RUNPATH)",
    32: "runs initialisers (DT_PREINIT_ARRAY)",
    0x7FFFFFFD: "loads an auxiliary object (DT_AUXILIARY)",
    0x7FFFFFFF: "loads a filter object (DT_FILTER)",
}
MAX_SYMBOLS = 1 << 16


class CodeError(ValueError):
    """The object may not be mapped; the text says why."""


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    file_bytes: int


def check_code(code: memoryview, arch: str, symbols: Iterable[str]) -> None:
    """Raises CodeError unless `code` may be mapped on `arch` and exports every one of `symbols` as a function."""
    try:
        _check(code, arch, symbols)
    except CodeError:
        raise
    except (struct.error, ValueError, OverflowError) as error:
        raise CodeError("the object is cut off or its tables point outside it") from error


def _check(code: memoryview, arch: str, symbols: Iterable[str]) -> None:
    header = _HEADER.unpack_from(code, 0)
    if header[0][:7] != _IDENTITY or header[1] != _ET_DYN:
        raise CodeError("not a 64-bit little-endian ELF shared object")
    if header[2] != MACHINES.get(arch):
        raise CodeError(f"made for ELF machine {header[2]}, this is {arch} ({MACHINES.get(arch, 'unknown')})")
    segments = list(_segments(code, header[5], header[9], header[10]))
    dynamic = _check_segments(segments)
    tags = _tags(code, dynamic)
    functions = _functions(code, segments, tags)
    for symbol in symbols:
        if symbol not in functions:
            raise CodeError(f"exports no function {symbol!r} in executable pages")


def _segments(code: memoryview, at: int, size: int, count: int) -> Iterator[_Segment]:
    if size != _SEGMENT.size:
        raise CodeError(f"program headers of {size} bytes, expected {_SEGMENT.size}")
    for index in range(count):
        kind, flags, offset, address, _, file_bytes, _, _ = _SEGMENT.unpack_from(code, at + index * size)
        if offset + file_bytes > code.nbytes:
            raise CodeError(f"segment {index} reaches past the end of the object")
        yield _Segment(kind, flags, offset, address, file_bytes)


def _check_segments(segments: list[_Segment]) -> _Segment:
    """Refuses what must not be mapped; returns the dynamic segment."""
    dynamic = None
    stack = False
    for segment in segments:
        if segment.kind == _PT_LOAD and segment.flags & _PF_W and segment.flags & _PF_X:
            raise CodeError("has pages that are both writable and executable")
        if segment.kind in (_PT_INTERP, _PT_TLS):
            raise CodeError("asks for an interpreter or thread-local storage")
        if segment.kind == _PT_GNU_STACK:
            stack = True
            if segment.flags & _PF_X:
                raise CodeError("asks for an executable stack")
        if segment.kind == _PT_DYNAMIC:
            dynamic = segment
    if not stack:
        raise CodeError("does not say that its stack is not executable")
    if dynamic is None:
        raise CodeError("has no dynamic section")
    return dynamic


def _tags(code: memoryview, dynamic: _Segment) -> dict[int, int]:
    tags: dict[int, int] = {}
    for at in range(dynamic.offset, dynamic.offset + dynamic.file_bytes, _DYNAMIC.size):
        tag, value = _DYNAMIC.unpack_from(code, at)
        if tag == _DT_NULL:
            return tags
        if tag in _FORBIDDEN:
            raise CodeError(_FORBIDDEN[tag])
        if tag in tags:
            raise CodeError(f"states dynamic tag {tag} twice")
        tags[tag] = value
    raise CodeError("has a dynamic section without an end")


def _functions(code: memoryview, segments: list[_Segment], tags: dict[int, int]) -> frozenset[str]:
    """Names of the exported functions whose code lies in executable pages. Undefined symbols are refused."""
    absent = [tag for tag in (_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT) if tag not in tags]
    if absent or tags[_DT_SYMENT] != _SYMBOL.size:
        raise CodeError("has no readable symbol table (DT_HASH, DT_SYMTAB, DT_STRTAB)")
    _, count = struct.unpack_from("<II", code, _file_offset(segments, tags[_DT_HASH]))  # elf.h: nbucket, nchain
    if count > MAX_SYMBOLS:
        raise CodeError(f"has {count} symbols, at most {MAX_SYMBOLS}")
    table = _file_offset(segments, tags[_DT_SYMTAB])
    texts = _file_offset(segments, tags[_DT_STRTAB])
    strings = bytes(code[texts : texts + tags[_DT_STRSZ]])
    names = set()
    for index in range(1, count):
        name_at, info, _, section, address, _ = _SYMBOL.unpack_from(code, table + index * _SYMBOL.size)
        name = strings[name_at : strings.index(b"\0", name_at)].decode("ascii", "replace")
        if section == 0:
            raise CodeError(f"leaves {name!r} undefined")
        if info & 15 == _STT_FUNC and any(_executes(segment, address) for segment in segments):
            names.add(name)
    return frozenset(names)


def _executes(segment: _Segment, address: int) -> bool:
    inside = segment.address <= address < segment.address + segment.file_bytes
    return segment.kind == _PT_LOAD and bool(segment.flags & _PF_X) and inside


def _file_offset(segments: list[_Segment], address: int) -> int:
    for segment in segments:
        if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.file_bytes:
            return segment.offset + address - segment.address
    raise CodeError(f"points at {address:#x}, which no segment holds")

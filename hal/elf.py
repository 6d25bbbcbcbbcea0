"""What may be mapped as a CPU bundle's code: an ELF shared object that does nothing by being loaded.

Read before the dynamic loader sees it: right machine, no page both writable and executable, no executable stack, no
library, no initialiser or finaliser, no undefined symbol, no relocation (one kind runs code); and every symbol that
the graph and the driver will call is a function in executable pages. The loader must come to the same object: it finds
tables by address and we by offset, so segments may not overlap and a table lies in one of them; it finds symbols by
hash, so no hash may lead out of the table; and only tags and flags that the lab's linker writes are taken. Numbers:
System V ABI, "Object Files"; elf.h.
"""

from __future__ import annotations

import itertools
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
_SHN_LORESERVE = 0xFF00
_PLAIN_TYPES, _PLAIN_BINDINGS = range(5), range(3)  # up to STT_FILE and STB_WEAK; above: thread-local, run at look-up
_PAGE_BYTES = {62: 4096, 183: 65536}  # by machine: the largest that its kernels have
_DT_NULL, _DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 0, 1, 4, 5, 6, 10, 11
_DT_FLAGS, _DT_GNU_HASH, _DT_FLAGS_1 = 30, 0x6FFFFEF5, 0x6FFFFFFB
_TABLES = frozenset((_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_GNU_HASH))
_FLAGS = {_DT_FLAGS: 0x8, _DT_FLAGS_1: 0x1}  # DF_BIND_NOW, DF_1_NOW; others keep the object mapped after it is closed
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
    memory_bytes: int


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
    _check_places([segment for segment in segments if segment.kind == _PT_LOAD], _PAGE_BYTES[header[2]])
    image = _Image(code, segments)
    if image.offset(dynamic.address, dynamic.file_bytes) != dynamic.offset:
        raise CodeError("has a dynamic section that is not where its address says")
    tags = _tags(code, dynamic)
    functions = _functions(image, tags)
    for symbol in symbols:
        if symbol not in functions:
            raise CodeError(f"exports no function {symbol!r} in executable pages")


def _segments(code: memoryview, at: int, size: int, count: int) -> Iterator[_Segment]:
    if size != _SEGMENT.size:
        raise CodeError(f"program headers of {size} bytes, expected {_SEGMENT.size}")
    for index in range(count):
        kind, flags, offset, address, _, file_bytes, memory_bytes, _ = _SEGMENT.unpack_from(code, at + index * size)
        if offset + file_bytes > code.nbytes:
            raise CodeError(f"segment {index} reaches past the end of the object")
        yield _Segment(kind, flags, offset, address, file_bytes, memory_bytes)


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
            if dynamic is not None:
                raise CodeError("has two dynamic sections")
            dynamic = segment
    if not stack:
        raise CodeError("does not say that its stack is not executable")
    if dynamic is None:
        raise CodeError("has no dynamic section")
    return dynamic


def _check_places(loaded: list[_Segment], page_bytes: int) -> None:
    """Refuses segments of which the loader could map one over another: then the file is not what memory holds."""
    free_from = 0
    for segment in loaded:
        if segment.memory_bytes < segment.file_bytes or (segment.offset - segment.address) % page_bytes:
            raise CodeError("has a segment that cannot be mapped as it stands in the file")
        if segment.address // page_bytes * page_bytes < free_from:
            raise CodeError("has segments that share pages or are out of order")
        free_from = -(-(segment.address + segment.memory_bytes) // page_bytes) * page_bytes


class _Image:
    """The object as the loader sees it: by address."""

    def __init__(self, code: memoryview, segments: list[_Segment]) -> None:
        self._code = code
        self._loaded = [segment for segment in segments if segment.kind == _PT_LOAD]

    def offset(self, address: int, size: int) -> int:
        """Where in the file the `size` bytes from `address` are. Raises CodeError unless one segment holds them."""
        for segment in self._loaded:
            if segment.address <= address and address + size <= segment.address + segment.file_bytes:
                return segment.offset + address - segment.address
        raise CodeError(f"points at {size} bytes at {address:#x}, which no segment holds")

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """The `count` u32 from `address`."""
        return struct.unpack_from(f"<{count}I", self._code, self.offset(address, 4 * count))

    def read(self, address: int, size: int) -> bytes:
        """The `size` bytes from `address`."""
        at = self.offset(address, size)
        return bytes(self._code[at : at + size])

    def executes(self, address: int) -> bool:
        """Whether `address` lies in executable pages that come from the file."""
        return any(
            segment.flags & _PF_X and segment.address <= address < segment.address + segment.file_bytes
            for segment in self._loaded
        )


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
        if tag not in _TABLES and value & ~_FLAGS.get(tag, 0):
            raise CodeError(f"states dynamic tag {tag:#x} as {value:#x}, which the lab's linker does not")
        tags[tag] = value
    raise CodeError("has a dynamic section without an end")


def _functions(image: _Image, tags: dict[int, int]) -> frozenset[str]:
    """Names of the exported functions whose code lies in executable pages. Undefined symbols are refused."""
    absent = [tag for tag in (_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT) if tag not in tags]
    if absent or tags[_DT_SYMENT] != _SYMBOL.size:
        raise CodeError("has no readable symbol table (DT_HASH, DT_SYMTAB, DT_STRTAB)")
    count = _count(image, tags)
    strings = image.read(tags[_DT_STRTAB], tags[_DT_STRSZ])
    table = image.read(tags[_DT_SYMTAB], count * _SYMBOL.size)
    names: dict[str, bool] = {}
    for name_at, info, _, section, address, _ in itertools.islice(_SYMBOL.iter_unpack(table), 1, None):
        name = strings[name_at : strings.index(b"\0", name_at)].decode("ascii", "replace")
        if section == 0:
            raise CodeError(f"leaves {name!r} undefined")
        if info & 15 not in _PLAIN_TYPES or info >> 4 not in _PLAIN_BINDINGS:
            raise CodeError(f"has a symbol {name!r} that does more than name a place (type and binding {info:#x})")
        if name in names:
            raise CodeError(f"has two symbols {name!r}")
        names[name] = info & 15 == _STT_FUNC and section < _SHN_LORESERVE and image.executes(address)
    return frozenset(name for name, called in names.items() if called)


def _count(image: _Image, tags: dict[int, int]) -> int:
    """How many symbols the table has, once neither hash leads to another one. elf.h: DT_HASH; GNU hash as in glibc."""
    buckets, count = image.words(tags[_DT_HASH], 2)
    if count > MAX_SYMBOLS or buckets > MAX_SYMBOLS:
        raise CodeError(f"has {count} symbols in {buckets} chains, at most {MAX_SYMBOLS}")
    reached = image.words(tags[_DT_HASH] + 8, buckets + count)
    if max(reached, default=0) >= max(1, count):
        raise CodeError("has a hash table that leads out of its symbols")
    if _DT_GNU_HASH in tags:
        _check_gnu_hash(image, tags[_DT_GNU_HASH], count)
    return count


def _check_gnu_hash(image: _Image, at: int, count: int) -> None:
    """Chains begin within the table, and the table's last symbol ends one: so does each, then, at the latest."""
    buckets, first, blooms, _ = image.words(at, 4)
    if buckets > MAX_SYMBOLS or blooms > MAX_SYMBOLS:
        raise CodeError(f"has {buckets} chains and {blooms} filters, at most {MAX_SYMBOLS}")
    begin = at + 16 + 8 * blooms
    begun = [symbol for symbol in image.words(begin, buckets) if symbol]
    if not begun:
        return
    within = first <= min(begun) and max(begun) < count
    if not within or not image.words(begin + 4 * (buckets + count - 1 - first), 1)[0] & 1:
        raise CodeError("has a hash table that leads out of its symbols")

"""What may be loaded as a CUDA kernel's code: a cubin, an ELF object for a GPU. Text (PTX) would be compiled here.

The vendor's loader is given no length, so every table and section that the object names must lie inside it. Numbers:
System V ABI, "Object Files"; EM_CUDA is 190.
"""

from __future__ import annotations

import struct

from hal.error import HalCode, HalError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_EM_CUDA = 190
_SHT_NOBITS = 8


def check_cubin(code: memoryview, where: str) -> None:
    """Raises HalError CODE unless `code` is one whole cubin; `where` names it in the message."""
    problem = _problem(code)
    if problem:
        raise HalError(HalCode.CODE, f"{where} is no cubin", expected="an ELF object for a GPU, whole", found=problem,
                       todo="compile the model again")  # fmt: skip


def _problem(code: memoryview) -> str:
    size = code.nbytes
    if size < _HEADER.size or bytes(code[:6]) != b"\x7fELF\x02\x01":
        return "no 64-bit little-endian ELF object"
    fields = _HEADER.unpack_from(code, 0)
    machine, segments_at, sections_at = fields[2], fields[5], fields[6]
    segment_bytes, segments, section_bytes, sections = fields[9:13]
    if machine != _EM_CUDA:
        return f"ELF machine {machine}"
    tables = ((segments_at, segments, segment_bytes, _SEGMENT), (sections_at, sections, section_bytes, _SECTION))
    for at, count, entry_bytes, entry in tables:
        if count and (entry_bytes != entry.size or at + count * entry_bytes > size):
            return "a table outside the object"
    for index in range(sections):
        section = _SECTION.unpack_from(code, sections_at + index * _SECTION.size)
        if section[1] != _SHT_NOBITS and section[4] + section[5] > size:
            return f"section {index} outside the object"
    for index in range(segments):
        segment = _SEGMENT.unpack_from(code, segments_at + index * _SEGMENT.size)
        if segment[2] + segment[5] > size:
            return f"segment {index} outside the object"
    return ""

"""PoCL's program binaries, made a function of their content.

A binary is an archive of the files in PoCL's cache folder. Two things in it are chance: the folder's name, a hash over
bytes that hold the name of a temporary file, and the order of files, which is the file system's. Here the files of
each part are sorted by path, and the folder is named by a hash of everything else. Kernels that were compiled and
linked apart (clCompileProgram, clLinkProgram) hold no temporary name themselves.

Layout, observed with version 9 of the format (PoCL 3.1): magic, device hash u64, version u32, kernels u32, 12 bytes of
flags and kind, folder name (40 letters with a "/" and NUL), u64 size of the program's files, those files, then each
kernel: its size u64, the size of its files u64, metadata, and the files last. A file is u32 length and path, u32 length
and content. All little-endian.
"""

from __future__ import annotations

import hashlib
import re
import struct

_MAGIC = b"poclbin\0"
_VERSION_AT, _VERSION = 16, 9
_NAME = slice(36, 77)
_NAME_FORM = re.compile(rb"[A-P]{2}/[A-P]{37}\0")
_LETTERS = str.maketrans("0123456789abcdef", "ABCDEFGHIJKLMNOP")


def canonical(binary: bytes) -> bytes:
    """The binary with chance taken out; other drivers' binaries and other versions' as they are."""
    version = binary[_VERSION_AT : _VERSION_AT + 4]
    if not binary.startswith(_MAGIC) or version != _VERSION.to_bytes(4, "little"):
        return binary
    if not _NAME_FORM.fullmatch(binary[_NAME]):
        return binary
    try:
        parts = _sorted_parts(binary, _NAME.stop)
    except (struct.error, ValueError):
        return binary
    before = binary[: _NAME.start]
    letters = hashlib.sha256(before + parts).hexdigest().translate(_LETTERS)
    return before + f"{letters[:2]}/{letters[2:39]}\0".encode() + parts


def _sorted_parts(binary: bytes, at: int) -> bytes:
    """The program's part and every kernel's, from `at`. Raises ValueError or struct.error where they do not fit."""
    (size,) = struct.unpack_from("<Q", binary, at)
    out = [binary[at : at + 8], _sorted_files(binary[at + 8 : at + 8 + size], size)]
    at += 8 + size
    while at < len(binary):
        size, files = struct.unpack_from("<QQ", binary, at)
        if not 16 <= size - files <= size <= len(binary) - at:
            raise ValueError(f"a kernel of {size} bytes with {files} bytes of files at {at}")
        start = at + size - files
        out += [binary[at:start], _sorted_files(binary[start : at + size], files)]
        at += size
    return b"".join(out)


def _sorted_files(part: bytes, size: int) -> bytes:
    if len(part) != size:
        raise ValueError(f"{len(part)} bytes of files, {size} are stated")
    files: list[bytes] = []
    at = 0
    while at < size:
        start = at
        for _ in range(2):  # path, content
            (length,) = struct.unpack_from("<I", part, at)
            at += 4 + length
        if at > size:
            raise ValueError("a file reaches past its part")
        files.append(part[start:at])
    files.sort(key=lambda file: file[4 : 4 + int.from_bytes(file[:4], "little")])
    return b"".join(files)

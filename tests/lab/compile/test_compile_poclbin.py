"""PoCL's binaries without chance in them: sorted files, a folder named by the content, and nothing else touched."""

import struct

from lab.compile.poclbin import canonical

NAME = b"PB/DMJJLJBBIBJAODLPJAONDBFLINPGLCNLMCEIM\0"
OTHER_NAME = b"NG/AABHDMOOGHLEAFLIGPDOFDHOEOAFIFPPONGBP"[:40] + b"\0"


def file(path: bytes, content: bytes) -> bytes:
    return struct.pack("<I", len(path)) + path + struct.pack("<I", len(content)) + content


def binary(name: bytes, files: list[bytes], *, version: int = 9, kernels: int = 1) -> bytes:
    program, metadata = file(b"/program.bc", b"bitcode"), b"metadata"
    head = b"poclbin\0" + bytes(8) + struct.pack("<II", version, kernels) + bytes(12) + name
    body = struct.pack("<Q", len(program)) + program
    for _ in range(kernels):
        joined = b"".join(files)
        body += struct.pack("<QQ", 16 + len(metadata) + len(joined), len(joined)) + metadata + joined
    return head + body


FILES = [file(b"/w0/64-1-1/w0.so", b"special"), file(b"/w0/0-0-0/w0.so", b"generic")]


def test_the_order_of_files_and_the_folders_name_do_not_matter() -> None:
    one, two = canonical(binary(NAME, FILES)), canonical(binary(OTHER_NAME, FILES[::-1]))
    assert one == two
    assert one[36:77] not in (NAME, OTHER_NAME)
    assert one[77:] == binary(NAME, FILES[::-1])[77:]


def test_the_folder_is_named_by_the_content() -> None:
    changed = [file(b"/w0/0-0-0/w0.so", b"Generic"), FILES[0]]
    one, two = canonical(binary(NAME, FILES)), canonical(binary(NAME, changed))
    assert one[36:77] != two[36:77]
    assert one[38:39] == b"/"
    assert one[76] == 0


def test_it_is_done_once() -> None:
    once = canonical(binary(NAME, FILES, kernels=3))
    assert canonical(once) == once


def test_binaries_that_are_not_understood_stay_as_they_are() -> None:
    good = binary(NAME, FILES)
    too_long = bytearray(good)
    too_long[77:85] = struct.pack("<Q", 1 << 40)
    for other in (
        b"",
        b"\x7fELF of another driver",
        binary(NAME, FILES, version=10),
        binary(b"no folder" + bytes(32), FILES),
        good[:-1],
        bytes(too_long),
        good[:60],
        good[:12],
    ):
        assert canonical(other) == other

"""Compares the tree that this daemon runs from with the signed list of its files (`signing.image`), at start.

Every file must be listed, every listed file must be there and be what the list says; nothing else may lie in the tree,
no link and no device. Files are hashed on two threads, beside each other. What it cannot see: a verifier that was
changed itself. It finds damage, half an update and a changed file; who may write the tree is the system's matter.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterator

from signing.image import ENVELOPE_NAME, LIST_LIMIT_BYTES, LIST_NAME, ImageStatement, decode_list, verify_image
from signing.refusal import RefusalCode, Refused, shown
from signing.root import Root
from signing.store import read_file

_ENVELOPE_LIMIT_BYTES = 256 << 10
_CHUNK_BYTES = 1 << 20
_TODO = "Install the image again; nothing may be changed, added or removed in it."


def verify_tree(tree: str, root: Root, now_unix_s: int | None = None) -> ImageStatement:
    """Return what the image at `tree` states, once its signature and every file hold. Raises Refused.

    No clock keeps an image that is installed from starting: `now_unix_s` is for who signs or installs one.
    """
    listed = read_file(os.path.join(tree, LIST_NAME), limit_bytes=LIST_LIMIT_BYTES)
    signed = read_file(os.path.join(tree, ENVELOPE_NAME), limit_bytes=_ENVELOPE_LIMIT_BYTES)
    statement = verify_image(signed, listed, root, now_unix_s)
    require_files(tree, listed)
    return statement


def verify_own_tree(manifest_path: str, root: Root) -> ImageStatement:
    """As `verify_tree` for the tree that `manifest_path` lies in, which must be the one that this code runs from."""
    tree = os.path.dirname(os.path.realpath(manifest_path))
    if os.path.basename(manifest_path) != ENVELOPE_NAME or not os.path.realpath(__file__).startswith(tree + "/"):
        expected = f"the {ENVELOPE_NAME} of the tree that this daemon runs from, {os.path.realpath(__file__)}"
        todo = "Name the image's own file in image_manifest_path, and start the daemon from that image."
        raise Refused(RefusalCode.UNREADABLE_FILE, "image_manifest_path", expected, shown(manifest_path), todo)
    return verify_tree(tree, root)


def tree_files(tree: str) -> Iterator[str]:
    """The relative paths of the files in `tree`, but for the two at its top that describe it. Raises Refused."""
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(tree, folder)) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    folders.append(path)
                elif not stat.S_ISREG(mode):
                    found = "a link or a special file"
                    raise Refused(RefusalCode.UNSAFE_FILE, f"image file {shown(path)}", "a regular file", found, _TODO)
                elif path not in (LIST_NAME, ENVELOPE_NAME):
                    yield path


def hash_file(path: str) -> str:
    """The SHA-256 of a file in lowercase hexadecimal digits."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()


def require_files(tree: str, list_bytes: bytes) -> None:
    """Return if the files in `tree` are those of its list, and no others. Raises Refused."""
    listed = decode_list(list_bytes)
    present = set(tree_files(tree))
    for path in sorted(present ^ listed.keys()):
        what = f"image file {shown(path)}"
        if path in present:
            raise Refused(
                RefusalCode.UNKNOWN_BLOB, what, f"a file that {LIST_NAME} lists", "one that it does not", _TODO
            )
        raise Refused(RefusalCode.UNREADABLE_FILE, what, f"a file, as {LIST_NAME} lists it", "none", _TODO)
    found = _hash_files(tree, list(listed))
    for path, digest in listed.items():
        if found[path] != digest:
            expected = f"sha256 {digest}"
            raise Refused(RefusalCode.DIGEST_MISMATCH, f"image file {shown(path)}", expected, found[path], _TODO)


def _hash_files(tree: str, paths: list[str]) -> dict[str, str]:
    """The digests of the files, by path; hashed here and on a second thread (hashing lets go of the interpreter)."""
    found = dict.fromkeys(paths, "unreadable")
    by_size = sorted(paths, key=lambda path: os.path.getsize(os.path.join(tree, path)))

    def work(some: list[str]) -> None:
        for path in some:
            found[path] = hash_file(os.path.join(tree, path))

    beside = threading.Thread(target=work, args=(by_size[::2],), name="fenced-image")
    beside.start()
    try:
        work(by_size[1::2])
    finally:
        beside.join()
    return found

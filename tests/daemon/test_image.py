"""The tree that the daemon runs from is compared, file by file, with the list that the role release has signed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import daemon.image
from daemon.image import hash_file, require_files, tree_files, verify_own_tree, verify_tree
from signing.envelope import BUNDLE_PAYLOAD_TYPE
from signing.image import ENVELOPE_NAME, LIST_NAME, ImageStatement, encode, encode_list
from signing.refusal import RefusalCode, Refused
from signing.root import Root
from tests.simulators import NOW_UNIX_S, RoleKeys, make_root, sign_payload


@dataclass(frozen=True)
class Tree:
    """A small image, and the root that it is signed under."""

    path: Path
    root: Root


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    path = tmp_path / "image"
    for name, data in {
        "bin/fenced": b"#!",
        "lib/a/b.py": b"x = 1\n",
        "lib/empty": b"",
        "lib/big": bytes(3 << 20),
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    listed = encode_list({name: hash_file(str(path / name)) for name in tree_files(str(path))})
    (path / LIST_NAME).write_bytes(listed)
    keys = RoleKeys.make()
    stated = ImageStatement("0.1.0", "x86_64", "3.11", hash_file(str(path / LIST_NAME)))
    (path / ENVELOPE_NAME).write_bytes(sign_payload(BUNDLE_PAYLOAD_TYPE, encode(stated), keys.release).encode())
    for one in path.rglob("*"):
        one.chmod(0o755 if one.is_dir() else 0o644)
    return Tree(path, make_root(keys))


def test_an_image_as_it_was_signed_passes(tree: Tree) -> None:
    assert verify_tree(str(tree.path), tree.root).version == "0.1.0"


def test_no_clock_keeps_an_installed_image_from_starting(tree: Tree) -> None:
    ended = {keyid: replace(one, valid_until_unix_s=1) for keyid, one in tree.root.keys.items()}
    root = replace(tree.root, keys=ended)
    assert verify_tree(str(tree.path), root).version == "0.1.0"
    with pytest.raises(Refused) as refused:
        verify_tree(str(tree.path), root, NOW_UNIX_S)
    assert refused.value.code is RefusalCode.EXPIRED


SPOILS: list[tuple[Callable[[Path], object], RefusalCode, str]] = [
    (lambda path: (path / "lib/a/b.py").write_bytes(b"x = 2\n"), RefusalCode.DIGEST_MISMATCH, "'lib/a/b.py'"),
    (lambda path: (path / "lib/big").write_bytes(bytes(3 << 20)[1:] + b"1"), RefusalCode.DIGEST_MISMATCH, "'lib/big'"),
    (lambda path: (path / "lib/a/c.py").touch(), RefusalCode.UNKNOWN_BLOB, "'lib/a/c.py'"),
    (lambda path: (path / "lib/a/image.json").touch(), RefusalCode.UNKNOWN_BLOB, "'lib/a/image.json'"),
    (lambda path: (path / "lib/empty").unlink(), RefusalCode.UNREADABLE_FILE, "'lib/empty'"),
    (lambda path: (path / "lib/link").symlink_to("/etc"), RefusalCode.UNSAFE_FILE, "'lib/link'"),
    (lambda path: os.mkfifo(path / "lib/fifo"), RefusalCode.UNSAFE_FILE, "'lib/fifo'"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "code", "name"), SPOILS)
def test_a_changed_tree_is_refused_by_file(
    tree: Tree, spoil: Callable[[Path], object], code: RefusalCode, name: str
) -> None:
    spoil(tree.path)
    with pytest.raises(Refused) as refused:
        verify_tree(str(tree.path), tree.root)
    assert (refused.value.code, refused.value.what) == (code, f"image file {name}")
    assert "Install the image again" in refused.value.todo


def test_a_list_that_was_changed_with_its_file_is_refused(tree: Tree) -> None:
    (tree.path / "lib/empty").write_bytes(b"!")
    listed = encode_list({name: hash_file(str(tree.path / name)) for name in tree_files(str(tree.path))})
    (tree.path / LIST_NAME).write_bytes(listed)
    require_files(str(tree.path), listed)
    with pytest.raises(Refused, match=r"files\.sha256"):
        verify_tree(str(tree.path), tree.root)


def test_another_tree_than_the_one_that_runs_is_no_proof(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = str(tree.path / ENVELOPE_NAME)
    with pytest.raises(Refused, match="image_manifest_path"):
        verify_own_tree(manifest, tree.root)
    monkeypatch.setattr(daemon.image, "__file__", str(tree.path / "lib/a/b.py"))
    assert verify_own_tree(manifest, tree.root).arch == "x86_64"
    with pytest.raises(Refused, match="image_manifest_path"):
        verify_own_tree(str(tree.path / LIST_NAME), tree.root)

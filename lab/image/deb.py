"""An image as a Debian package: `ar` and `tar` written here, so that equal trees give equal bytes on any machine.

Into it go the tree as /opt/fenced, the units where systemd looks for them, the example configuration as a conffile, and
small maintainer scripts. It starts nothing by itself: which cameras there are is for the vehicle's integrator to say.
Source: deb(5), deb-control(5), Debian Policy 4.6 chapters 5 to 7.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.image.sign import read_image
from lab.image.target import ImageTarget
from lab.sign.pack import write_whole

_MTIME_UNIX_S = 1_704_067_200  # 2024-01-01: the package says nothing about when it was made
_UNITS = "usr/lib/systemd/system"
_PLACES = {
    "fenced.service": _UNITS,
    "fenced-camera.socket": _UNITS,
    "fenced-consumer.socket": _UNITS,
    "fenced-control.socket": _UNITS,
    "fenced.sysusers": "usr/lib/sysusers.d",
    "fenced.tmpfiles": "usr/lib/tmpfiles.d",
    "fenced.catalog": "usr/lib/systemd/catalog",
    "fenced.toml": "etc/fenced",
}
_RENAMED = {"fenced.sysusers": "fenced.conf", "fenced.tmpfiles": "fenced.conf"}
_CONTROL = """\
Package: fenced
Version: {version}
Architecture: {architecture}
Maintainer: fenced <root@localhost>
Installed-Size: {kibibytes}
Depends: python{python}, libc6 (>= 2.28), libstdc++6, libgcc-s1
Recommends: systemd (>= 249)
Section: misc
Priority: optional
Description: inference daemon for vehicle computers
 Loads only signed, hash-bound, compiled models, takes camera frames through a described hardware ABI and publishes a
 result only behind a signalled completion fence.
"""
_POSTINST = """\
#!/bin/sh
# Users, folders and units; nothing is started.
set -e
if [ "$1" = configure ] && command -v systemctl >/dev/null; then
  systemd-sysusers fenced.conf
  systemd-tmpfiles --create fenced.conf
  journalctl --update-catalog
  version=$(systemctl --version | sed -n '1s/^systemd \\([0-9]*\\).*/\\1/p')
  folder=/etc/systemd/system/fenced.service.d
  if [ "${version:-0}" -ge 253 ] && [ ! -e "$folder/notify-reload.conf" ]; then
    mkdir -p "$folder"
    ln -s /opt/fenced/share/systemd/fenced-notify-reload.conf "$folder/notify-reload.conf"
  fi
  if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
"""
_PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl disable --now fenced.service fenced-camera.socket fenced-consumer.socket fenced-control.socket || true
fi
"""
_POSTRM = """\
#!/bin/sh
set -e
if [ "$1" != upgrade ]; then rm -f /etc/systemd/system/fenced.service.d/notify-reload.conf; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""


@dataclass(frozen=True)
class _File:
    """One file of the package: its path without a leading slash, its bytes and whether it can be executed."""

    path: str
    data: bytes
    executable: bool = False


def write_deb(tree: Path, path: Path) -> int:
    """Write the image at `tree`, whose files are compared with its list first, as the package `path`; returns its size.

    Raises Refused for a tree that is not what its list says.
    """
    statement = read_image(tree)
    target = ImageTarget(statement.arch, statement.python)
    files = _files(tree)
    kibibytes = -(-sum(len(one.data) for one in files) // 1024)
    control = _CONTROL.format(
        version=statement.version, architecture=target.deb_architecture, kibibytes=kibibytes, python=target.python
    )
    sums = "".join(
        f"{hashlib.md5(one.data, usedforsecurity=False).hexdigest()}  {one.path}\n"
        for one in files
        if one.path[:4] != "etc/"
    )
    scripts = (("postinst", _POSTINST), ("prerm", _PRERM), ("postrm", _POSTRM))
    information = [
        _File("control", control.encode()),
        _File("conffiles", b"/etc/fenced/fenced.toml\n"),
        _File("md5sums", sums.encode()),
        *(_File(name, text.encode(), executable=True) for name, text in scripts),
    ]
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": _tar(information), "data.tar.xz": _tar(files)}
    package = _ar(parts)
    write_whole(path, lambda file: file.write(package))
    return len(package)


def _files(tree: Path) -> list[_File]:
    found = [
        _File(f"opt/fenced/{one.relative_to(tree).as_posix()}", one.read_bytes(), bool(one.stat().st_mode & 0o100))
        for one in tree.rglob("*")
        if one.is_file()
    ]
    for name, folder in _PLACES.items():
        found.append(_File(f"{folder}/{_RENAMED.get(name, name)}", (tree / "share" / "systemd" / name).read_bytes()))
    found.append(_File("usr/share/doc/fenced/copyright", (tree / "share" / "LICENSE").read_bytes()))
    return sorted(found, key=lambda one: one.path)


def _tar(files: Iterable[_File]) -> bytes:
    """A compressed archive with every folder before its files, owned by root."""
    buffer = io.BytesIO()
    made: set[str] = set()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(_entry(".", folder=True))
        for one in files:
            parts = one.path.split("/")
            for folder in ("/".join(parts[:depth]) for depth in range(1, len(parts))):
                if folder not in made:
                    made.add(folder)
                    archive.addfile(_entry(folder, folder=True))
            info = _entry(one.path)
            info.size, info.mode = len(one.data), 0o755 if one.executable else 0o644
            archive.addfile(info, io.BytesIO(one.data))
    return lzma.compress(buffer.getvalue(), preset=1)


def _entry(path: str, *, folder: bool = False) -> tarfile.TarInfo:
    info = tarfile.TarInfo("./" if path == "." else f"./{path}")
    info.type, info.mode = (tarfile.DIRTYPE, 0o755) if folder else (tarfile.REGTYPE, 0o644)
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mtime = _MTIME_UNIX_S
    return info


def _ar(parts: dict[str, bytes]) -> bytes:
    """The outer archive (ar(5), the common format): members padded to even offsets."""
    package = bytearray(b"!<arch>\n")
    for name, data in parts.items():
        package += f"{name:<16}{_MTIME_UNIX_S:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        package += data + b"\n" * (len(data) % 2)
    return bytes(package)

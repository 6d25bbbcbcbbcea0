"""Which vehicle an image is for: its architecture, and the minor version of the Python that the vehicle's system has.

Byte code and extension modules are of one minor version; the image states it and its launcher asks for that interpreter
by name. Wheels are taken for the platforms of PEP 600 that a glibc of 2.28 (2018) or later runs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

DEB_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Architectures that images are built for, and Debian's names of them."""
_GLIBC_MINORS = (28, 27, 26, 24, 17, 12, 5)


@dataclass(frozen=True)
class ImageTarget:
    """`arch` is as `uname -m` says it; `python` as in "3.11". Raises ValueError for another architecture."""

    arch: str
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"

    def __post_init__(self) -> None:
        if self.arch not in DEB_ARCHITECTURES:
            expected = " or ".join(DEB_ARCHITECTURES)
            raise ValueError(f"architecture {self.arch!r}: images are built for {expected}")

    @property
    def interpreter(self) -> str:
        """The interpreter that the launcher names; Debian's packages put it there."""
        return f"/usr/bin/python{self.python}"

    @property
    def platforms(self) -> tuple[str, ...]:
        """Wheel platform tags, the best first (PEP 600, and the aliases of PEP 599 and 571)."""
        named = [f"manylinux_2_{minor}_{self.arch}" for minor in _GLIBC_MINORS]
        return (*named, f"manylinux2014_{self.arch}", f"manylinux2010_{self.arch}")

    @property
    def deb_architecture(self) -> str:
        """Debian's name of the architecture."""
        return DEB_ARCHITECTURES[self.arch]

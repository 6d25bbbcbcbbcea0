"""Folders that a command makes anew: what lies there is removed, but only where the command itself had made it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

__all__ = ["make_anew"]

_MARK = ".made-by-fenced-lab"


def make_anew(folder: Path) -> None:
    """Make an empty folder at `folder`, in place of the one that was made here before.

    Raises FileExistsError for anything else that stands there and is not an empty folder: `-o .` costs nobody his work.
    """
    if folder.exists():
        ours = folder.is_dir() and not folder.is_symlink() and ((folder / _MARK).exists() or not any(folder.iterdir()))
        if not ours:
            raise FileExistsError(errno.EEXIST, "what was not made by fenced-lab", str(folder))
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / _MARK).touch()

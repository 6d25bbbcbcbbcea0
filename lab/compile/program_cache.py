"""Compiled kernels kept between processes: generating their code is most of a compile's time.

tinygrad keeps programs in a dictionary of the process. Here that dictionary also looks into a folder of the user's
cache for kernels of `FencedRenderer`, and writes there. A program's key is everything it depends on: the kernel's
content, the target, tinygrad's configuration and version, the source of the blocking rule and of the proof of its
bounds, and the C compiler. Every program is proved in bounds (`lab.compile.bounds`) before it is kept, and cut down to
what a launch needs before it is used, whether it comes from the folder or not, so that a compile gives the same bundle
from a cold and from a warm cache.

The files are pickles, which run code when read: only files that this user alone may write are opened. (The vehicle
reads none of this; it has no pickle at all.)
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import stat
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tinygrad import codegen
from tinygrad.engine import realize
from tinygrad.uop.ops import Ops, UOp

from lab.compile import bounds, renderer, schedule
from lab.compile.bounds import require_in_bounds

_UNREADABLE = (OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ImportError, pickle.PickleError)


def essential(program: Any) -> Any:
    """A compiled program without its intermediate code: name, estimates, parameters, source and binary."""
    sink, linear, *rest = program.src
    parameters = tuple(one for one in linear.src if one.op is Ops.PARAM)
    return program.replace(src=(UOp(Ops.SINK, arg=sink.arg), UOp(Ops.LINEAR, src=parameters), *rest))


class ProgramCache(dict[tuple[Any, ...], Any]):
    """tinygrad's `to_program_cache`, backed by `folder` for kernels that the lab's renderer makes.

    compiler: what identifies the C compiler and its flags.
    """

    def __init__(self, folder: Path, compiler: str) -> None:
        super().__init__()
        self.folder = folder
        rule = "".join(map(inspect.getsource, (schedule, renderer, bounds)))
        self._fixed = (hashlib.sha256(rule.encode()).hexdigest(), version("tinygrad"), compiler)

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        """The program, from memory or from the folder."""
        found = super().get(key)
        if found is None and self._is_ours(key):
            found = self._read(self._path(key))
            if found is not None:
                super().__setitem__(key, found)
        return default if found is None else found

    def __setitem__(self, key: tuple[Any, ...], program: Any) -> None:
        if not self._is_ours(key):
            super().__setitem__(key, program)
            return
        require_in_bounds(program)
        program = essential(program)
        super().__setitem__(key, program)
        self._write(self._path(key), program)

    def _is_ours(self, key: Any) -> bool:
        return isinstance(key, tuple) and renderer.FencedRenderer in key

    def _path(self, key: tuple[Any, ...]) -> Path:
        content, kind, *context = key
        text = repr((content.hex(), kind.__name__, context, self._fixed))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.pickle"

    def _read(self, path: Path) -> Any:
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                is_private = state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
                return pickle.load(file) if is_private else None
        except _UNREADABLE:
            return None  # then the kernel is compiled again, and the file replaced

    def _write(self, path: Path, program: Any) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            pickle.dump(program, file)
        os.replace(file.name, path)


def install(folder: Path, compiler: str) -> None:
    """Makes tinygrad use a `ProgramCache`; does nothing where it already does."""
    if not isinstance(codegen.to_program_cache, ProgramCache):
        codegen.to_program_cache = realize.to_program_cache = ProgramCache(folder, compiler)

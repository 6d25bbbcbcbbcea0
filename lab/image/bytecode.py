"""Byte code for a tree: unchecked-hash .pyc files (PEP 552), equal bytes for equal sources.

The vehicle's interpreter takes them as they are and looks at no time stamp. `marshal` in its present version writes
references where objects happen to be shared, which differs from run to run; version 2 of its format has none.
"""

from __future__ import annotations

import importlib.util
import marshal
from importlib.machinery import SourceFileLoader
from pathlib import Path

_UNCHECKED_HASH = (0b01).to_bytes(4, "little")  # PEP 552: flags; hash-based, not to be checked
_MARSHAL_VERSION = 2


def compile_tree(folder: Path, *, shown_as: str) -> int:
    """Write `__pycache__` for every .py below `folder`; returns how many. Tracebacks show paths below `shown_as`."""
    count = 0
    for path in sorted(folder.rglob("*.py")):
        name = f"{shown_as}/{path.relative_to(folder).as_posix()}"
        target = Path(importlib.util.cache_from_source(str(path)))
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(compiled(path.read_bytes(), name))
        count += 1
    return count


def compiled(source: bytes, name: str) -> bytes:
    """The bytes of the .pyc for one source. SyntaxError for one that is not of this interpreter's language."""
    code = SourceFileLoader("<image>", name).source_to_code(source, name)
    digest = importlib.util.source_hash(source)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + digest + marshal.dumps(code, _MARSHAL_VERSION)

"""Byte code of the image: taken without a look at its source, and the same in every run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from lab.image.bytecode import compile_tree, compiled

SOURCE = "KINDS = frozenset({'a', 'b', 'ccc', 'dd'})\n\n\ndef kind(name):\n    return name in {'a', 'b', 'ccc', 'dd'}\n"
HASHES = "import hashlib, sys; from lab.image.bytecode import compiled; print([hashlib.sha256(compiled(open(p, 'rb').read(), p)).hexdigest() for p in sys.argv[1:]])"  # noqa: E501


def test_the_interpreter_takes_it_whatever_became_of_the_source(tmp_path: Path) -> None:
    module = tmp_path / "kinds.py"
    module.write_text(SOURCE)
    assert compile_tree(tmp_path, shown_as="lib") == 1
    module.write_text("raise SystemExit('the source was run')\n")
    command = [
        sys.executable,
        "-IBSc",
        f"import sys; sys.path.append({str(tmp_path)!r}); import kinds; print(kinds.kind('ccc'))",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_no_run_writes_other_bytes_than_another() -> None:
    sources = [importlib.util.find_spec(name).origin for name in ("abi.session", "daemon.config", "ast", "enum")]  # type: ignore[union-attr]
    seen = set()
    for seed in ("1", "2"):
        command = [sys.executable, "-c", HASHES, *map(str, sources)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        seen.add(done.stdout)
    assert len(seen) == 1
    assert compiled(b"x = 1\n", "lib/a.py") != compiled(b"x = 2\n", "lib/a.py")


def test_what_else_the_process_holds_changes_no_byte() -> None:
    source = b"a_name_that_stands_once = 'a constant that stands once'\n"
    before = compiled(source, "lib/a.py")
    kept = [sys.intern(word) for word in ("a_name_that_stands_once", "a constant that stands once", "lib/a.py")]
    assert compiled(source, "lib/a.py") == before
    assert len(kept) == 3

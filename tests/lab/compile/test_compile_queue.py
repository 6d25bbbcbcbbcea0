"""The queue runtime under real threads: results, data races (ThreadSanitizer), and the other architecture.

The last two need runtimes that zig builds from source once, which takes minutes: they run where FENCED_SLOW is set.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.compile import link
from lab.compile.link import zig_cc

HARNESS = Path(__file__).with_name("queue_harness.c")
SOURCES = Path(link.__file__).parent
slow = pytest.mark.skipif(
    not os.environ.get("FENCED_SLOW"), reason="set FENCED_SLOW=1: zig builds a runtime first, minutes once"
)


def build(folder: Path, *flags: str, edit: tuple[str, str] | None = None) -> Path:
    """The harness with the queue runtime, or with one spoiled by `edit` (old text, new text)."""
    for name in ("queue.h", "queue.c"):
        text = (SOURCES / name).read_text()
        if edit is not None and name == "queue.c":
            assert text.count(edit[0]) == 1
            text = text.replace(*edit)
        (folder / name).write_text(text)
    shutil.copy(HARNESS, folder)
    zig_cc([*flags, "-O2", "-g0", "-o", "harness", HARNESS.name, "queue.c"], folder)
    return folder / "harness"


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("threads", "runs", "spin"), [(1, 3000, 100), (2, 3000, 4000), (3, 2000, 100), (8, 500, 100), (4, 300, 0)]
)
def test_every_run_has_its_own_result_in_order(tmp_path: Path, threads: int, runs: int, spin: int) -> None:
    done = run([str(build(tmp_path)), str(threads), str(runs), str(spin)])
    assert done.stdout == f"0 wrong, {20 * runs} launches\n"


def sanitized(folder: Path, edit: tuple[str, str] | None = None) -> str:
    done = run([str(build(folder, "-fsanitize=thread", edit=edit)), "3", "300", "100"])
    if "FATAL: ThreadSanitizer" in done.stderr:
        pytest.skip("ThreadSanitizer does not run on this kernel")
    return done.stdout + done.stderr


@slow
def test_there_is_no_data_race(tmp_path: Path) -> None:
    assert sanitized(tmp_path) == "0 wrong, 6000 launches\n"


@slow
@pytest.mark.parametrize(
    "edit",
    [
        ("store_release(&c->value, value);", "store_relaxed(&c->value, value);"),
        ("store_ordered(&c->work, sequence", "store_relaxed(&c->work, sequence"),
        ("if (load_acquire(&c->done) == cores) return;", "if (load_relaxed(&c->done) == cores) return;"),
    ],
    ids=["timeline", "launch", "done"],
)
def test_the_race_check_sees_a_missing_barrier(tmp_path: Path, edit: tuple[str, str]) -> None:
    assert "data race" in sanitized(tmp_path, edit)


@slow
def test_it_runs_on_aarch64(tmp_path: Path) -> None:
    emulator = [] if platform.machine() == "aarch64" else [shutil.which("qemu-aarch64-static") or ""]
    if emulator == [""]:
        pytest.skip("no qemu-aarch64-static here (Debian: qemu-user-static)")
    harness = build(tmp_path, "-target", "aarch64-linux-musl", "-static")
    assert run([*emulator, str(harness), "3", "200", "100"]).stdout == "0 wrong, 4000 launches\n"

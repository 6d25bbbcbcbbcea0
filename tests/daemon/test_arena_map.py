"""The arena's map of `fenced inspect`: whose bytes they are, launch by launch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from abi.graph import Access, Argument, Buffer, BufferKind, Graph, Launch, Program
from client import cli
from daemon.arena_map import COLUMNS, ROWS, draw
from hal.admit import ArenaRange
from lab.compile.link import symbol
from tests.support.bundles import FRAME, OUT, OUT_BYTES, PIXELS, BundleMaker, TinyModel

TURNS = (
    ArenaRange(7, 0, 64, 20, 21),
    ArenaRange(9, 0, 64, 23, 24),
    ArenaRange(8, 0, 64, 22, 22),
    ArenaRange(4, 64, 1000, 21, 24),
)


def test_buffers_that_take_turns_are_told_apart() -> None:
    assert draw(TURNS, 20, 5) == [
        "launches 20 to 24, one a column; # and = are buffers that take turns",
        "      offset        bytes",
        "           0           64  ##=##",
        "          64         1000  .####",
    ]


@pytest.mark.parametrize(("launches", "a_column", "width"), [(64, "one", 64), (65, "2", 33), (640, "10", 64)])
def test_many_launches_share_columns(launches: int, a_column: str, width: int) -> None:
    lines = draw([ArenaRange(0, 0, 8, 30, launches - 1)], 0, launches)
    assert lines[0].startswith(f"launches 0 to {launches - 1}, {a_column} a column;")
    cells = lines[2].split()[-1]
    assert len(cells) == width <= COLUMNS
    assert cells.index("#") == 30 // (1 if a_column == "one" else int(a_column))
    assert cells[-1] == "#"


def test_the_smallest_of_many_ranges_are_left_out_and_said_so() -> None:
    ranges = [ArenaRange(index, 100 * index, 1 + index % 50, 0, 0) for index in range(ROWS + 3)]
    lines = draw(ranges, 0, 1)
    assert lines[-1] == "3 smaller ranges are left out: --json lists every buffer"
    offsets = [int(line.split()[0]) for line in lines[2:-1]]
    assert offsets == [100 * index for index in range(3, ROWS + 3)]
    assert "left out" not in draw(ranges[:ROWS], 0, 1)[-1]


def test_a_graph_without_an_arena_says_so() -> None:
    assert draw([], 0, 3) == ["no launch uses the arena"]


def through_scratch(graph: Graph) -> Graph:
    """The tiny model's frame goes to the arena first and from there to the output."""
    scratch, size = len(graph.buffers), graph.buffers[FRAME].size_bytes
    written, read = Argument(OUT, 0, graph.buffers[OUT].size_bytes), Argument(scratch, 0, size)
    access = (Access.WRITE, Access.READ)
    return replace(
        graph,
        arena_bytes=64 + size,
        buffers=(*graph.buffers, Buffer(BufferKind.ARENA, size, 64, 64)),
        programs=(Program("copy", symbol(0), access, flops=11), Program("widen", symbol(1), access, flops=7)),
        launches=(Launch(0, (read, Argument(FRAME, 0, size))), Launch(1, (written, read))),
        entrypoints=(replace(graph.entrypoints[0], launch_count=2),),
    )


def test_inspect_says_what_a_run_does_and_where_its_buffers_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(BundleMaker(tmp_path).write(TinyModel(), edit_graph=through_scratch))
    assert cli.main(["inspect", bundle, "--json"]) == 0
    (main,) = json.loads(capsys.readouterr().out)["entrypoints"]
    moved = {"bytes_moved": 3 * PIXELS + OUT_BYTES, "bytes_read": 2 * PIXELS, "bytes_written": PIXELS + OUT_BYTES}
    lives = {"buffer": 2, "offset": 64, "size_bytes": PIXELS, "first_launch": 0, "last_launch": 1}
    expected = {"launches": 2, "launches_by_device": {"cpu": 2}, **moved, "flops": 18, "arena": [lives]}
    assert {name: main[name] for name in expected} == expected
    assert cli.main(["inspect", bundle]) == 0
    text = capsys.readouterr().out
    assert "\n  launches_by_device\n    cpu  2\n" in text
    assert "\n  flops  18\n" in text
    (row,) = draw([ArenaRange(**lives)], 0, 2)[2:]
    assert "\n  arena\n    launches 0 to 1, one a column; # and = are buffers that take turns\n" in text
    assert f"\n    {row}\n" in text
    assert row.endswith("  ##")

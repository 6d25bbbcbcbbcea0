"""The arena of an entrypoint as a few lines of text: which bytes are held by a buffer during which launches.

A row is a range of bytes, a column one launch or a few. Buffers that take turns in a row are drawn with `#` and `=`, so
that where one ends and the next begins can be seen; `.` is free. What the rows say is `hal.admit.ArenaRange`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from hal.admit import ArenaRange

COLUMNS, ROWS = 64, 32
"""The map's largest size; wider ones fold launches together, longer ones leave out the smallest ranges."""


def draw(arena: Sequence[ArenaRange], first_launch: int, launches: int) -> list[str]:
    """The lines of the map of `launches` launches from `first_launch`; a single line where there is no arena.

    arena: an entrypoint's ranges, by offset (`hal.admit.EntryReport.arena`).
    """
    if not arena:
        return ["no launch uses the arena"]
    rows: dict[tuple[int, int], list[ArenaRange]] = {}
    for one in arena:
        rows.setdefault((one.offset, one.size_bytes), []).append(one)
    shown = sorted(sorted(rows, key=lambda row: -row[1])[:ROWS])
    folded = -(-launches // COLUMNS)
    lines = [
        f"launches {first_launch} to {first_launch + launches - 1}, "
        f"{'one' if folded == 1 else folded} a column; # and = are buffers that take turns",
        f"{'offset':>12} {'bytes':>12}",
    ]
    for offset, size_bytes in shown:
        cells = _cells(rows[offset, size_bytes], first_launch, launches, folded)
        lines.append(f"{offset:>12} {size_bytes:>12}  {cells}")
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown)} smaller ranges are left out: --json lists every buffer")
    return lines


def _cells(buffers: Sequence[ArenaRange], first_launch: int, launches: int, folded: int) -> str:
    cells = ["."] * -(-launches // folded)
    for turn, one in enumerate(sorted(buffers, key=lambda item: item.first_launch)):
        first, last = (one.first_launch - first_launch) // folded, (one.last_launch - first_launch) // folded
        cells[first : last + 1] = "#="[turn % 2] * (last + 1 - first)
    return "".join(cells)

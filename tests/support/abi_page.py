"""The parts of docs/abi.md that follow from the code, so that the page cannot drift.

`python -m tests.support.abi_page` makes them anew. Each stands between `<!-- NAME: generated -->` and `<!-- end -->`;
everything else on the page is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from abi import flat, schema
from abi.canonical import MAX_DEPTH
from abi.format import MAX_BUFFER_BYTES, MAX_DIMENSION, PIXEL_FORMATS
from abi.lease import TRANSITIONS as LEASE
from abi.messages import Role
from abi.packet import MAX_DESCRIPTORS, MAX_PACKET_BYTES, MAX_SLOTS, Kind, RefusalCode, encode_header
from abi.rules import MAX_QUEUE, MAX_STREAMS, MAX_SUBSCRIPTIONS
from abi.stream_format import fourcc_text
from abi.transitions import TRANSITIONS, Party, State, Transition

PAGE = Path(__file__).parents[2] / "docs" / "abi.md"
SCHEMA = Path(__file__).parents[2] / "abi" / "session.capnp"
SLOT_TYPES = {
    "enum": ("u16 enum", 2), "uint16": ("u16", 2), "uint32": ("u32", 4), "uint64": ("u64", 8), "int64": ("i64", 8),
}  # fmt: skip
EXAMPLE = flat.Submit(1, 2, 5, 1041, 81234567890123, 81234584000000, 10, 8000000, 0)


def blocks() -> dict[str, str]:
    """Every generated part by name."""
    return {
        "limits": limits(),
        "kinds": kinds(),
        "session": session(),
        "one-way": one_way(),
        "lease": lease(),
        "submit": layout(schema.session.Submit.schema),
        "release": layout(schema.session.Release.schema),
        "result": layout(schema.result.Result.schema),
        "tap-frame": layout(schema.session.TapFrame.schema),
        "tap-end": layout(schema.session.TapEnd.schema),
        "example": example(),
        "refusals": refusals(),
        "formats": formats(),
    }


def table(*rows: tuple[object, ...]) -> str:
    """A Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def limits() -> str:
    return table(
        ("what", "limit"),
        ("bytes of a packet", MAX_PACKET_BYTES),
        ("descriptors of a packet", MAX_DESCRIPTORS),
        ("buffers of a stream", MAX_SLOTS),
        ("streams of a session", MAX_STREAMS),
        ("subscriptions of a session", MAX_SUBSCRIPTIONS),
        ("results that wait under `every`", MAX_QUEUE),
        ("pixels of a row, and rows", MAX_DIMENSION),
        ("bytes of a buffer", MAX_BUFFER_BYTES),
        ("depth of pointers", MAX_DEPTH),
    )


def struct_name(kind: Kind) -> str:
    """`OPEN_STREAM` is followed by `OpenStream`."""
    return "".join(part.capitalize() for part in kind.name.split("_"))


def kinds() -> str:
    descriptors = {Kind.REGISTER_BUFFERS: "slots + 1", Kind.SUBSCRIBED: "1: the ring", Kind.SUBMIT: "0, or 1: in-fence",
                   Kind.TAP_STREAM: "0, or slots + 1, read-only",
                   Kind.COMMAND: "0; 1: the snapshot of `restoreState`",
                   Kind.REPLY: "0; 1: the snapshot of `snapshotState`"}  # fmt: skip
    rows: list[tuple[object, ...]] = [("kind", "struct", "sent by", "in sessions of", "descriptors")]
    for kind in Kind:
        found = [row for row in TRANSITIONS if row.kind is kind]
        if found:
            senders = " and ".join(party.value for party in Party if any(row.sender is party for row in found))
            every = frozenset[Role]().union(*(row.roles for row in found))
            roles = ", ".join(role.name.lower() for role in Role if role in every)
            rows.append((int(kind), f"`{struct_name(kind)}`", senders, roles, descriptors.get(kind, "0")))
    return table(*rows)


def label(row: Transition) -> str:
    answers = f" of {struct_name(row.answers)}" if row.answers is not None else ""
    return f"{row.sender.value}: {struct_name(row.kind)}{answers}"


def session() -> str:
    arrows: dict[tuple[State, State], list[str]] = {}
    for row in TRANSITIONS:
        if row.state is not row.after and row.after is not State.CLOSED:
            arrows.setdefault((row.state, row.after), []).append(label(row))
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> START"]
    for (before, after), labels in arrows.items():
        lines += [f"    {before.name} --> {after.name} : {text}" for text in labels]
    ends = sorted({label(row) for row in TRANSITIONS if row.after is State.CLOSED})
    lines += [
        '    state "any state" as ANY',
        *(f"    ANY --> CLOSED : {text}" for text in ends),
        "    CLOSED --> [*]",
        "```",
    ]
    return "\n".join(lines).replace("daemon: Refusal\n", "daemon: Refusal with a code that closes\n")


def one_way() -> str:
    rows: list[tuple[object, ...]] = [("packet", "in sessions of", "in states")]
    seen: dict[tuple[str, str], list[str]] = {}
    for row in TRANSITIONS:
        if row.state is row.after:
            for role in sorted(row.roles):
                seen.setdefault((label(row), role.name.lower()), []).append(row.state.name)
    rows += [(text, role, ", ".join(states)) for (text, role), states in seen.items()]
    return table(*rows)


def lease() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> FREE"]
    lines += [
        f"    {before.name} --> {after.name} : {event.name.lower()}: {event.value}"
        for (before, event), after in LEASE.items()
    ]
    return "\n".join([*lines, "```"])


def slots(struct: Any, path: str = "") -> Iterator[tuple[int, int, str, str]]:
    for field in struct.fields_list:
        if str(field.proto.which()) == "group":
            yield from slots(field.schema, f"{path}{field.proto.name}.")
        else:
            kind = str(field.proto.slot.type.which())
            name, size = SLOT_TYPES[kind]
            yield field.proto.slot.offset * size, size, name, f"{path}{field.proto.name}"


def layout(struct: Any) -> str:
    words = int(struct.node.struct.dataWordCount)
    rows: list[tuple[object, ...]] = [
        ("offset", "bytes", "type", "field"),
        (0, 8, "", "packet header"),
        (8, 8, "", f"segment table: 0 (u32), {words + 1} words (u32)"),
        (16, 8, "", f"root pointer: 0 (u32), {words} data words (u16), 0 pointers (u16)"),
    ]
    end = 24
    for offset, size, kind, path in sorted(slots(struct)):
        at = 24 + offset
        if at > end:
            rows.append((end, at - end, "", "zero"))
        if not re.search(r"frame[1-7]\.", path):
            rows.append(
                (at, size, {"enum": "u16 enum"}.get(kind, kind.replace("uint", "u").replace("int", "i")), f"`{path}`")
            )
        elif re.search(r"frame[1-7]\.stream", path):
            rows.append((at, 40, "", f"`{path.rsplit('.', 1)[0]}`, as `receipt.frame0`"))
        end = at + size
    if 24 + words * 8 > end:
        rows.append((end, 24 + words * 8 - end, "", "zero"))
    return table(*rows)


def example() -> str:
    packet = encode_header(Kind.SUBMIT) + flat.SUBMIT.pack(EXAMPLE)
    notes = [
        "header: kind 9 (submit), abiVersion 1, 0 descriptors, flags 0, reserved 0",
        "segment table: one segment (count - 1 = 0) of 9 words",
        "root pointer: a struct at offset 0 with 8 data words and 0 pointers",
        f"streamId {EXAMPLE.stream_id}, slot {EXAMPLE.slot}",
        f"generation {EXAMPLE.generation}",
        f"sequence {EXAMPLE.sequence}",
        f"sofNs {EXAMPLE.sof_ns}",
        f"eofNs {EXAMPLE.eof_ns}",
        f"controlWord {EXAMPLE.control_word}",
        f"exposureNs {EXAMPLE.exposure_ns}",
        f"flags {EXAMPLE.flags}, and 4 bytes that no field holds",
    ]
    lines = [f"{at:3}  {packet[at : at + 8].hex(' ')}  {note}" for at, note in zip(range(0, 88, 8), notes, strict=True)]
    return "\n".join(["```", *lines, "```"])


def refusals() -> str:
    """Codes with the comments that stand behind them in the schema."""
    text = SCHEMA.read_text().partition("enum RefusalCode {")[2].partition("\n}")[0]
    said = {int(number): words for number, words in re.findall(r"@(\d+);\s*# (?:\(closes\) )?(.+)", text)}
    rows = [(int(code), f"`{code.name}`", said[code], "yes" if code.closes else "") for code in RefusalCode if code]
    return table(("code", "name", "meaning", "ends the session"), *rows)


def formats() -> str:
    rows: list[tuple[object, ...]] = [("name", "fourcc", "bits", "planes: bytes of a block of pixels, subsampling")]
    for pixel in PIXEL_FORMATS.values():
        shapes = [
            f"{shape.block_bytes}/{shape.block_pixels}"
            + (f" at 1/{shape.step_x}x1/{shape.step_y}" if shape.step_x > 1 else "")
            for shape in pixel.planes
        ]
        rows.append((pixel.name, f"`{fourcc_text(pixel.fourcc)}`", pixel.bits, "; ".join(shapes)))
    return table(*rows)


def refreshed(page: str) -> str:
    """The page with its generated parts made anew. Raises KeyError for a part that does not exist."""
    made = blocks()

    def part(found: re.Match[str]) -> str:
        return f"<!-- {found[1]}: generated -->\n{made[found[1]]}\n<!-- end -->"

    return re.sub(r"<!-- ([a-z-]+): generated -->\n.*?<!-- end -->", part, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text()))

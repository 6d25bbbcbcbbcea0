"""The strict look at a message's structure: nothing hidden, nothing twice, nothing far away."""

from __future__ import annotations

import struct

import capnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi import canonical, schema
from abi.canonical import CanonicalError
from abi.format import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer, make_format


def message(*words: int) -> bytes:
    return struct.pack(f"<II{len(words)}Q", 0, len(words), *words)


def struct_pointer(offset: int, data: int, pointers: int) -> int:
    return (offset & 0x3FFFFFFF) << 2 | data << 32 | pointers << 48


def list_pointer(offset: int, code: int, count: int) -> int:
    return 1 | (offset & 0x3FFFFFFF) << 2 | code << 32 | count << 35


def refused(data: bytes) -> str:
    with pytest.raises(CanonicalError) as caught:
        canonical.check(data)
    return str(caught.value)


def examples() -> list[bytes]:
    """Messages as pycapnp builds them: text, data, lists of structs, nested structs."""
    format = make_format(
        "YU12", 65, 3, range=Range.FULL, matrix=Matrix.BT601, primaries=Primaries.BT709, transfer=Transfer.SRGB,
        chroma_site=ChromaSite.CENTER, clock=ClockId.TAI, mark=TimeMark.EXPOSURE_END, period_ns=1, camera_name="side",
    )  # fmt: skip
    opened = schema.session.OpenStream.new_message(stream="road")
    format.to_message(opened.init("format"))
    subscribed = schema.session.Subscribed.new_message(slots=2, modelDigest=bytes(range(32)))
    for index, output in enumerate(subscribed.init("outputs", 3)):
        output.name, output.unit, output.shape, output.offset = f"o{index}", "m", [1, 2, index], 64
    hello = schema.session.Hello.new_message(role="camera", name="x")
    empty = schema.session.Command.new_message()
    aux = schema.session.SetAux.new_message(name="a", value=b"\xff" * 9)
    return [bytes(m.to_bytes()) for m in (opened, subscribed, hello, empty, aux)]


@pytest.mark.parametrize("data", examples())
def test_what_builders_make_is_accepted(data: bytes) -> None:
    for view in (data, bytearray(data), memoryview(data)):
        canonical.check(view)


@pytest.mark.parametrize("data", examples())
def test_one_byte_more_or_less_is_refused(data: bytes) -> None:
    assert "found" in refused(data[:-1])
    assert "whole words" in refused(data + b"\0")
    assert "one segment" in refused(data + bytes(8))
    assert "one segment" in refused(data[:-8])


@pytest.mark.parametrize("size", range(16))
def test_a_message_has_a_root_pointer(size: int) -> None:
    assert refused(bytes(size)) == f"a message is whole words and has a root pointer; found {size} bytes"


def test_a_second_segment_is_refused() -> None:
    two = struct.pack("<IIIIQQ", 1, 1, 1, 0, 0, 0)
    assert refused(two) == "expected one segment of 3 words, found 2 segments of which the first has 1 words"
    assert "found 4294967296 segments" in refused(struct.pack("<IIQ", 0xFFFFFFFF, 1, 0))


@pytest.mark.parametrize("kind", [2, 3])
def test_far_pointers_and_capabilities_are_refused(kind: int) -> None:
    assert refused(message(kind)) == "the pointer at word 0 is a far pointer or a capability"
    assert (
        refused(message(struct_pointer(0, 0, 2), 0, kind)) == "the pointer at word 2 is a far pointer or a capability"
    )


@pytest.mark.parametrize(
    "pointer",
    [struct_pointer(0, 2, 0), struct_pointer(1, 1, 0), struct_pointer(-2, 1, 0), list_pointer(0, 2, 9)],
)
def test_objects_lie_inside_the_segment(pointer: int) -> None:
    assert refused(message(pointer, 0)) == "the pointer at word 0 leaves the segment"


def test_an_object_ends_where_the_segment_ends() -> None:
    canonical.check(message(struct_pointer(0, 1, 0), 7))
    canonical.check(message(list_pointer(0, 2, 8), 0x0102030405060708))
    canonical.check(message(struct_pointer(-1, 0, 0)))


def test_no_word_belongs_to_two_objects() -> None:
    assert refused(message(struct_pointer(-1, 1, 0))) == "the object at word 0 overlaps another"
    shared = message(struct_pointer(0, 0, 2), list_pointer(1, 2, 8), list_pointer(0, 2, 8), 5)
    assert refused(shared) == "the object at word 3 overlaps another"


def test_bits_that_no_object_holds_are_zero() -> None:
    canonical.check(message(struct_pointer(1, 1, 0), 0, 7))
    assert refused(message(struct_pointer(1, 1, 0), 1, 7)) == "word 1 belongs to no object and is not zero"


@pytest.mark.parametrize(
    ("code", "count", "good", "bad"),
    [(1, 3, 0b111, 0b1000), (2, 3, 0xFFFFFF, 1 << 24), (3, 1, 0xFFFF, 1 << 16), (4, 1, 0xFFFFFFFF, 1 << 32)],
)
def test_the_padding_of_a_list_is_zero(code: int, count: int, good: int, bad: int) -> None:
    canonical.check(message(list_pointer(0, code, count), good))
    assert refused(message(list_pointer(0, code, count), bad)) == "the padding after the list at word 1 is not zero"


def test_a_list_without_size_cannot_claim_elements() -> None:
    canonical.check(message(list_pointer(0, 0, 0)))
    assert refused(message(list_pointer(0, 0, 1))) == "the list at word 1 has 1 elements but takes no space"
    tag = struct_pointer(5, 0, 0)
    assert refused(message(list_pointer(0, 7, 0), tag)).startswith("the tag of the struct list at word 1")
    canonical.check(message(list_pointer(0, 7, 0), struct_pointer(0, 0, 0)))
    canonical.check(message(list_pointer(0, 7, 0), struct_pointer(0, 1, 1)))


@pytest.mark.parametrize("tag", [struct_pointer(1, 1, 0), struct_pointer(3, 1, 0), 1 | struct_pointer(2, 1, 0)])
def test_the_tag_of_a_struct_list_fits_its_words(tag: int) -> None:
    canonical.check(message(list_pointer(0, 7, 2), struct_pointer(2, 1, 0), 5, 6))
    expected = "the tag of the struct list at word 1 does not fit its 2 words"
    assert refused(message(list_pointer(0, 7, 2), tag, 5, 6)) == expected


def test_the_pointers_of_lists_are_followed() -> None:
    far = 2
    assert "word 2 is a far" in refused(message(list_pointer(0, 6, 2), 0, far))
    elements = message(list_pointer(0, 7, 4), struct_pointer(2, 1, 1), 9, 0, 9, far)
    assert "word 5 is a far" in refused(elements)
    canonical.check(message(list_pointer(0, 7, 4), struct_pointer(2, 1, 1), far, 0, far, 0))  # data, not pointers


def test_the_data_of_a_struct_is_not_taken_for_pointers() -> None:
    canonical.check(message(struct_pointer(0, 2, 1), 2, 3, 0))


def test_depth_is_bounded() -> None:
    def chain(pointers: int) -> bytes:
        return message(*[struct_pointer(0, 0, 1)] * pointers, 0)

    canonical.check(chain(17))
    assert refused(chain(18)) == "pointers nest deeper than 16"


@given(st.sampled_from(examples()), st.data())
def test_a_changed_message_is_refused_or_reads_within_its_own_size(data: bytes, draw: st.DataObject) -> None:
    """After the check pycapnp needs no more than the message's own words of traversal."""
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        changed[draw.draw(st.integers(0, len(changed) - 1))] = draw.draw(st.integers(0, 255))
    try:
        canonical.check(changed)
    except CanonicalError:
        return
    struct_of = draw.draw(st.sampled_from([schema.session.OpenStream, schema.session.Subscribed]))
    problem = ""
    try:
        with struct_of.from_bytes(bytes(changed), traversal_limit_in_words=len(changed) // 8 + 64) as reader:
            reader.to_dict()
    except (capnp.KjException, UnicodeDecodeError, RuntimeError) as error:
        problem = str(error)
    assert "amplification" not in problem
    assert "traversal limit" not in problem

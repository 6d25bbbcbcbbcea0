"""What may be bound to a run: size, access, alignment, and no memory twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hal.accelerator import DeviceBuffer
from hal.bindings import Bindings, bound_buffers
from hal.error import HalCode, HalError
from hal.memory import PAGE_BYTES, Mapping
from tests.support.graphs import AUX, FRAME, OUT, edit, valid_graph


def buffer(size: int = PAGE_BYTES, *, writable: bool = True) -> DeviceBuffer:
    mapping = Mapping.anonymous(size)
    return DeviceBuffer(mapping.address, size, mapping, 0, writable, zero_copy=True)


def refusal(act: Callable[[], object]) -> HalError:
    with pytest.raises(HalError) as caught:
        act()
    return caught.value


def test_each_buffer_of_an_entrypoint_is_bound_once_in_order() -> None:
    graph = valid_graph()
    assert bound_buffers(graph, graph.entrypoints[0]) == (FRAME, AUX, OUT)
    bindings = Bindings(graph, 0)
    assert bindings.buffers == (FRAME, AUX, OUT)
    assert bindings.output_buffers == (OUT,)
    assert bindings.output_bytes() == (64,)
    assert bindings.budget_ns == 1000


def test_addresses_stand_in_the_drivers_table() -> None:
    bindings = Bindings(valid_graph(), 0)
    frame, aux, output = buffer(writable=False), buffer(), buffer()
    assert bindings.missing == 3
    bindings.bind_frame(0, frame)
    bindings.bind_aux(0, aux)
    bindings.bind_output(0, output)
    assert bindings.missing == 0
    assert list(bindings.addresses) == [frame.address, aux.address, output.address]
    other = buffer()
    bindings.bind_output(0, other)
    assert (bindings.missing, bindings.addresses[2], bindings.bound[2]) == (0, other.address, other)
    bindings.clear()
    assert bindings.missing == 3
    assert list(bindings.addresses) == [0, 0, 0]
    assert bindings.bound == [None, None, None]


def test_an_unknown_entrypoint_is_refused() -> None:
    for index in (-1, 2):
        assert refusal(lambda i=index: Bindings(valid_graph(), i)).code is HalCode.UNKNOWN_ENTRYPOINT  # type: ignore[misc]


def test_too_little_read_only_and_unaligned_memory_is_refused() -> None:
    bindings = Bindings(valid_graph(), 0)
    error = refusal(lambda: bindings.bind_frame(0, buffer(63)))
    assert str(error) == "binding-refused: buffer 0 is bound to too little memory; expected 64 bytes; found 63"
    bindings.bind_frame(0, buffer(64))
    error = refusal(lambda: bindings.bind_output(0, buffer(writable=False)))
    assert str(error) == "binding-refused: output buffer 3 is bound to read-only memory"
    error = refusal(lambda: bindings.bind_output(0, buffer().part(32, 64)))
    assert error.what == "buffer 3 is bound to unaligned memory"
    assert error.expected == "a multiple of 64"
    bindings.bind_output(0, buffer().part(64, 64))


def test_a_contract_may_ask_for_more_alignment() -> None:
    bindings = Bindings(edit(valid_graph(), "buffers.3.align_bytes", 256), 0)
    assert refusal(lambda: bindings.bind_output(0, buffer().part(64, 64))).expected == "a multiple of 256"


def test_two_bindings_never_share_a_byte() -> None:
    bindings = Bindings(valid_graph(), 0)
    whole = buffer()
    bindings.bind_frame(0, whole.part(64, 64))
    for start in (64, 0, 128):
        part = DeviceBuffer(whole.address + start, 128, whole.mapping, start, True, True)
        overlaps = start == 64
        if overlaps:
            assert refusal(lambda p=part: bindings.bind_output(0, p)).code is HalCode.BINDING_ALIAS  # type: ignore[misc]
        else:
            bindings.bind_output(0, part)
    bindings.bind_frame(0, whole.part(64, 64))  # the same binding again is no overlap with itself


def test_a_refused_binding_changes_nothing() -> None:
    bindings = Bindings(valid_graph(), 0)
    first = buffer()
    bindings.bind_frame(0, first)
    refusal(lambda: bindings.bind_frame(0, buffer(1)))
    assert bindings.bound[0] is first
    assert bindings.addresses[0] == first.address


def test_a_part_stays_inside_its_buffer() -> None:
    whole = buffer()
    part = whole.part(64, 128)
    part.view[0] = 9
    assert whole.view[64] == 9
    assert (part.address, part.size_bytes, part.offset) == (whole.address + 64, 128, 64)
    for offset, size in ((-1, 1), (0, 0), (0, PAGE_BYTES + 1), (PAGE_BYTES, 1)):
        assert refusal(lambda o=offset, s=size: whole.part(o, s)).code is HalCode.SIZE  # type: ignore[misc]
    assert whole.part(PAGE_BYTES - 1, 1).size_bytes == 1
    assert not replace(whole, writable=False).part(0, 1).writable

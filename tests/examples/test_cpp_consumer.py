"""The C++ consumer against a scripted peer: named outputs of every dtype, the receipt, and results that must not be
believed. Built with sanitizers, like `test_cpp.py`.
"""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from abi import messages as m
from abi import schema
from abi.flat import RESULT, Result
from abi.graph_values import DType, NanPolicy, OutputView
from abi.packet import HEADER_BYTES, Kind, RefusalCode, encode_header
from abi.schema import snake_case
from hal.memory import Mapping, create_ring
from tests.examples.cpp_programs import Outcome, Peer, Program

SUBSCRIPTION_ID = 9
DIGEST = bytes(range(32))
SLOTS, SLOT_BYTES = 4, 4096


def consumer(sanitized: Path, peer: Peer, *options: str) -> Program:
    return Program([str(sanitized / "consumer"), "--socket", str(peer.path), "--model", "lane", *options])


def view(name: str, dtype: DType, shape: tuple[int, ...], unit: str, *, at: int, size: int) -> OutputView:
    return OutputView(name, dtype, shape, unit, at, size, NanPolicy.REFUSE)


def scalar(dtype: DType, *, at: int) -> OutputView:
    return view("x", dtype, (1,), "m", at=at, size=4)


LANE = (
    view("lane_offset_m", DType.FLOAT32, (1, 1), "m", at=64, size=4),
    view("heading_rad", DType.FLOAT32, (1,), "rad", at=68, size=4),
)


class Ring:
    """A result ring as the daemon makes it, and the peer's end of a subscription to it."""

    def __init__(self, peer: Peer, outputs: tuple[OutputView, ...] = LANE) -> None:
        self.peer = peer
        self.mapping: Mapping
        self.mapping, descriptor = create_ring("test-ring", SLOTS * SLOT_BYTES)
        peer.descriptors.append(descriptor)
        peer.greet()
        self.request = peer.expect(Kind.SUBSCRIBE)
        peer.answer(m.Subscribed(SUBSCRIPTION_ID, SLOTS, SLOT_BYTES, DIGEST, outputs), descriptor)

    def write(self, slot: int, word: int, offset: int, data: bytes) -> None:
        at = slot * SLOT_BYTES
        self.mapping.view[at + offset : at + offset + len(data)] = data
        self.mapping.view[at : at + 8] = struct.pack("<Q", word)

    def publish(self, slot: int = 1, word: int = 10, **fields: int) -> None:
        """Sends a Result for this slot, as both the flat codec and pycapnp write it."""
        result = make_result(slot, word, **fields)
        message = schema.result.Result.new_message()
        fill(message, "", result)
        packet = encode_header(Kind.RESULT) + RESULT.pack(result)
        assert packet == encode_header(Kind.RESULT) + message.to_bytes()
        self.peer.send(packet)


def fill(message: Any, prefix: str, result: Result) -> None:
    """Sets every field of a pycapnp struct, its groups included, from the flat record."""
    for field in message.schema.fields_list:
        name = field.proto.name
        path = prefix + snake_case(name)
        if field.proto.which() == "group":
            fill(getattr(message, name), path + "_", result)
        else:
            setattr(message, name, getattr(result, path))


def make_result(slot: int, word: int, **fields: int) -> Result:
    digest = struct.unpack("<4Q", DIGEST)
    values = dict.fromkeys(Result._fields, 0) | {
        "subscription_id": SUBSCRIPTION_ID, "slot": slot, "slot_sequence": word, "missed": 2,
        "receipt_fence_value": 41, "receipt_fence_status": 1, "receipt_timeline": 2**64 - 1, "receipt_flags": 1,
        "receipt_frame_count": 1, "receipt_started_ns": 1_000, "receipt_completed_ns": 4_500,
        "receipt_published_ns": 9_000, "receipt_frame0_sequence": 17, "receipt_frame0_generation": 5,
        "receipt_frame0_sof_monotonic_ns": -1_000,
    }  # fmt: skip
    values |= {f"receipt_model_digest{index}": word for index, word in enumerate(digest)}
    return Result(**(values | fields))


def test_named_outputs_units_and_fence_are_shown(sanitized: Path, peer: Peer) -> None:
    with consumer(sanitized, peer, "--count", "1", "--policy", "every", "--queue", "5", "--name", "panel") as program:
        ring = Ring(peer)
        assert ring.request == m.Subscribe("lane", m.DeliveryPolicy.EVERY, 5)
        ring.write(1, 10, 64, struct.pack("<ff", -0.125, 0.5))
        ring.publish()
        assert peer.expect(Kind.BYE) == m.Bye("done")
        outcome = program.outcome()
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines()[0] == (
        f"subscribed model_digest={DIGEST.hex()} slots=4 slot_bytes=4096"
        " lane_offset_m:float32[1,1] heading_rad:float32[1]"
    )
    assert outcome.lines("result") == [
        {
            "sequence": "17", "generation": "5", "frames": "1", "lane_offset_m": "-0.125 m", "heading_rad": "0.5 rad",
            "fence": "41", "timeline": "18446744073709551615", "status": "signaled", "flags": "1", "run_ns": "3500",
            "sof_to_published_ns": "10000", "missed": "2", "model": DIGEST.hex(),
        }
    ]  # fmt: skip


BFLOAT16 = np.array([0x3FC0, 0xC000, 0x7F80, 0x0001], np.uint16)  # 1.5, -2, inf, the smallest subnormal
VALUES: dict[DType, tuple[NDArray[Any], str]] = {
    DType.FLOAT32: (np.array([1.5, -2.25, np.inf], np.float32), "[1.5,-2.25,inf]"),
    DType.FLOAT16: (np.array([1.5, -65504, 5.9604645e-08], np.float16), "[1.5,-65504,5.96046448e-08]"),
    DType.BFLOAT16: (BFLOAT16, "[1.5,-2,inf,9.18354962e-41]"),
    DType.INT8: (np.array([-128, 127], np.int8), "[-128,127]"),
    DType.UINT8: (np.array([0, 255], np.uint8), "[0,255]"),
    DType.INT16: (np.array([-32768, 32767], np.int16), "[-32768,32767]"),
    DType.UINT16: (np.array([0, 65535], np.uint16), "[0,65535]"),
    DType.INT32: (np.array([-(2**31), 2**31 - 1], np.int32), "[-2147483648,2147483647]"),
    DType.UINT32: (np.array([0, 2**32 - 1], np.uint32), "[0,4294967295]"),
    DType.INT64: (np.array([-(2**63), 2**63 - 1], np.int64), f"[{-(2**63)},{2**63 - 1}]"),
    DType.UINT64: (np.array([0, 2**64 - 1], np.uint64), f"[0,{2**64 - 1}]"),
    DType.BOOL8: (np.array([0, 1], np.uint8), "[false,true]"),
}


def test_values_of_every_dtype_are_read(sanitized: Path, peer: Peer) -> None:
    assert set(VALUES) == set(DType) - {DType.UNSPECIFIED}
    views, offset = [], 72
    for dtype, (array, _) in VALUES.items():
        views.append(view(dtype.name.lower(), dtype, array.shape, "1", at=offset, size=array.nbytes))
        offset += array.nbytes
    with consumer(sanitized, peer, "--count", "1") as program:
        ring = Ring(peer, tuple(views))
        for output, (array, _) in zip(views, VALUES.values(), strict=True):
            ring.write(0, 6, output.offset, array.tobytes())
        ring.publish(0, 6)
        (shown,) = program.outcome().lines("result")
    assert {name: shown[name] for name in (v.name for v in views)} == {
        dtype.name.lower(): f"{text} 1" for dtype, (_, text) in VALUES.items()
    }


def test_long_outputs_are_cut_short(sanitized: Path, peer: Peer) -> None:
    with consumer(sanitized, peer, "--count", "1") as program:
        ring = Ring(peer, (view("path", DType.UINT8, (2, 100), "m", at=64, size=200),))
        ring.write(0, 2, 64, bytes(range(200)))
        ring.publish(0, 2)
        (shown,) = program.outcome().lines("result")
    assert shown["path"] == f"[{','.join(map(str, range(16)))},... 200 values] m"


@pytest.mark.parametrize("word", [8, 11, 12])
def test_slot_that_the_ring_has_moved_past_is_torn_and_not_shown(sanitized: Path, peer: Peer, word: int) -> None:
    with consumer(sanitized, peer, "--count", "2") as program:
        ring = Ring(peer)
        ring.write(1, word, 64, bytes(8))
        ring.publish(1, 10)
        assert program.line("torn") == {"slot": "1", "fence": "41"}
        ring.write(1, 14, 64, struct.pack("<ff", 0.25, 0))
        ring.publish(1, 14)
        (shown,) = program.outcome().lines("result")
    assert shown["lane_offset_m"] == "0.25 m"


def test_slot_that_is_overwritten_during_the_copy_is_torn(sanitized: Path, peer: Peer) -> None:
    slots, slot_bytes = 16, 16 << 20
    mapping, descriptor = create_ring("big-ring", slots * slot_bytes)
    peer.descriptors.append(descriptor)
    with consumer(sanitized, peer) as program:
        peer.greet()
        peer.expect(Kind.SUBSCRIBE)
        peer.answer(m.Subscribed(SUBSCRIPTION_ID, slots, slot_bytes, DIGEST, LANE), descriptor)
        words = mapping.view.cast("Q")
        for slot in range(slots):  # once suffices, unless the machine runs the whole copy before this process
            before = resident_ring_bytes(program)
            words[slot * slot_bytes // 8] = 10
            peer.send(encode_header(Kind.RESULT) + RESULT.pack(make_result(slot, 10)))
            while resident_ring_bytes(program) < before + (1 << 20):
                assert program.process.poll() is None
            program.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, program.process.pid, os.WSTOPPED)
            is_copying = resident_ring_bytes(program) < before + slot_bytes
            if is_copying:
                words[slot * slot_bytes // 8] = 12
            program.process.send_signal(signal.SIGCONT)
            if is_copying:
                break
        else:
            pytest.skip("never caught inside a copy: the machine is too busy")
        program.process.send_signal(signal.SIGINT)  # taken when the copy is done
        assert program.outcome().lines("torn") == [{"slot": str(slot), "fence": "41"}]


def resident_ring_bytes(program: Program) -> int:
    """How much of the ring the program has touched so far (proc_pid_smaps(5), Rss)."""
    at_ring = False
    for line in Path(f"/proc/{program.process.pid}/smaps").read_text("utf-8").splitlines():
        if "-" in line.split(" ", 1)[0]:
            at_ring = "memfd:big-ring" in line
        elif at_ring and line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    return 0


UNBELIEVABLE = {
    "fence not signalled": ({"receipt_fence_status": 0}, "its fence is active, not signaled"),
    "fence in error": ({"receipt_fence_status": 2}, "its fence is error, not signaled"),
    "another subscription": ({"subscription_id": 8}, "of another subscription"),
    "slot beyond the ring": ({"slot": 4}, "of a slot that the ring does not have"),
    "odd sequence word": ({"slot_sequence": 11}, "result from the daemon"),
}


@pytest.mark.parametrize("case", UNBELIEVABLE)
def test_result_that_must_not_be_believed_is_a_fault(sanitized: Path, peer: Peer, case: str) -> None:
    fields, reason = UNBELIEVABLE[case]
    with consumer(sanitized, peer) as program:
        ring = Ring(peer)
        ring.write(1, 10, 64, bytes(8))
        ring.publish(**fields)
        outcome = program.outcome()
    assert outcome.code == 1
    assert reason in outcome.stderr
    assert outcome.lines("result") == []


BAD_RINGS = {
    "output beyond its slot": (SLOTS, SLOT_BYTES, (scalar(DType.FLOAT32, at=4093),), "beyond its ring"),
    "output far beyond": (SLOTS, SLOT_BYTES, (scalar(DType.FLOAT32, at=2**64 - 4),), "beyond its ring"),
    "shape and bytes differ": (SLOTS, SLOT_BYTES, (view("x", DType.FLOAT32, (2,), "m", at=64, size=4),), "do not fill"),
    "shape wraps": (SLOTS, SLOT_BYTES, (view("x", DType.INT64, (2**31, 2**31), "m", at=64, size=0),), "do not fill"),
    "no dtype": (SLOTS, SLOT_BYTES, (scalar(DType.UNSPECIFIED, at=64),), "unknown dtype unspecified"),
    "memory shorter than the ring": (SLOTS + 1, SLOT_BYTES, LANE, "expected at least 20480 bytes, found 16384"),
    "no slots": (0, SLOT_BYTES, LANE, "0 slots"),
    "slots of odd length": (SLOTS, 4095, LANE, "slots of 4095 bytes"),
    "size wraps": (2**31, 2**62, LANE, "result ring"),
}


@pytest.mark.parametrize("case", BAD_RINGS)
def test_ring_that_does_not_hold_what_it_says_is_a_fault(sanitized: Path, peer: Peer, case: str) -> None:
    slots, slot_bytes, outputs, reason = BAD_RINGS[case]
    _, descriptor = create_ring("test-ring", SLOTS * SLOT_BYTES)
    peer.descriptors.append(descriptor)
    with consumer(sanitized, peer) as program:
        peer.greet()
        peer.expect(Kind.SUBSCRIBE)
        peer.answer(m.Subscribed(SUBSCRIPTION_ID, slots, slot_bytes, DIGEST, outputs), descriptor)
        outcome = program.outcome()
    assert outcome.code == 1
    assert reason in outcome.stderr


def test_ring_that_can_shrink_is_a_fault(sanitized: Path, peer: Peer) -> None:
    descriptor = os.memfd_create("test-ring", os.MFD_ALLOW_SEALING)
    peer.descriptors.append(descriptor)
    os.ftruncate(descriptor, SLOTS * SLOT_BYTES)
    with consumer(sanitized, peer) as program:
        peer.greet()
        peer.expect(Kind.SUBSCRIBE)
        peer.answer(m.Subscribed(SUBSCRIPTION_ID, SLOTS, SLOT_BYTES, DIGEST, LANE), descriptor)
        outcome = program.outcome()
    assert outcome.code == 1
    assert "not sealed against shrinking" in outcome.stderr


def test_refused_subscription_exits_3(sanitized: Path, peer: Peer) -> None:
    with consumer(sanitized, peer) as program:
        peer.greet()
        peer.expect(Kind.SUBSCRIBE)
        peer.answer(m.Refusal(RefusalCode.NOT_READY, Kind.SUBSCRIBE, "model", "a loaded model", "lane", "wait for it"))
        outcome = program.outcome()
    text = "consumer: the daemon refused subscribe: notReady\n  what:     model\n  expected: a loaded model\n"
    assert outcome == Outcome(3, "", text + "  found:    lane\n  action:   wait for it\n")


def test_a_signal_ends_the_subscription(sanitized: Path, peer: Peer) -> None:
    with consumer(sanitized, peer) as program:
        Ring(peer)
        program.line("subscribed")
        program.process.send_signal(signal.SIGINT)
        assert peer.expect(Kind.BYE) == m.Bye("done")
        assert peer.ended()
        assert program.outcome().code == 0


def test_release_is_not_for_a_consumer(sanitized: Path, peer: Peer) -> None:
    with consumer(sanitized, peer) as program:
        ring = Ring(peer)
        result = RESULT.pack(make_result(1, 10))
        assert len(result) % HEADER_BYTES == 0
        ring.peer.send(encode_header(Kind.RELEASE) + result)
        outcome = program.outcome()
    assert outcome.code == 1
    assert "expected result with 0 descriptors, found release with 0" in outcome.stderr

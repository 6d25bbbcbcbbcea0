"""The receipt of a result as a value: which frames, which model and which fence stand behind the outputs.

`Result` is the flat packet; a Receipt is its `receipt` group read into names, with only the frames and ages that are
used. Units and clocks of each field stand in `result.capnp`. The daemon makes one Receipt a run and a Result for
each subscription from it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from abi.flat import RESULT_FLAGS, Result, ResultFlag

__all__ = ["MAX_AUX_AGES", "MAX_FRAMES", "FrameReceipt", "Receipt"]

MAX_FRAMES: Final = 8
MAX_AUX_AGES: Final = 4
NO_AUX: Final = -1  # the age of an aux input that the contract does not have
_DEADLINE_MET: Final = int(ResultFlag.DEADLINE_MET)
_DIGEST = struct.Struct("<4Q")
_FIRST = Result._fields.index("receipt_model_digest0")
_ENTRYPOINT = Result._fields.index("receipt_entrypoint")
_FLAG_BITS = Result._fields.index("receipt_flags")
_EPOCH = Result._fields.index("receipt_state_epoch")
_AGES = Result._fields.index("receipt_aux_age0_ns")
_FRAMES = Result._fields.index("receipt_frame0_stream")


class FrameReceipt(NamedTuple):
    """One input frame: index of its stream in the contract, slot, sequence, generation, SOF in two clocks, and the
    stream's frames that never ran and that never came, in total.
    """

    stream: int
    slot: int
    sequence: int
    generation: int
    sof_ns: int
    sof_monotonic_ns: int
    not_run: int
    camera_dropped: int


_FRAME_WIDTH: Final = len(FrameReceipt._fields)
_NO_FRAMES: Final = (0,) * (_FRAME_WIDTH * MAX_FRAMES)


class Receipt(NamedTuple):
    """What stands behind a result. `model_digest`: the SHA-256 of the signed statement, 32 bytes."""

    model_digest: bytes
    entrypoint: int
    device: int
    timeline: int
    fence_value: int
    fence_status: int
    flags: ResultFlag
    state_epoch: int
    deadline_ns: int
    submitted_ns: int
    started_ns: int
    completed_ns: int
    device_started_ns: int
    device_completed_ns: int
    published_ns: int
    clock_error_ns: int
    aux_ages_ns: tuple[int, ...]
    frames: tuple[FrameReceipt, ...]

    @property
    def deadline_met(self) -> bool:
        """Whether the outputs were published before `deadline_ns`."""
        return bool(int(self.flags) & _DEADLINE_MET)

    def to_result(self, subscription_id: int, slot: int, slot_sequence: int, missed: int) -> Result:
        """The packet's fields for one subscription. Raises ValueError for more frames or ages than a Result holds."""
        if len(self.frames) > MAX_FRAMES or len(self.aux_ages_ns) > MAX_AUX_AGES:
            found = f"{len(self.frames)} frames and {len(self.aux_ages_ns)} ages"
            raise ValueError(f"a receipt names at most {MAX_FRAMES} frames and {MAX_AUX_AGES} aux ages, not {found}")
        ages = self.aux_ages_ns + (NO_AUX,) * (MAX_AUX_AGES - len(self.aux_ages_ns))
        frames = [value for frame in self.frames for value in frame]
        return tuple.__new__(
            Result,
            (
                subscription_id, slot, slot_sequence, missed, *_DIGEST.unpack(self.model_digest),
                self.entrypoint, self.device, self.timeline, self.fence_value, self.fence_status, int(self.flags),
                len(self.frames), self.state_epoch, self.deadline_ns, self.submitted_ns, self.started_ns,
                self.completed_ns, self.device_started_ns, self.device_completed_ns, self.published_ns,
                self.clock_error_ns, *ages, *frames, *_NO_FRAMES[len(frames) :],
            ),
        )  # fmt: skip

    @classmethod
    def from_result(cls, result: Result) -> Receipt:
        """The receipt in a packet. Ages stop at the first aux input that the contract does not have."""
        ages = result[_AGES : _AGES + MAX_AUX_AGES]
        used = ages.index(NO_AUX) if NO_AUX in ages else MAX_AUX_AGES
        starts = range(_FRAMES, _FRAMES + _FRAME_WIDTH * result.receipt_frame_count, _FRAME_WIDTH)
        frames = tuple([tuple.__new__(FrameReceipt, result[at : at + _FRAME_WIDTH]) for at in starts])
        bits = result.receipt_flags
        flags = RESULT_FLAGS[bits] if bits < len(RESULT_FLAGS) else ResultFlag(bits)
        digest = _DIGEST.pack(*result[_FIRST:_ENTRYPOINT])
        to_status, to_clock_error = result[_ENTRYPOINT:_FLAG_BITS], result[_EPOCH:_AGES]
        return tuple.__new__(cls, (digest, *to_status, flags, *to_clock_error, ages[:used], frames))

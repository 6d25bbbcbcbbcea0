"""The receipt of a result as a value: which frames, which model and which fence stand behind the outputs.

`Result` is the flat packet; a Receipt is its `receipt` group read into names, with only the frames and ages that are
used. Units and clocks of each field stand in `result.capnp`. The daemon makes one Receipt a run and a Result for
each subscription from it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from abi.flat import Result, ResultFlag

__all__ = ["MAX_AUX_AGES", "MAX_FRAMES", "FrameReceipt", "Receipt"]

MAX_FRAMES: Final = 8
MAX_AUX_AGES: Final = 4
NO_AUX: Final = -1  # the age of an aux input that the contract does not have
_DIGEST = struct.Struct("<4Q")
_FIRST = Result._fields.index("receipt_model_digest0")
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


_UNUSED_FRAME = FrameReceipt(0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Receipt:
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
        return ResultFlag.DEADLINE_MET in self.flags

    def to_result(self, subscription_id: int, slot: int, slot_sequence: int, missed: int) -> Result:
        """The packet's fields for one subscription. Raises ValueError for more frames or ages than a Result holds."""
        if len(self.frames) > MAX_FRAMES or len(self.aux_ages_ns) > MAX_AUX_AGES:
            found = f"{len(self.frames)} frames and {len(self.aux_ages_ns)} ages"
            raise ValueError(f"a receipt names at most {MAX_FRAMES} frames and {MAX_AUX_AGES} aux ages, not {found}")
        ages = self.aux_ages_ns + (NO_AUX,) * (MAX_AUX_AGES - len(self.aux_ages_ns))
        frames = self.frames + (_UNUSED_FRAME,) * (MAX_FRAMES - len(self.frames))
        return Result._make(
            (
                subscription_id, slot, slot_sequence, missed, *_DIGEST.unpack(self.model_digest),
                self.entrypoint, self.device, self.timeline, self.fence_value, self.fence_status, int(self.flags),
                len(self.frames), self.state_epoch, self.deadline_ns, self.submitted_ns, self.started_ns,
                self.completed_ns, self.device_started_ns, self.device_completed_ns, self.published_ns,
                self.clock_error_ns, *ages, *(value for frame in frames for value in frame),
            )
        )  # fmt: skip

    @classmethod
    def from_result(cls, result: Result) -> Receipt:
        """The receipt in a packet. Ages stop at the first aux input that the contract does not have."""
        ages = result[_AGES : _AGES + MAX_AUX_AGES]
        used = ages.index(NO_AUX) if NO_AUX in ages else MAX_AUX_AGES
        width = len(FrameReceipt._fields)
        starts = range(_FRAMES, _FRAMES + width * result.receipt_frame_count, width)
        return cls(
            _DIGEST.pack(*result[_FIRST : _FIRST + 4]),
            result.receipt_entrypoint, result.receipt_device, result.receipt_timeline, result.receipt_fence_value,
            result.receipt_fence_status, ResultFlag(result.receipt_flags), result.receipt_state_epoch,
            result.receipt_deadline_ns, result.receipt_submitted_ns, result.receipt_started_ns,
            result.receipt_completed_ns, result.receipt_device_started_ns, result.receipt_device_completed_ns,
            result.receipt_published_ns, result.receipt_clock_error_ns, ages[:used],
            tuple(FrameReceipt._make(result[at : at + width]) for at in starts),
        )  # fmt: skip

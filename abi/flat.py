"""The hot packets as plain values: one NamedTuple a flat struct, and its codec.

Fields are those of the schema in snake_case, where their comments stand; all are ints, enums by ordinal.
`SUBMIT`, `RELEASE` and `RESULT` turn them into the packets' bodies and back without pycapnp (about 0.5 us).
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from abi import schema

__all__ = [
    "RELEASE", "RESULT", "RESULT_FLAGS", "SUBMIT", "Release", "ReleaseStatus", "Result", "ResultFlag", "Submit",
    "SubmitFlag",
]  # fmt: skip


class ReleaseStatus(IntEnum):
    """What became of a submitted frame; equals `session.capnp` ReleaseStatus."""

    RUN = 0
    SUPERSEDED = 1
    LATE = 2
    TORN = 3
    REFUSED = 4
    LOST = 5


class SubmitFlag(IntFlag):
    """Bits of `Submit.flags`; all others are 0."""

    IN_FENCE = 1


class ResultFlag(IntFlag):
    """Bits of `Result.receipt.flags`; all others are 0."""

    DEADLINE_MET = 1
    NAN = 2
    STATE_RESET = 4


RESULT_FLAGS: Final = tuple(map(ResultFlag, range(1 << len(ResultFlag))))
"""Every combination, by its bits: making one costs as much as packing a packet."""


class Submit(NamedTuple):
    """Camera to daemon: one written slot (`session.capnp` Submit)."""

    stream_id: int
    slot: int
    generation: int
    sequence: int
    sof_ns: int
    eof_ns: int
    control_word: int
    exposure_ns: int
    flags: int


class Release(NamedTuple):
    """Daemon to camera: the slot is the camera's again (`session.capnp` Release)."""

    stream_id: int
    slot: int
    generation: int
    sequence: int
    status: int
    code: int
    held_ns: int


class Result(NamedTuple):
    """Daemon to consumer: a ring slot holds outputs, and the receipt for them (`result.capnp` Result)."""

    subscription_id: int
    slot: int
    slot_sequence: int
    missed: int
    receipt_model_digest0: int
    receipt_model_digest1: int
    receipt_model_digest2: int
    receipt_model_digest3: int
    receipt_entrypoint: int
    receipt_device: int
    receipt_timeline: int
    receipt_fence_value: int
    receipt_fence_status: int
    receipt_flags: int
    receipt_frame_count: int
    receipt_state_epoch: int
    receipt_deadline_ns: int
    receipt_submitted_ns: int
    receipt_started_ns: int
    receipt_completed_ns: int
    receipt_device_started_ns: int
    receipt_device_completed_ns: int
    receipt_published_ns: int
    receipt_clock_error_ns: int
    receipt_aux_age0_ns: int
    receipt_aux_age1_ns: int
    receipt_aux_age2_ns: int
    receipt_aux_age3_ns: int
    receipt_frame0_stream: int
    receipt_frame0_slot: int
    receipt_frame0_sequence: int
    receipt_frame0_generation: int
    receipt_frame0_sof_ns: int
    receipt_frame0_sof_monotonic_ns: int
    receipt_frame0_not_run: int
    receipt_frame0_camera_dropped: int
    receipt_frame1_stream: int
    receipt_frame1_slot: int
    receipt_frame1_sequence: int
    receipt_frame1_generation: int
    receipt_frame1_sof_ns: int
    receipt_frame1_sof_monotonic_ns: int
    receipt_frame1_not_run: int
    receipt_frame1_camera_dropped: int
    receipt_frame2_stream: int
    receipt_frame2_slot: int
    receipt_frame2_sequence: int
    receipt_frame2_generation: int
    receipt_frame2_sof_ns: int
    receipt_frame2_sof_monotonic_ns: int
    receipt_frame2_not_run: int
    receipt_frame2_camera_dropped: int
    receipt_frame3_stream: int
    receipt_frame3_slot: int
    receipt_frame3_sequence: int
    receipt_frame3_generation: int
    receipt_frame3_sof_ns: int
    receipt_frame3_sof_monotonic_ns: int
    receipt_frame3_not_run: int
    receipt_frame3_camera_dropped: int
    receipt_frame4_stream: int
    receipt_frame4_slot: int
    receipt_frame4_sequence: int
    receipt_frame4_generation: int
    receipt_frame4_sof_ns: int
    receipt_frame4_sof_monotonic_ns: int
    receipt_frame4_not_run: int
    receipt_frame4_camera_dropped: int
    receipt_frame5_stream: int
    receipt_frame5_slot: int
    receipt_frame5_sequence: int
    receipt_frame5_generation: int
    receipt_frame5_sof_ns: int
    receipt_frame5_sof_monotonic_ns: int
    receipt_frame5_not_run: int
    receipt_frame5_camera_dropped: int
    receipt_frame6_stream: int
    receipt_frame6_slot: int
    receipt_frame6_sequence: int
    receipt_frame6_generation: int
    receipt_frame6_sof_ns: int
    receipt_frame6_sof_monotonic_ns: int
    receipt_frame6_not_run: int
    receipt_frame6_camera_dropped: int
    receipt_frame7_stream: int
    receipt_frame7_slot: int
    receipt_frame7_sequence: int
    receipt_frame7_generation: int
    receipt_frame7_sof_ns: int
    receipt_frame7_sof_monotonic_ns: int
    receipt_frame7_not_run: int
    receipt_frame7_camera_dropped: int


SUBMIT: Final = schema.FlatCodec(schema.session.Submit.schema, Submit)
RELEASE: Final = schema.FlatCodec(schema.session.Release.schema, Release)
RESULT: Final = schema.FlatCodec(schema.result.Result.schema, Result)

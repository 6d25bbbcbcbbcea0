"""One good packet of each kind, for tests that send them at the wrong time or change a byte."""

from __future__ import annotations

from abi import flat
from abi import messages as m
from abi.flat import Release, Result, Submit
from abi.messages import Role
from abi.packet import Kind, RefusalCode, encode_header
from abi.tap import TAP_END, TAP_FRAME, TapEnd, TapFrame
from tests.support.link import (
    SUBSCRIBED,
    WELCOME,
    stream_format,
    wire,
)  # fmt: skip

MESSAGES: dict[Kind, m.Message] = {
    m.kind_of_message(message): message
    for message in (
        m.Hello(Role.CAMERA, "x"), WELCOME, m.Refusal(RefusalCode.LIMIT, 5, "", "", "", ""), m.Bye(),
        m.OpenStream("road", stream_format()), m.StreamOpened(1, 4), m.RegisterBuffers(1, 3),
        m.BuffersRegistered(1, 3, True), m.CloseStream(1), m.SetAux("a", 0, b""), m.AuxSet("a"),
        m.Subscribe("lane"), SUBSCRIBED,
        m.Command(m.CommandKind.STATUS), m.Reply(m.CommandKind.STATUS, "{}"),
        m.Tap(True), m.Tapped(3), m.TapStream(1, "road", stream_format(), 3),
        m.TapNote(m.TapTopic.AUX, "a", 1, 2, b"v"),
    )
}  # fmt: skip
RESULT = Result(*[0] * len(Result._fields))._replace(
    subscription_id=5, slot=1, slot_sequence=2, receipt_fence_status=1, receipt_frame_count=1
)
EXAMPLE_DESCRIPTORS = {Kind.REGISTER_BUFFERS: 4, Kind.SUBSCRIBED: 1, Kind.TAP_STREAM: 4}
EXAMPLES = {kind: wire(message, EXAMPLE_DESCRIPTORS.get(kind, 0)) for kind, message in MESSAGES.items()} | {
    Kind.SUBMIT: encode_header(Kind.SUBMIT) + flat.SUBMIT.pack(Submit(1, 0, 1, 1, 0, 0, 0, 0, 0)),
    Kind.RELEASE: encode_header(Kind.RELEASE) + flat.RELEASE.pack(Release(1, 0, 1, 1, 0, 0, 0)),
    Kind.RESULT: encode_header(Kind.RESULT) + flat.RESULT.pack(RESULT),
    Kind.TAP_FRAME: encode_header(Kind.TAP_FRAME) + TAP_FRAME.pack(TapFrame(1, 0, 1, 1, 0, 0, 2, 0, 5, 0)),
    Kind.TAP_END: encode_header(Kind.TAP_END) + TAP_END.pack(TapEnd(1, 0, 1, 1, 0, 0, 6, 0)),
}

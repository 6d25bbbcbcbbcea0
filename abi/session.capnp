@0xe20aa0d640a642b2;
# The packets of a session. Every packet is one AF_UNIX SOCK_SEQPACKET datagram: an 8-byte header
# {kind u16, abiVersion u16, descriptors u8, flags u8, reserved u16 = 0}, little endian, and one
# canonical single-segment Cap'n Proto message (8-byte segment table first) of the kind's struct. Canonical means:
# objects lie inside the segment without overlap, in any order; no far pointers or capabilities; bits that no
# object holds are zero. Builders of every language make such messages (docs/abi.md).
#
# Structs marked FLAT hold no pointers, no defaults and no bit fields, so that their codec is one
# fixed-offset record; any change to one raises abiVersion. To other structs fields may be added at the end. None is
# ever renumbered.

using Cxx = import "/capnp/c++.capnp";
using Frame = import "frame.capnp";
using Results = import "result.capnp";
$Cxx.namespace("fenced::abi");

const abiVersion :UInt16 = 1;
# Rises when an old peer could misread a packet. Peers must agree exactly.

enum Kind {
  # The header's `kind`, and the struct that follows it. C = client, D = daemon.
  invalid @0;            # never sent
  hello @1;              # C to D  Hello
  welcome @2;            # D to C  Welcome
  refusal @3;            # D to C  Refusal
  bye @4;                # both    Bye
  openStream @5;         # camera to D  OpenStream
  streamOpened @6;       # D to camera  StreamOpened
  registerBuffers @7;    # camera to D  RegisterBuffers, with descriptors
  buffersRegistered @8;  # D to camera  BuffersRegistered
  submit @9;             # camera to D  Submit (FLAT), optionally with an in-fence descriptor
  release @10;           # D to camera  Release (FLAT)
  closeStream @11;       # camera to D  CloseStream
  setAux @12;            # camera or control to D  SetAux
  subscribe @13;         # consumer to D  Subscribe
  subscribed @14;        # D to consumer  Subscribed, with the ring's descriptor
  result @15;            # D to consumer  Result (FLAT, result.capnp)
  command @16;           # control to D  Command
  reply @17;             # D to control  Reply
  auxSet @18;            # D to camera or control  AuxSet
  tap @19;               # consumer to D  Tap
  tapped @20;            # D to consumer  Tapped
  tapStream @21;         # D to consumer  TapStream, with the stream's memory, read-only
  tapFrame @22;          # D to consumer  TapFrame (FLAT)
  tapEnd @23;            # D to consumer  TapEnd (FLAT)
  tapNote @24;           # D to consumer  TapNote
}

enum Role {
  unspecified @0;  # refused
  camera @1;
  consumer @2;
  control @3;
}

struct Hello {
  # The first packet of every session.
  role @0 :Role;
  # Must be the role of the socket that was connected to.
  name @1 :Text;
  # Who connects, for logs (1..64 bytes of printable UTF-8).
}

struct Welcome {
  daemonVersion @0 :Text;
  # Version of the `fenced` distribution that answers.
  epoch @1 :UInt64;
  # Drawn when the daemon starts. Generations, slots and subscriptions of another epoch mean nothing.
  maxPacketBytes @2 :UInt32;
  # Longer packets close the session.
  maxDescriptors @3 :UInt32;
  # Descriptors a packet may carry.
}

enum RefusalCode {
  # Why the daemon said no. A refusal marked (closes) ends this session; no other is disturbed.
  ok @0;                 # never sent
  protocol @1;           # (closes) the packet is not well formed or came at the wrong time
  abiVersion @2;         # (closes) the peers' ABI versions differ
  role @3;               # (closes) the role does not belong to this socket
  notPermitted @4;       # the policy does not let this user do that
  limit @5;              # a limit of this peer is exceeded
  badFormat @6;          # the StreamFormat is incomplete, contradictory or out of bounds
  formatMismatch @7;     # the stream's format is not the one the model was compiled for
  unknownStream @8;      # no loaded model takes a stream of this name
  streamTaken @9;        # another camera holds this stream
  badBuffer @10;         # a descriptor is too small, not sealed, or not memory
  unknownSlot @11;       # slot beyond the registered buffers
  badGeneration @12;     # the lease is not the camera's to give: stale, duplicate or foreign
  sequenceRepeated @13;  # a sequence was seen before
  timeNotRising @14;     # SOF is not after the stream's last SOF
  timeInFuture @15;      # SOF lies beyond now + tolerance
  timeStale @16;         # SOF is older than maxAge
  notReady @17;          # what that needs is not there now: a model that serves, of this name, or to go back to
  unknownCommand @18;    # no command of this number
  modelRefused @19;      # a bundle or snapshot was refused; of a bundle `what` begins with the step's code and a colon
  deviceError @20;       # reserved: the accelerator is in error
  idle @21;              # (closes) the peer stayed silent beyond the limit
  unknownAux @22;        # no loaded model takes an aux input of this name
  badAux @23;            # aux size, dtype or time is not the contract's
  shuttingDown @24;      # reserved: a daemon that ends says Bye
  outOfSkew @25;         # no frame of another stream of the entrypoint is near enough in time (maxSkewNs)
}

struct Refusal {
  # Answers one packet of the client. Nothing that was refused has taken effect.
  code @0 :RefusalCode;
  # Why, for a program.
  inReplyTo @1 :UInt16;
  # Kind of the refused packet.
  what @2 :Text;
  # What was wrong, naming the field.
  expected @3 :Text;
  # What would have been granted.
  found @4 :Text;
  # What came instead.
  action @5 :Text;
  # What to do about it.
}

struct Bye {
  reason @0 :Text;
  # Why the sender ends the session. Buffers in flight stay with the daemon until their fences signal.
}

struct OpenStream {
  stream @0 :Text;
  # The stream's name in the model's contract, for instance "road" (1..64 bytes, [a-z0-9_.-]).
  format @1 :Frame.StreamFormat;
  # Complete; it must be the one that the model was compiled for.
}

struct StreamOpened {
  streamId @0 :UInt32;
  # Names the stream in flat packets of this session and in receipts.
  maxSlots @1 :UInt32;
  # Buffers the daemon will register.
}

struct RegisterBuffers {
  # Descriptors, in this order: the lease page, then `slots` buffers. The lease page is a memfd of
  # slots * 64 bytes, sealed against shrinking; the u64 at slot * 64 is the slot's control word: odd
  # while the camera writes the slot, and never the same twice. Memfds must carry F_SEAL_SHRINK. A buffer may
  # also be a dma-buf, whose size the kernel fixes: the daemon then waits for its implicit writers as for an
  # in-fence, and brackets each read by DMA_BUF_IOCTL_SYNC; the camera does so around what its CPU writes.
  streamId @0 :UInt32;
  # As StreamOpened gave it.
  slots @1 :UInt32;
  # 1..maxSlots; descriptors = slots + 1.
}

struct BuffersRegistered {
  streamId @0 :UInt32;
  # Of the request.
  slots @1 :UInt32;
  # Of the request: all of them are registered.
  zeroCopy @2 :Bool;
  # Whether the accelerator reads the buffers in place.
}

struct Submit {
  # FLAT. The camera gives one written slot to the daemon; from here the slot is the daemon's.
  streamId @0 :UInt32;
  # As StreamOpened gave it.
  slot @1 :UInt32;
  # Which of the registered buffers, from 0.
  generation @2 :UInt64;
  # The slot's lease number: 1 for its first submit, then one more each time, also after a refused one (but not
  # after badGeneration, unknownSlot or unknownStream, which leave the lease alone).
  sequence @3 :UInt64;
  # Strictly rising in the stream; a gap counts as frames the camera dropped.
  sofNs @4 :Int64;
  # When the frame's marked instant was (StreamFormat.mark), in StreamFormat.clock.
  eofNs @5 :Int64;
  # When the last line had left the sensor; at least sofNs.
  controlWord @6 :UInt64;
  # The slot's control word as the camera left it after writing: even.
  exposureNs @7 :UInt64;
  # Exposure time, 0 when unknown. For logs only.
  flags @8 :UInt32;
  # Bit 0: one in-fence descriptor comes with the packet. Other bits must be 0.
}

enum ReleaseStatus {
  run @0;         # the frame went through the model and its fence signalled
  superseded @1;  # a newer frame took its place before it ran
  late @2;        # its deadline had passed, or would have, before it could run
  torn @3;        # it was overwritten while the daemon held it; its result was discarded
  refused @4;     # the Submit was refused; the code says why
  lost @5;        # the device, a fence or the model failed; no result was published
}

struct Release {
  # FLAT. The slot is the camera's again. Sent once for each Submit, only after the slot's fence has
  # signalled, or when the frame never reached the device.
  streamId @0 :UInt32;
  # As in the Submit.
  slot @1 :UInt32;
  # As in the Submit.
  generation @2 :UInt64;
  # As in the Submit.
  sequence @3 :UInt64;
  # As in the Submit.
  status @4 :ReleaseStatus;
  # What became of the frame.
  code @5 :RefusalCode;
  # The reason, when status is refused; otherwise ok.
  heldNs @6 :UInt64;
  # From Submit read to Release sent, CLOCK_MONOTONIC.
}

struct CloseStream {
  streamId @0 :UInt32;
  # As StreamOpened gave it. Frames that wait end as lost; what runs stays the daemon's until its fence.
}

struct SetAux {
  # Sets one small named tensor for the frames that follow.
  name @0 :Text;
  # Of an aux input of the model's contract.
  timeNs @1 :Int64;
  # When the value was true, CLOCK_MONOTONIC.
  value @2 :Data;
  # The contract's dtype and shape, little endian, row-major.
}

struct AuxSet {
  # Answers one SetAux: the frames that run from here take the value. A refused one is answered by Refusal.
  name @0 :Text;
  # As in the SetAux.
}

enum DeliveryPolicy {
  latest @0;  # only the newest result waits for a slow consumer
  every @1;   # up to `queue` results wait; beyond that the consumer is told how many it missed
}

struct Subscribe {
  model @0 :Text;
  # The model's name.
  policy @1 :DeliveryPolicy;
  # What waits for a consumer that is slow.
  queue @2 :UInt32;
  # Results that may wait under `every`; 1..64.
}

struct Subscribed {
  # Comes with one descriptor: the result ring, read-only. Slot i starts at i * slotBytes.
  subscriptionId @0 :UInt32;
  # Names the subscription in each Result.
  slots @1 :UInt32;
  # Of the ring.
  slotBytes @2 :UInt64;
  # Distance of two slots. A slot begins with its u64 sequence word; each output stands at its OutputView.offset.
  modelDigest @3 :Data;
  # SHA-256 of the bundle's signed statement (32 bytes).
  outputs @4 :List(Results.OutputView);
  # What stands in a slot, and where.
}

enum CommandKind {
  unspecified @0;  # refused
  status @1;       # answers with the whole state as JSON
  activate @2;     # `argument`: path of a bundle, as seen by the daemon
  rollback @3;     # back to the previous model
  drain @4;        # refuse new frames, finish those in flight
  resume @5;       # take frames again after drain
  resetState @6;   # recurrent state to its initial value; epoch + 1
  metrics @7;      # answers with OpenMetrics text
  snapshotState @8; # `argument`: model; the Reply comes with a descriptor: its recurrent state (state.capnp)
  restoreState @9; # `argument`: model; the Command comes with such a descriptor; epoch + 1
  shadow @10;      # `argument`: path of a bundle that runs on the same frames and publishes nothing; empty: end it
}

struct Command {
  # Comes with one descriptor if it is restoreState: a snapshot in a memfd sealed against writing; else with none.
  command @0 :CommandKind;
  # What to do.
  argument @1 :Text;
  # A path, or a model's name. Empty where only one model can be meant.
  frames @2 :UInt32;
  # shadow: how many runs to compare before it ends by itself; 0: until it is ended. Else 0.
}

struct Reply {
  # Answers one Command that was carried out. A refused one is answered by Refusal. Comes with one descriptor if it
  # answers snapshotState: a memfd that can never change again; else with none.
  command @0 :CommandKind;
  # The one that was carried out.
  body @1 :Text;
  # JSON, or text for metrics.
}

# A recorder's tap. It looks at frames and never holds one: nothing waits for it, and what does not fit into its socket
# is dropped and counted (`missed`).

struct Tap {
  # Asks for everything that happens from here: streams, frames, notes. Once in a session; it may subscribe as well.
  pixels @0 :Bool;
  # Whether the memory of the frames is wanted; without it only what is said of them.
}

struct Tapped {
  # Notes of the models that serve and of the aux inputs' present values follow, and a TapStream for each open stream.
  tapId @0 :UInt32;
  # Names the tap in `fenced status`.
}

struct TapStream {
  # A stream is open. Descriptors, if there are slots: the lease page, then the buffers (RegisterBuffers), read-only.
  #
  # A slot may be copied from its TapFrame until the camera writes it again, which is at the earliest once its TapEnd
  # was sent and, for a camera that takes the slot that is free longest, after the frames of all other slots. The
  # reader reads the slot's control word, copies, and reads it again: unless it was TapFrame.controlWord both times the
  # copy is discarded. This holds for cameras that keep the word (the client libraries do).
  streamId @0 :UInt32;
  # Names the stream in the tap's packets.
  stream @1 :Text;
  # Its name in the model's contract.
  format @2 :Frame.StreamFormat;
  # As the camera declared it.
  slots @3 :UInt32;
  # 0: the pixels are not shared; `withheld` says why.
  withheld @4 :Text;
  # Empty where the pixels are shared or were not asked for.
}

struct TapFrame {
  # FLAT. A frame was submitted, accepted, and its pixels are there.
  streamId @0 :UInt32;
  # As in TapStream.
  slot @1 :UInt32;
  # Where its pixels are.
  generation @2 :UInt64;
  # These and the next five as in Submit.
  sequence @3 :UInt64;
  # As in Submit.
  sofNs @4 :Int64;
  # As in Submit.
  eofNs @5 :Int64;
  # As in Submit.
  controlWord @6 :UInt64;
  # As in Submit.
  exposureNs @7 :UInt64;
  # As in Submit.
  receivedNs @8 :Int64;
  # When the daemon took the Submit, CLOCK_MONOTONIC.
  missed @9 :UInt64;
  # Packets of this tap that were dropped before this one, in total.
}

struct TapEnd {
  # FLAT. A frame has ended; also one of which there was no TapFrame.
  streamId @0 :UInt32;
  # As in TapStream.
  slot @1 :UInt32;
  # As in Release.
  generation @2 :UInt64;
  # As in Release.
  sequence @3 :UInt64;
  # As in Release.
  status @4 :ReleaseStatus;
  # As in Release.
  code @5 :RefusalCode;
  # As in Release.
  endedNs @6 :Int64;
  # CLOCK_MONOTONIC.
  missed @7 :UInt64;
  # As in TapFrame.
}

enum TapTopic {
  unspecified @0;  # never sent
  model @1;        # a model serves: `name`; `value` is the SHA-256 of its signed statement, 32 bytes
  aux @2;          # an aux input was set: `name`, `value`, and `timeNs` as in SetAux
  audit @3;        # an entry of the audit log: `value` is its line, without the newline
  streamClosed @4; # the stream `name` is closed; nothing of it is told any more
}

struct TapNote {
  topic @0 :TapTopic;
  # What it tells of.
  name @1 :Text;
  # Of the model, aux input or stream; empty for an audit entry.
  timeNs @2 :Int64;
  # Of an aux input; else 0.
  seenNs @3 :Int64;
  # When it happened, CLOCK_MONOTONIC.
  value @4 :Data;
  # See TapTopic.
}

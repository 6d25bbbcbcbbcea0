@0xf6e0add914efc764;
# What comes out: named views into a result ring, and a receipt that says which frames, which model and
# which fence stand behind them.
#
# The ring is a memfd that a consumer can only read. A slot begins with a u64 sequence word: odd while
# the daemon writes, then Result.slotSequence. Outputs start at OutputView.offset from the slot's start.
# A reader copies, then reads the word again: unless it is still Result.slotSequence the copy is discarded.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("fenced::abi");

enum DType {
  unspecified @0;
  float32 @1;
  float16 @2;
  int8 @3;
  uint8 @4;
  int16 @5;
  uint16 @6;
  int32 @7;
  uint32 @8;
  int64 @9;
  uint64 @10;
  bool8 @11;    # one byte, 0 or 1
  bfloat16 @12;
}

enum NanPolicy {
  refuse @0;  # a NaN or infinity discards the whole result; the frame is released as lost
  flag @1;    # passed on; Result.flags bit 1 is set
}

struct OutputView {
  # One named output inside a ring slot.
  name @0 :Text;
  # The model's name of it.
  dtype @1 :DType;
  # Of its elements, little endian.
  shape @2 :List(UInt32);
  # Row-major; empty for a scalar.
  unit @3 :Text;
  # SI symbol, for instance "m"; "1" for a pure number.
  offset @4 :UInt64;
  # Bytes from the slot's start.
  sizeBytes @5 :UInt64;
  # Exactly those of dtype and shape.
  nan @6 :NanPolicy;
  # What becomes of a result with NaN or infinity in it.
}

enum FenceStatus {
  active @0;    # not yet: never seen in a receipt
  signaled @1;  # the device itself advanced the timeline to the fence's value
  error @2;     # the device failed; there is no result
}

struct Result {
  # FLAT. Sent after the fence has signalled and the outputs stand in the ring.
  subscriptionId @0 :UInt32;
  # As Subscribed gave it.
  slot @1 :UInt32;
  # Of the ring, where the outputs stand.
  slotSequence @2 :UInt64;
  # The slot's sequence word while this result is valid: even.
  missed @3 :UInt64;
  # Results of this subscription that were not delivered before this one, in total.
  receipt :group {
    modelDigest0 @4 :UInt64;
    # SHA-256 of the signed statement as four little-endian words.
    modelDigest1 @5 :UInt64;
    # Bytes 8 to 15.
    modelDigest2 @6 :UInt64;
    # Bytes 16 to 23.
    modelDigest3 @7 :UInt64;
    # Bytes 24 to 31.
    entrypoint @8 :UInt32;
    # Index in the graph's entrypoints.
    device @9 :UInt32;
    # Index of the device in `fenced devices`.
    timeline @10 :UInt64;
    # Drawn when the timeline was created; values of different timelines cannot be compared.
    fenceValue @11 :UInt64;
    # The run's number on its timeline.
    fenceStatus @12 :FenceStatus;
    # Always signaled in a result that was sent.
    flags @13 :UInt16;
    # Bit 0: the deadline was met. Bit 1: an output holds NaN or infinity. Bit 2: state was reset before this run.
    frameCount @14 :UInt32;
    # How many of frame0..frame7 are used.
    stateEpoch @15 :UInt64;
    # Rises whenever recurrent state was reset, restored or not handed over.
    deadlineNs @16 :Int64;
    # CLOCK_MONOTONIC.
    submittedNs @17 :Int64;
    # When the daemon gave the run to the device, CLOCK_MONOTONIC.
    startedNs @18 :Int64;
    # When the device started, mapped to CLOCK_MONOTONIC.
    completedNs @19 :Int64;
    # When the device finished, mapped to CLOCK_MONOTONIC.
    deviceStartedNs @20 :Int64;
    # The same in the device's own clock.
    deviceCompletedNs @21 :Int64;
    # The same in the device's own clock.
    publishedNs @22 :Int64;
    # When the outputs stood in the ring, CLOCK_MONOTONIC.
    clockErrorNs @23 :UInt64;
    # Bound on the error of every conversion between clocks in this receipt.
    auxAge0Ns @24 :Int64;
    # Age at submittedNs of the contract's first four aux inputs; -1 where there is none.
    auxAge1Ns @25 :Int64;
    # Of the second.
    auxAge2Ns @26 :Int64;
    # Of the third.
    auxAge3Ns @27 :Int64;
    # Of the fourth.
    frame0 :group {
      stream @28 :UInt32;
      # Index of the stream in the entrypoint's contract.
      slot @29 :UInt32;
      # Of the camera's buffers.
      sequence @30 :UInt64;
      # As in its Submit.
      generation @31 :UInt64;
      # As in its Submit.
      sofNs @32 :Int64;
      # In the camera's clock.
      sofMonotonicNs @33 :Int64;
      # The same in CLOCK_MONOTONIC.
      notRun @34 :UInt64;
      # Frames of this stream that ended without a run before this result, in total since it opened: superseded, late,
      # torn, refused or lost.
      cameraDropped @35 :UInt64;
      # Sequence numbers of this stream that never came, in total since it opened.
    }
    frame1 :group {
      # This and the following ones as frame0.
      stream @36 :UInt32;
      slot @37 :UInt32;
      sequence @38 :UInt64;
      generation @39 :UInt64;
      sofNs @40 :Int64;
      sofMonotonicNs @41 :Int64;
      notRun @42 :UInt64;
      cameraDropped @43 :UInt64;
    }
    frame2 :group {
      stream @44 :UInt32;
      slot @45 :UInt32;
      sequence @46 :UInt64;
      generation @47 :UInt64;
      sofNs @48 :Int64;
      sofMonotonicNs @49 :Int64;
      notRun @50 :UInt64;
      cameraDropped @51 :UInt64;
    }
    frame3 :group {
      stream @52 :UInt32;
      slot @53 :UInt32;
      sequence @54 :UInt64;
      generation @55 :UInt64;
      sofNs @56 :Int64;
      sofMonotonicNs @57 :Int64;
      notRun @58 :UInt64;
      cameraDropped @59 :UInt64;
    }
    frame4 :group {
      stream @60 :UInt32;
      slot @61 :UInt32;
      sequence @62 :UInt64;
      generation @63 :UInt64;
      sofNs @64 :Int64;
      sofMonotonicNs @65 :Int64;
      notRun @66 :UInt64;
      cameraDropped @67 :UInt64;
    }
    frame5 :group {
      stream @68 :UInt32;
      slot @69 :UInt32;
      sequence @70 :UInt64;
      generation @71 :UInt64;
      sofNs @72 :Int64;
      sofMonotonicNs @73 :Int64;
      notRun @74 :UInt64;
      cameraDropped @75 :UInt64;
    }
    frame6 :group {
      stream @76 :UInt32;
      slot @77 :UInt32;
      sequence @78 :UInt64;
      generation @79 :UInt64;
      sofNs @80 :Int64;
      sofMonotonicNs @81 :Int64;
      notRun @82 :UInt64;
      cameraDropped @83 :UInt64;
    }
    frame7 :group {
      stream @84 :UInt32;
      slot @85 :UInt32;
      sequence @86 :UInt64;
      generation @87 :UInt64;
      sofNs @88 :Int64;
      sofMonotonicNs @89 :Int64;
      notRun @90 :UInt64;
      cameraDropped @91 :UInt64;
    }
  }
}

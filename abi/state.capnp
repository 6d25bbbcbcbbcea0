@0xd2f1c8a7403b96e5;
# A snapshot of a model's recurrent state, as it is passed in a memfd and kept in logs. The whole of it:
#
#   0    8   magic "FENCEDS\1"
#   8    8   u64 LE: bytes of the header, a multiple of 8, at most 1 MiB
#   16   n   one canonical single-segment Cap'n Proto message of struct StateSnapshot (8-byte segment table first)
#            zero padding to 64
#        …   the values, in the order of `states`, each padded with zeros to 64; the end is the last one's padding
#
# Offsets are implied, so there is no hole, overlap or extra value. All numbers are little endian.

using Cxx = import "/capnp/c++.capnp";
using Results = import "result.capnp";
$Cxx.namespace("fenced::abi");

struct StateSnapshot {
  model @0 :Text;
  # The model's name.
  modelDigest @1 :Data;
  # SHA-256 of the bundle's signed statement (32 bytes).
  stateEpoch @2 :UInt64;
  # The epoch (result.capnp Receipt.stateEpoch) in which it was taken; restoring gives the model a new one.
  timeline @3 :UInt64;
  # Receipt.timeline of the queue that the model ran in.
  fenceValue @4 :UInt64;
  # The last run whose writes it holds: of this timeline, the results with at most this Receipt.fenceValue came before
  # it, the others after. 0: none ran.
  takenNs @5 :Int64;
  # CLOCK_MONOTONIC.
  states @6 :List(SavedState);
  # In the order of their values.
}

struct SavedState {
  name @0 :Text;
  # The contract's (graph.capnp StateBuffer).
  dtype @1 :Results.DType;
  # Of its elements.
  shape @2 :List(UInt32);
  # Row-major.
  sizeBytes @3 :UInt64;
  # Bytes of its value: all of its buffer, at least those of dtype and shape.
}

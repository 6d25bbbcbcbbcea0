@0xbc51b0af61ea86bd;
# The captured graph: what a model asks for, and the exact launches that compute it. It is data: it names
# machine code in the bundle's `code` blob but holds none. It is parsed only after its digest was checked,
# and nothing in it is believed until `hal.admit` has proved it.
#
# Memory is described by buffers. Each has one kind, which fixes who may read and write it:
#   arena     scratch of one run; undefined before, dead after
#   weights   a range of the `weights` blob; read-only
#   state     survives from run to run; starts as zeros or as a range of the `weights` blob
#   frame     a camera frame, bound at each run; read-only
#   aux       a small named tensor, bound at each run; read-only
#   output    written by the run, bound at each run

using Cxx = import "/capnp/c++.capnp";
using Frame = import "frame.capnp";
using Results = import "result.capnp";
$Cxx.namespace("fenced::abi");

const halVersion :UInt16 = 1;
# Rises when a driver of an older version could run a graph wrongly. Must match exactly.

enum BufferKind {
  unspecified @0;  # refused
  arena @1;
  weights @2;
  state @3;
  frame @4;
  aux @5;
  output @6;
}

struct Buffer {
  kind @0 :BufferKind;
  # Whose memory it is, and so who may write it.
  sizeBytes @1 :UInt64;
  # 1.. ; for frames StreamFormat.bufferBytes.
  offset @2 :UInt64;
  # arena: offset in the one arena. weights: offset in the weights blob. Otherwise 0.
  alignBytes @3 :UInt32;
  # A power of two; the offset is a multiple of it.
  initialOffset @4 :UInt64;
  # state with `initialFromWeights`: offset of its first value in the weights blob.
  initialFromWeights @5 :Bool;
  # state: whether it begins as part of the weights; otherwise as zeros.
}

enum Access {
  unspecified @0;  # refused
  read @1;
  write @2;        # every byte of the range is written before any is read
  readWrite @3;
}

struct Program {
  # One kernel.
  name @0 :Text;
  # The kernel's name as its source calls it, for reports. Not unique.
  symbol @1 :Text;
  # cpu: the exported shim `void symbol(void **args, int core)`. Others: the entry in its binary.
  codeOffset @2 :UInt64;
  # Range of the kernel's binary in the code blob; 0, 0 where the blob is one linked object (cpu). Programs may share
  # one range: one binary with several entries.
  codeBytes @3 :UInt64;
  # Its length; see codeOffset.
  argumentAccess @4 :List(Access);
  # One for each argument, in order.
  flops @5 :UInt64;
  # Arithmetic operations of one launch, as counted by the compiler.
}

struct Argument {
  buffer @0 :UInt32;
  # Index in Graph.buffers.
  offset @1 :UInt64;
  # Bytes from the buffer's start.
  sizeBytes @2 :UInt64;
  # Bytes the kernel may touch from there.
}

struct Launch {
  program @0 :UInt32;
  # Index in Graph.programs.
  arguments @1 :List(Argument);
  # One for each of the program's argumentAccess, in order.
  global @2 :List(UInt32);
  # cpu: [cores]: the shim is called once for each core index 0..cores-1. Others: work groups in x, y, z.
  local @3 :List(UInt32);
  # Work items of a group in x, y, z; empty on cpu.
  values @4 :List(Int64);
  # Scalar arguments after the buffers.
}

struct FrameInput {
  name @0 :Text;
  # The model's own name of the input.
  stream @1 :Text;
  # Which camera stream it takes.
  format @2 :Frame.StreamFormat;
  # The exact format the graph was compiled for. clock, mark, periodNs and cameraName are the camera's own.
  buffer @3 :UInt32;
  # Index in Graph.buffers, of kind frame.
}

struct AuxInput {
  name @0 :Text;
  # As in SetAux.
  dtype @1 :Results.DType;
  # Of its elements.
  shape @2 :List(UInt32);
  # Row-major.
  buffer @3 :UInt32;
  # Index in Graph.buffers, of kind aux.
  maxAgeNs @4 :UInt64;
  # Older values are stale; 0: any age is good.
  hasDefault @5 :Bool;
  # Whether a stale or missing value is replaced by `defaultValue`; otherwise the run is refused.
  defaultValue @6 :Data;
  # As many bytes as dtype and shape ask for; empty without hasDefault.
}

struct StateBuffer {
  name @0 :Text;
  # By which a value is handed over, saved and restored.
  dtype @1 :Results.DType;
  # Of its elements.
  shape @2 :List(UInt32);
  # Row-major.
  buffer @3 :UInt32;
  # Index in Graph.buffers, of kind state.
  handOver @4 :Bool;
  # Whether a new model with the same name, dtype and shape takes the value over; otherwise it is reset.
}

struct Output {
  view @0 :Results.OutputView;
  # name, dtype, shape, unit, nan. offset and sizeBytes are the slice inside `buffer`.
  buffer @1 :UInt32;
  # Index in Graph.buffers, of kind output.
  absoluteTolerance @2 :Float64;
  # Goldens and replays accept |a - b| <= max(absolute, relative * |b|); 0, 0 asks for equal bits.
  relativeTolerance @3 :Float64;
  # See absoluteTolerance.
}

enum EntryRole {
  # When the daemon runs an entrypoint.
  unspecified @0;  # refused
  primary @1;      # for every frame set that scheduling takes; entrypoint 0, and no other
  lighter @2;
  # In the primary's place while its misses persist (MissPolicy.lighter). The primary's frames, outputs and maxSkewNs,
  # exactly; its aux inputs or some of them. So consumers see no difference but in values and in Receipt.entrypoint.
  stateOnly @3;
  # For frame sets that scheduling would drop as late or superseded, so that recurrent state stays in step; nothing is
  # published. No outputs, no deadline; the primary's frames and aux inputs or some of them, its maxSkewNs; writes at
  # least one state.
  unscheduled @4;
  # Never by the daemon after its self-test; for harnesses that ask for it by index, such as the conformance suite.
}

enum MissPolicy {
  # What the daemon does once missed deadlines persist (Entrypoint.missLimit), until they no longer do.
  unspecified @0;  # refused
  none @1;         # nothing: the model is shown as degraded
  skip @2;         # every second frame set is not run by this entrypoint; it counts as superseded
  lighter @3;      # the lighter entrypoint runs instead; only in the primary, and only where there is one
  stop @4;         # the model stops serving and says so; a person or a supervisor has to decide
}

struct Entrypoint {
  name @0 :Text;
  # For receipts' readers and reports; each once.
  firstLaunch @1 :UInt32;
  # Index in Graph.launches.
  launchCount @2 :UInt32;
  # Launches firstLaunch .. firstLaunch + launchCount - 1, in order.
  frames @3 :List(UInt32);
  # Indices in Graph.frames; at most 8.
  aux @4 :List(UInt32);
  # Indices in Graph.aux.
  outputs @5 :List(UInt32);
  # At least one; none in a stateOnly entrypoint.
  maxSkewNs @6 :UInt64;
  # Largest SOF distance between frames of one run.
  deadlineNs @7 :UInt64;
  # From SOF (monotonic) to published. 0: none.
  budgetNs @8 :UInt64;
  # A run longer than this on the device is a hang. Never 0.
  role @9 :EntryRole;
  # Entrypoint 0 is the primary, and the only one; at most one lighter and one stateOnly.
  missLimit @10 :UInt32;
  # Missed deadlines persist while more than missLimit of the last missWindow runs missed theirs.
  missWindow @11 :UInt32;
  # missLimit + 1 .. 65536 runs, where there is a deadline. 0, 0, none: no such limit.
  onMisses @12 :MissPolicy;
  # A limit, and another policy than `none`, only in primary and lighter entrypoints.
}

struct GoldenVector {
  # One self-test run. Input bytes are not stored: byte i of an input is made by `abi.golden` from the seed.
  entrypoint @0 :UInt32;
  # Index in Graph.entrypoints.
  seed @1 :UInt64;
  # Of the inputs; two vectors of an entrypoint have different ones.
  outputOffset @2 :UInt64;
  # The expected bytes in the goldens blob: the outputs, one after another in the entrypoint's order. An entrypoint
  # without outputs is held to its state instead: the states that its launches write, in the order of Graph.states, as
  # the run leaves them when it starts from their initial values; equal bits.
  outputBytes @3 :UInt64;
  # How many; all that the run has to give.
}

struct Graph {
  abiVersion @0 :UInt16;
  # The ABI that its formats are of; must match exactly.
  halVersion @1 :UInt16;
  # See the constant halVersion.
  driver @2 :Text;
  # cpu, opencl, hcq or cuda.
  threads @3 :UInt32;
  # cpu: workers that the launches are fanned over.
  arenaBytes @4 :UInt64;
  # Size of the one arena that buffers of kind arena lie in.
  buffers @5 :List(Buffer);
  # All memory that launches touch.
  programs @6 :List(Program);
  # All kernels.
  launches @7 :List(Launch);
  # All launches; each is of an entrypoint.
  frames @8 :List(FrameInput);
  # The cameras' pictures that entrypoints take.
  aux @9 :List(AuxInput);
  # The small named tensors that entrypoints take.
  states @10 :List(StateBuffer);
  # What lives from run to run.
  outputs @11 :List(Output);
  # The named tensors that entrypoints give.
  entrypoints @12 :List(Entrypoint);
  # What can be run; the primary first.
  goldens @13 :List(GoldenVector);
  # At least two for each entrypoint.
}

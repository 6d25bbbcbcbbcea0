@0xd6c3a4b7f21e9805;
# The part of an openpilot rlog that says when the frames of its camera files were exposed: an `Event` whose union holds
# an `EncodeIndex`. What the importer does not read is a place without a type, which keeps every number where it is on
# the wire; a member that is not one of the three below decodes as its place.

struct EncodeIndex {
  frameId @0 :UInt32;
  # The camera's own count of its frames, dropped ones included.
  type @1 :UInt16;
  # Which encoder: 1 is the HEVC file beside the rlog.
  encodeId @2 :UInt32;
  # Count of encoded frames since the route began.
  segmentNum @3 :Int32;
  # Which minute of the route.
  segmentId @4 :UInt32;
  # The frame's place in the segment's file, in the order in which frames are shown.
  segmentIdEncode @5 :UInt32;
  # The same in the order in which they were encoded.
  timestampSof @6 :UInt64;
  # Start of the frame's readout, CLOCK_BOOTTIME, ns.
  timestampEof @7 :UInt64;
  # End of the frame's readout, CLOCK_BOOTTIME, ns.
}

struct Event {
  logMonoTime @0 :UInt64;
  # When the event was published, CLOCK_BOOTTIME, ns.
  union {
    skipped1 @1 :Void; skipped2 @2 :Void; skipped3 @3 :Void; skipped4 @4 :Void; skipped5 @5 :Void;
    skipped6 @6 :Void; skipped7 @7 :Void; skipped8 @8 :Void; skipped9 @9 :Void; skipped10 @10 :Void;
    skipped11 @11 :Void; skipped12 @12 :Void; skipped13 @13 :Void; skipped14 @14 :Void;
    roadEncodeIdx @15 :EncodeIndex;
    # A frame of fcamera.hevc.
    skipped16 @16 :Void; skipped17 @17 :Void; skipped18 @18 :Void; skipped19 @19 :Void; skipped20 @20 :Void;
    skipped21 @21 :Void; skipped22 @22 :Void; skipped23 @23 :Void; skipped24 @24 :Void; skipped25 @25 :Void;
    skipped26 @26 :Void; skipped27 @27 :Void; skipped28 @28 :Void; skipped29 @29 :Void; skipped30 @30 :Void;
    skipped31 @31 :Void; skipped32 @32 :Void; skipped33 @33 :Void; skipped34 @34 :Void; skipped35 @35 :Void;
    skipped36 @36 :Void; skipped37 @37 :Void; skipped38 @38 :Void; skipped39 @39 :Void; skipped40 @40 :Void;
    skipped41 @41 :Void; skipped42 @42 :Void; skipped43 @43 :Void; skipped44 @44 :Void; skipped45 @45 :Void;
    skipped46 @46 :Void; skipped47 @47 :Void; skipped48 @48 :Void; skipped49 @49 :Void; skipped50 @50 :Void;
    skipped51 @51 :Void; skipped52 @52 :Void; skipped53 @53 :Void; skipped54 @54 :Void; skipped55 @55 :Void;
    skipped56 @56 :Void; skipped57 @57 :Void; skipped58 @58 :Void; skipped59 @59 :Void; skipped60 @60 :Void;
    skipped61 @61 :Void; skipped62 @62 :Void; skipped63 @63 :Void; skipped64 @64 :Void; skipped65 @65 :Void;
    skipped66 @66 :Void; skipped68 @68 :Void; skipped69 @69 :Void; skipped70 @70 :Void; skipped71 @71 :Void;
    skipped72 @72 :Void; skipped73 @73 :Void; skipped74 @74 :Void; skipped75 @75 :Void;
    driverEncodeIdx @76 :EncodeIndex;
    # A frame of dcamera.hevc.
    wideRoadEncodeIdx @77 :EncodeIndex;
    # A frame of ecamera.hevc.
  }
  valid @67 :Bool = true;
  # Whether its publisher trusts it.
}

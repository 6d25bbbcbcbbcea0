@0xbc38c1e68f3dc6c9;
# What a camera frame is: pixel layout, colour, time. A stream declares one StreamFormat once, when it
# opens; every frame of the stream then has exactly that layout. Nothing is guessed: the value
# `unspecified` exists only so that a field that was left out can be refused by name.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("fenced::abi");

enum Range {
  # Which code values carry black and white (ITU-R BT.709-6 §4.6 "quantization levels").
  unspecified @0;   # refused
  limited @1;       # 8 bit: luma 16..235, chroma 16..240; n bit: the same times 2^(n-8)
  full @2;          # 0..2^n-1
}

enum Matrix {
  # How luma and colour difference are made from R'G'B' (ITU-T H.273 MatrixCoefficients).
  unspecified @0;   # refused
  identity @1;      # the samples are R, G, B, grey or raw Bayer: no matrix applies
  bt601 @2;         # Kr 0.299,  Kb 0.114   (ITU-R BT.601-7)
  bt709 @3;         # Kr 0.2126, Kb 0.0722  (ITU-R BT.709-6)
  bt2020nc @4;      # Kr 0.2627, Kb 0.0593  (ITU-R BT.2020-2, non-constant luminance)
}

enum Primaries {
  # The chromaticities of R, G, B and white (ITU-T H.273 ColourPrimaries).
  unspecified @0;   # refused
  bt709 @1;         # also sRGB
  bt601Line525 @2;  # SMPTE 170M
  bt601Line625 @3;  # EBU 3213
  bt2020 @4;
  sensorNative @5;  # raw sensor colour, not yet corrected
}

enum Transfer {
  # From light to code value (ITU-T H.273 TransferCharacteristics).
  unspecified @0;   # refused
  linear @1;        # code value proportional to light; raw sensors without companding
  srgb @2;          # IEC 61966-2-1
  bt709 @3;         # ITU-R BT.709-6 §1.2; the same curve as BT.601 and 8-bit BT.2020
  pq @4;            # SMPTE ST 2084
  hlg @5;           # ARIB STD-B67
}

enum ChromaSite {
  # Where a chroma sample lies among the luma samples it covers.
  unspecified @0;   # refused
  notSubsampled @1; # RGB, grey, Bayer
  left @2;          # H.264/H.265 default: level with the left column, between two rows
  center @3;        # JPEG/MPEG-1
  topLeft @4;       # BT.2020 and UHD default
}

enum CfaOrder {
  # The colours of the top left 2x2 of a Bayer mosaic, row by row.
  unspecified @0;   # refused
  none @1;          # not a mosaic
  rggb @2;
  grbg @3;
  gbrg @4;
  bggr @5;
}

enum ClockId {
  # The clock in which every time of the stream is given. Names follow clock_gettime(2).
  unspecified @0;   # refused
  monotonic @1;     # CLOCK_MONOTONIC: stops in suspend
  boottime @2;      # CLOCK_BOOTTIME: goes on in suspend
  realtime @3;      # CLOCK_REALTIME: UTC, may jump
  tai @4;           # CLOCK_TAI: as kept by PTP
}

enum TimeMark {
  # What instant `sofNs` marks.
  unspecified @0;   # refused
  exposureStart @1; # first line starts to expose
  exposureEnd @2;   # last line ends to expose
  readoutStart @3;  # first line leaves the sensor (the start-of-frame interrupt of most receivers)
}

struct Plane {
  offset @0 :UInt64;
  # Bytes from the start of the buffer to the plane's first row.
  stride @1 :Int64;
  # Bytes from one row to the next. Signed only so that a negative stride can be refused by name.
  rows @2 :UInt32;
  # Rows that are valid pixels; padding rows below them belong to sizeBytes.
  sizeBytes @3 :UInt64;
  # Bytes the plane occupies, at least stride * (rows - 1) + the bytes of one row.
}

struct Rect {
  # A part of the picture in luma pixels, origin at the top left.
  x @0 :UInt32;
  # First column.
  y @1 :UInt32;
  # First row.
  width @2 :UInt32;
  # Columns.
  height @3 :UInt32;
  # Rows.
}

struct StreamFormat {
  # Set by the camera when it opens a stream, and by a model's contract. All fields are required.
  fourcc @0 :UInt32;
  # DRM fourcc, little endian as in drm_fourcc.h: NV12 is 'N' | 'V' << 8 | '1' << 16 | '2' << 24. For RGB24,
  # BGR24 and packed Bayer the code of V4L2 (videodev2.h): 'RGB3', 'BGR3', 'pRAA' and so on.
  modifier @1 :UInt64;
  # DRM format modifier. Only DRM_FORMAT_MOD_LINEAR (0) is accepted; others are refused by name.
  width @2 :UInt32;
  # Luma pixels in a row. May be odd; chroma then rounds up.
  height @3 :UInt32;
  # Luma rows. May be odd; chroma then rounds up.
  crop @4 :Rect;
  # The part of the picture that is valid. The whole picture is {0, 0, width, height}; an empty one is refused.
  planes @5 :List(Plane);
  # One for each plane of the format, in the format's order.
  bufferBytes @6 :UInt64;
  # Size of every buffer of the stream. The descriptor's own size must be at least this.
  range @7 :Range;
  # Which codes are black and white.
  matrix @8 :Matrix;
  # How luma and chroma come from red, green and blue; identity where there is no chroma.
  primaries @9 :Primaries;
  # Which colours red, green, blue and white are.
  transfer @10 :Transfer;
  # How light becomes a code.
  chromaSite @11 :ChromaSite;
  # Where a chroma sample lies among its luma samples; notSubsampled where each pixel has its own.
  cfa @12 :CfaOrder;
  # Order of the colour filters of a mosaic; none where there is no mosaic.
  clock @13 :ClockId;
  # The clock of every sofNs and eofNs of the stream.
  mark @14 :TimeMark;
  # Which instant of the exposure sofNs marks.
  periodNs @15 :UInt64;
  # Nominal time between frames; 0 is refused.
  cameraName @16 :Text;
  # The sensor's own name, for logs and reports (at most 64 bytes). Not the stream's name.
}

// Pixel formats, their layout in a buffer, and a moving test picture.
//
// A format is a list of planes; a plane's row is made of blocks of `block_pixels` samples in `block_bytes` bytes, after
// subsampling by (step_x, step_y). Names and codes are those of drm_fourcc.h or, where DRM has none (RGB24, BGR24,
// packed Bayer), of videodev2.h; SRGGB10P is V4L2_PIX_FMT_SRGGB10P. Odd sizes round up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fenced.hpp"
#include "program.hpp"

namespace fenced {

// What the bytes of a plane stand for, so that the test picture holds legal code values in every format.
enum class Samples {
  bytes,        // each byte is one sample, or the pixels of a packed mosaic
  chroma,       // each byte is a colour difference: 128 is neutral
  luma_chroma,  // Y Cb Y Cr
  chroma_luma,  // Cb Y Cr Y
  words,        // little-endian u16, `bits` of them significant
};

struct PlaneShape {
  std::uint32_t block_bytes = 1;
  std::uint32_t block_pixels = 1;
  std::uint32_t step_x = 1;
  std::uint32_t step_y = 1;
  Samples samples = Samples::bytes;

  std::uint64_t row_bytes(std::uint64_t width) const {
    const std::uint64_t row_samples = (width + step_x - 1) / step_x;
    return (row_samples + block_pixels - 1) / block_pixels * block_bytes;
  }
  std::uint32_t rows(std::uint32_t height) const { return (height + step_y - 1) / step_y; }
};

struct PixelFormat {
  const char* name;
  std::array<char, 5> code;
  unsigned bits;
  abi::CfaOrder cfa;
  std::vector<PlaneShape> planes;

  std::uint32_t fourcc() const {
    std::uint32_t value = 0;
    for (unsigned index = 0; index < 4; ++index) value |= static_cast<std::uint32_t>(code[index]) << 8 * index;
    return value;
  }
};

inline const std::vector<PixelFormat>& pixel_formats() {
  using Cfa = abi::CfaOrder;
  constexpr PlaneShape luma{};
  constexpr PlaneShape half{1, 1, 2, 2, Samples::chroma};
  constexpr PlaneShape half_pairs{2, 1, 2, 2, Samples::chroma};
  constexpr PlaneShape word{2, 1, 1, 1, Samples::words};
  constexpr PlaneShape raw10{5, 4};
  constexpr PlaneShape raw12{3, 2};
  static const std::vector<PixelFormat> formats{
      {"NV12", {"NV12"}, 8, Cfa::NONE, {luma, half_pairs}},
      {"NV21", {"NV21"}, 8, Cfa::NONE, {luma, half_pairs}},
      {"YU12", {"YU12"}, 8, Cfa::NONE, {luma, half, half}},
      {"YUYV", {"YUYV"}, 8, Cfa::NONE, {PlaneShape{4, 2, 1, 1, Samples::luma_chroma}}},
      {"UYVY", {"UYVY"}, 8, Cfa::NONE, {PlaneShape{4, 2, 1, 1, Samples::chroma_luma}}},
      {"RGB24", {"RGB3"}, 8, Cfa::NONE, {PlaneShape{3}}},
      {"BGR24", {"BGR3"}, 8, Cfa::NONE, {PlaneShape{3}}},
      {"ABGR8888", {"AB24"}, 8, Cfa::NONE, {PlaneShape{4}}},
      {"XRGB8888", {"XR24"}, 8, Cfa::NONE, {PlaneShape{4}}},
      {"R8", {"R8  "}, 8, Cfa::NONE, {luma}},
      {"R10", {"R10 "}, 10, Cfa::NONE, {word}},
      {"R12", {"R12 "}, 12, Cfa::NONE, {word}},
      {"R16", {"R16 "}, 16, Cfa::NONE, {word}},
      {"SRGGB10P", {"pRAA"}, 10, Cfa::RGGB, {raw10}},
      {"SGRBG10P", {"pgAA"}, 10, Cfa::GRBG, {raw10}},
      {"SGBRG10P", {"pGAA"}, 10, Cfa::GBRG, {raw10}},
      {"SBGGR10P", {"pBAA"}, 10, Cfa::BGGR, {raw10}},
      {"SRGGB12P", {"pRCC"}, 12, Cfa::RGGB, {raw12}},
      {"SGRBG12P", {"pgCC"}, 12, Cfa::GRBG, {raw12}},
      {"SGBRG12P", {"pGCC"}, 12, Cfa::GBRG, {raw12}},
      {"SBGGR12P", {"pBCC"}, 12, Cfa::BGGR, {raw12}},
  };
  return formats;
}

inline const PixelFormat& pixel_format(const std::string& name) {
  std::string known;
  for (const PixelFormat& format : pixel_formats()) {
    if (name == format.name) return format;
    known += std::string(" ") + format.name;
  }
  throw Usage("--format: expected one of" + known + ", found " + name);
}

struct Plane {
  std::uint64_t offset;
  std::uint64_t stride;
  std::uint32_t rows;
  std::uint64_t size_bytes;
};

struct Layout {
  const PixelFormat* pixel;
  std::uint32_t width;
  std::uint32_t height;
  std::vector<Plane> planes;
  std::uint64_t buffer_bytes;
};

constexpr std::uint32_t kMaxDimension = 1 << 15;  // the ABI's limits, which also keep every product below in u64
constexpr std::uint32_t kMaxBufferBytes = 1 << 30;

// Planes one after another. `stride`: bytes between rows of the first plane (the others follow in proportion, never
// below their own row), 0 for tight rows. `allocated_rows`: luma rows with room, 0 for just the picture's. Throws Usage
// for a picture that would not lie inside its planes.
inline Layout lay_out(const PixelFormat& pixel, std::uint32_t width, std::uint32_t height, std::uint32_t stride,
                      std::uint32_t allocated_rows) {
  Layout layout{&pixel, width, height, {}, 0};
  const PlaneShape& first = pixel.planes.front();
  if (width == 0 || height == 0 || width > kMaxDimension || height > kMaxDimension) {
    throw Usage("--size: expected 1..32768 pixels each way");
  }
  if (stride != 0 && (stride < first.row_bytes(width) || stride > kMaxBufferBytes)) {
    throw Usage("--stride: expected at least a row's " + std::to_string(first.row_bytes(width)) + " bytes");
  }
  if (allocated_rows != 0 && (allocated_rows < height || allocated_rows > kMaxDimension)) {
    throw Usage("--rows: expected at least the picture's " + std::to_string(height));
  }
  for (const PlaneShape& shape : pixel.planes) {
    std::uint64_t row_stride = shape.row_bytes(width);
    if (stride != 0) {
      const std::uint64_t parts = std::uint64_t{shape.step_x} * first.block_bytes;
      const std::uint64_t share = (std::uint64_t{stride} * shape.block_bytes + parts - 1) / parts;
      row_stride = &shape == &first ? stride : std::max(share, row_stride);
    }
    const std::uint64_t size = row_stride * shape.rows(allocated_rows == 0 ? height : allocated_rows);
    layout.planes.push_back({layout.buffer_bytes, row_stride, shape.rows(height), size});
    layout.buffer_bytes += size;
  }
  return layout;
}

// A diagonal grey ramp that moves four samples a frame: luma 16..235, which is legal in both ranges, chroma neutral.
class TestPicture {
 public:
  explicit TestPicture(const Layout& layout) : layout_(layout) {
    for (const PlaneShape& shape : layout.pixel->planes) {
      ramps_.push_back(ramp(shape, shape.row_bytes(layout.width), layout.pixel->bits));
    }
  }

  void write(std::byte* buffer, std::uint64_t frame) const {
    for (std::size_t index = 0; index < layout_.planes.size(); ++index) {
      const Plane& plane = layout_.planes[index];
      const PlaneShape& shape = layout_.pixel->planes[index];
      for (std::uint64_t row = 0; row < plane.rows; ++row) {
        const std::uint64_t shift = (row + frame * kShiftPerFrame) % kPeriod * kShiftBytes;
        std::memcpy(buffer + plane.offset + row * plane.stride, ramps_[index].data() + shift,
                    shape.row_bytes(layout_.width));
      }
    }
  }

 private:
  static constexpr std::uint64_t kShiftPerFrame = 4;
  static constexpr std::uint64_t kShiftBytes = 4;  // keeps the phase of 4-byte and 2-byte groups
  static constexpr std::uint64_t kBlack = 16, kPeriod = 220;  // code values 16..235

  // Long enough that every shift of one period still finds a whole row.
  static std::vector<std::uint8_t> ramp(const PlaneShape& shape, std::uint64_t row_bytes, unsigned bits) {
    std::vector<std::uint8_t> row(row_bytes + kPeriod * kShiftBytes);
    for (std::uint64_t at = 0; at < row.size(); ++at) {
      const std::uint64_t grey = kBlack + at / kShiftBytes % kPeriod;
      std::uint64_t value = grey;
      if (shape.samples == Samples::chroma) value = 128;
      if (shape.samples == Samples::luma_chroma && at % 2 == 1) value = 128;
      if (shape.samples == Samples::chroma_luma && at % 2 == 0) value = 128;
      if (shape.samples == Samples::words) value = (grey << (bits - 8)) >> (at % 2 * 8);
      row[at] = static_cast<std::uint8_t>(value);
    }
    return row;
  }

  const Layout& layout_;
  std::vector<std::vector<std::uint8_t>> ramps_;
};

}  // namespace fenced

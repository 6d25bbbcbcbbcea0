// One named output: where it lies in a ring slot, and its values as text.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "fenced.hpp"

namespace fenced {

// A binary float of `exponent_bits` and `fraction_bits` as double: IEEE 754 binary16 and bfloat16.
inline double widen(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int exponent_mask = (1 << exponent_bits) - 1, bias = exponent_mask >> 1;
  const int exponent = bits >> fraction_bits & exponent_mask;
  const double fraction = std::ldexp(bits & ((1 << fraction_bits) - 1), -fraction_bits);
  double magnitude = std::ldexp(1 + fraction, exponent - bias);
  if (exponent == 0) magnitude = std::ldexp(fraction, 1 - bias);
  if (exponent == exponent_mask) magnitude = fraction == 0 ? HUGE_VAL : std::nan("");
  return bits >> 15 ? -magnitude : magnitude;
}

// A view as the daemon described it: name, dtype, shape and unit come with the subscription, never from this program.
struct Tensor {
  explicit Tensor(abi::OutputView::Reader view)
      : name(view.getName().cStr()), unit(view.getUnit().cStr()), dtype(view.getDtype()), offset(view.getOffset()) {
    std::uint64_t size = item_bytes();
    for (const std::uint32_t length : view.getShape()) {
      shape.push_back(length);
      if (length != 0 && size > view.getSizeBytes() / length) size = view.getSizeBytes() + 1;  // no wrap
      else size *= length;
    }
    if (size != view.getSizeBytes()) throw Fault("output " + name + ": its shape and dtype do not fill its bytes");
    count = size / item_bytes();
  }

  // For instance lane_offset_m:float32[1,1]
  std::string describe() const {
    std::string text = name + ":" + name_of(dtype) + "[";
    for (std::size_t index = 0; index < shape.size(); ++index) {
      text += (index == 0 ? "" : ",") + std::to_string(shape[index]);
    }
    return text + "]";
  }

  // The values in a copied slot with their unit: `name=0.25 m`, `name=[1,2,3] m`, at most kShown of them.
  std::string format(const std::byte* slot) const {
    std::ostringstream text;
    text.precision(9);
    text << name << '=' << (count == 1 ? "" : "[");
    for (std::uint64_t index = 0; index < count && index < kShown; ++index) {
      if (index != 0) text << ',';
      write(text, slot + offset + index * item_bytes());
    }
    if (count > kShown) text << ",... " << count << " values";
    text << (count == 1 ? "" : "]") << ' ' << unit;
    return text.str();
  }

  std::string name;
  std::string unit;
  abi::DType dtype;
  std::vector<std::uint32_t> shape;
  std::uint64_t offset;
  std::uint64_t count = 0;

 private:
  static constexpr std::uint64_t kShown = 16;

  std::uint64_t item_bytes() const {
    switch (dtype) {
      case abi::DType::INT8:
      case abi::DType::UINT8:
      case abi::DType::BOOL8: return 1;
      case abi::DType::FLOAT16:
      case abi::DType::BFLOAT16:
      case abi::DType::INT16:
      case abi::DType::UINT16: return 2;
      case abi::DType::FLOAT32:
      case abi::DType::INT32:
      case abi::DType::UINT32: return 4;
      case abi::DType::INT64:
      case abi::DType::UINT64: return 8;
      default: throw Fault("output " + name + ": unknown dtype " + name_of(dtype));
    }
  }

  template <typename T>
  static T load(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }

  void write(std::ostream& text, const std::byte* at) const {
    switch (dtype) {
      case abi::DType::FLOAT32: text << load<float>(at); break;
      case abi::DType::FLOAT16: text << widen(load<std::uint16_t>(at), 5, 10); break;
      case abi::DType::BFLOAT16: text << widen(load<std::uint16_t>(at), 8, 7); break;
      case abi::DType::INT8: text << int{load<std::int8_t>(at)}; break;
      case abi::DType::UINT8: text << int{load<std::uint8_t>(at)}; break;
      case abi::DType::BOOL8: text << (load<std::uint8_t>(at) != 0 ? "true" : "false"); break;
      case abi::DType::INT16: text << load<std::int16_t>(at); break;
      case abi::DType::UINT16: text << load<std::uint16_t>(at); break;
      case abi::DType::INT32: text << load<std::int32_t>(at); break;
      case abi::DType::UINT32: text << load<std::uint32_t>(at); break;
      case abi::DType::INT64: text << load<std::int64_t>(at); break;
      case abi::DType::UINT64: text << load<std::uint64_t>(at); break;
      default: break;  // refused when the tensor was made
    }
  }
};

}  // namespace fenced

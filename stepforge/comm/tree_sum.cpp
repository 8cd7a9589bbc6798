// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/tree_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Elements summed at a time, few enough that all levels of the tree stay in the L1 cache.
constexpr std::size_t kBlockElements = 512;
/// Enough levels for any int number of sources.
constexpr std::size_t kMaxLevels = 32;

/// An element type in memory, the type in which it is summed, and the conversions between them.
template <typename Number>
struct Plain {
  using Stored = Number;
  using Sum = Number;
  static Sum load(Stored value) { return value; }
  static Stored store(Sum value) { return value; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }
  static Stored store(Sum value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    const uint32_t quiet = bits | 0x400000;
    return static_cast<Stored>(((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded) >> 16);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored value) {
    // The exponent's bias differs by 112: scaling by a power of two is exact, also for subnormal numbers.
    const uint32_t magnitude = static_cast<uint32_t>(value & 0x7FFF) << 13;
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
    const uint32_t special = magnitude | 0x7F800000;  // infinity and NaN
    const uint32_t bits = magnitude >= 0x0F800000 ? special : std::bit_cast<uint32_t>(scaled);
    return std::bit_cast<float>(bits | static_cast<uint32_t>(value & 0x8000) << 16);
  }
  static Stored store(Sum value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    const uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t half = 0;
    if (magnitude > 0x7F800000) {
      half = 0x7E00;                       // NaN
    } else if (magnitude >= 0x477FF000) {  // rounds to 65536 or more
      half = 0x7C00;
    } else if (magnitude < 0x38800000) {
      // Subnormal: fp32 numbers from 0.5 to 1 have the spacing of subnormal fp16 numbers, 2^-24, so the
      // addition rounds.
      half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000;
    } else {
      half = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    }
    return static_cast<Stored>(sign | half);
  }
};

template <typename Element>
class TreeSum {
 public:
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;

  TreeSum(std::span<const std::byte* const> sources, std::byte* output)
      : sources_(sources), output_(output) {}

  void run(std::size_t elements) {
    for (std::size_t first = 0; first < elements; first += kBlockElements) {
      sum_block(first, std::min(kBlockElements, elements - first));
    }
  }

 private:
  using Block = std::array<Sum, kBlockElements>;

  static Sum value(const std::byte* source, std::size_t i) {
    Stored stored;
    std::memcpy(&stored, source + i * sizeof(Stored), sizeof(Stored));
    return Element::load(stored);
  }

  void sum_block(std::size_t first, std::size_t count) {
    const std::size_t leaves = sources_.size();
    for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
      const bool is_last = leaf + 1 == leaves;
      const std::byte* source = sources_[leaf] + first * sizeof(Stored);
      if (leaf % 2 == 1) {
        const std::byte* before = sources_[leaf - 1] + first * sizeof(Stored);
        for (std::size_t i = 0; i < count; ++i) current_[i] = value(before, i) + value(source, i);
      } else if (is_last) {
        for (std::size_t i = 0; i < count; ++i) current_[i] = value(source, i);
      } else {
        continue;  // summed together with the next source
      }
      join_levels(leaf, is_last, count);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const Stored stored = Element::store(current_[i]);
      std::memcpy(output_ + (first + i) * sizeof(Stored), &stored, sizeof(Stored));
    }
  }

  /// Adds the stashed sums of complete subtrees, as when a binary counter carries; stash_[level] holds the
  /// sum of 2^level sources. Level 0 is already summed. The same order as in step/ordered_pass.cpp.
  void join_levels(std::size_t leaf, bool is_last, std::size_t count) {
    for (std::size_t level = 1; (leaf >> level) != 0 || !is_last; ++level) {
      Block& stash = stash_[level];
      if (((leaf >> level) & 1) != 0) {
        for (std::size_t i = 0; i < count; ++i) current_[i] += stash[i];
      } else if (!is_last) {
        std::copy_n(current_.begin(), count, stash.begin());
        return;
      }
    }
  }

  std::span<const std::byte* const> sources_;
  std::byte* output_;
  Block current_;
  std::array<Block, kMaxLevels> stash_;
};

template <typename Element>
void sum_as(std::span<const std::byte* const> sources, std::byte* output, std::size_t bytes) {
  TreeSum<Element>(sources, output).run(bytes / sizeof(typename Element::Stored));
}

}  // namespace

void check_sum(std::size_t bytes, DType dtype) {
  if (!is_floating_point(dtype) && dtype != DType::i64 && dtype != DType::i32) {
    throw Error(
        format("{} values cannot be summed over ranks: only fp64, fp32, bf16, fp16, int64 and int32 can",
               dtype_name(dtype)));
  }
  if (bytes % static_cast<std::size_t>(dtype_bytes(dtype)) != 0) {
    throw Error(format("{} bytes cannot be summed over ranks: they are not a whole number of {} elements",
                       bytes, dtype_name(dtype)));
  }
}

void tree_sum(std::span<const std::byte* const> sources, std::byte* output, std::size_t bytes, DType dtype) {
  check_sum(bytes, dtype);
  switch (dtype) {
    case DType::f64:
      return sum_as<Plain<double>>(sources, output, bytes);
    case DType::f32:
      return sum_as<Plain<float>>(sources, output, bytes);
    case DType::bf16:
      return sum_as<BFloat16>(sources, output, bytes);
    case DType::f16:
      return sum_as<Float16>(sources, output, bytes);
    case DType::i64:
      return sum_as<Plain<uint64_t>>(sources, output, bytes);
    default:
      return sum_as<Plain<uint32_t>>(sources, output, bytes);
  }
}

}  // namespace stepforge

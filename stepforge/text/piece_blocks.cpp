// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/piece_blocks.h"

#include <bit>

#include "stepforge/text/contraction.h"
#include "stepforge/text/known_patterns.h"

namespace stepforge {

namespace {

/// Calls `visit` with the place of each bit, in order.
template <typename Visit>
void for_each_bit(uint64_t bits, size_t w, const Visit& visit) {
  for (; bits != 0; bits &= bits - 1) visit(w * 64 + static_cast<size_t>(std::countr_zero(bits)));
}

/// Pieces that begin with a contraction end after it.
template <bool kAnyCase>
void cut_contractions(std::string_view text, const CharacterMasks& masks, ByteBits& starts) {
  for (size_t w = 0; w < masks.words; ++w) {
    for_each_bit(masks.apostrophe[w] & starts[w] & masks.letter.after(w), w, [&](size_t at) {
      const size_t length = contraction<kAnyCase>(text.substr(at));
      if (length == 0) return;
      starts.clear(at + 1);
      if (at + length < masks.size) starts.set(at + length);
    });
  }
}

/// kGpt2Pattern: pieces are runs of one class. The last character of white space is apart, and belongs to the next piece if
/// it is a blank.
void gpt2_starts(const CharacterMasks& masks, ByteBits& starts) {
  ByteBits solid;
  for (size_t w = 0; w < masks.words; ++w) solid[w] = masks.letter[w] | masks.number[w] | masks.other[w];
  for (size_t w = 0; w < masks.words; ++w) {
    const auto first = [&](const ByteBits& kind) { return kind[w] & ~kind.before(w); };
    const uint64_t words = first(masks.letter) | first(masks.number) | first(masks.other);
    const uint64_t last_space = masks.space[w] & masks.next(solid, w);
    starts[w] = (words & ~masks.blank.before(w)) | first(masks.space) | last_space;
  }
  for (size_t w = 0; w < masks.words && !masks.is_ascii; ++w) starts[w] &= ~masks.continuation[w];
}

/// kLlama3Pattern and kQwen2Pattern. White space is what punctuation does not end with.
class Llama3Starts {
 public:
  Llama3Starts(const CharacterMasks& masks, ByteBits& starts) : masks_(masks), starts_(starts) {
    find_space();
    for (size_t w = 0; w < masks_.words; ++w) find_starts(w);
    for (size_t w = 0; w < masks_.words; ++w) join_lines(w);
  }

  /// Cuts runs of numbers.
  template <int kDigits>
  void cut_numbers() {
    int passed = 0;
    for (size_t w = 0; w < masks_.words; ++w) {
      for_each_bit(masks_.number[w] & ~masks_.continuation[w], w, [&](size_t at) {
        if (starts_.at(at)) passed = 0;
        if (passed == kDigits) {
          starts_.set(at);
          passed = 0;
        }
        ++passed;
      });
    }
  }

 private:
  /// Line breaks right after punctuation belong to it: adding one where their run begins carries through the run.
  void find_space() {
    uint64_t carry = 0;
    for (size_t w = 0; w < masks_.words; ++w) {
      const uint64_t breaks = masks_.line_break[w];
      uint64_t sum = 0;
      const bool first = __builtin_add_overflow(breaks, breaks & masks_.other.before(w), &sum);
      const bool second = __builtin_add_overflow(sum, carry, &sum);
      carry = first || second ? 1 : 0;
      line_break_[w] = breaks & sum;
      space_[w] = masks_.space[w] & ~(breaks & ~sum);
      inner_space_[w] = masks_.space[w] & ~breaks;
      solid_[w] = masks_.letter[w] | masks_.number[w] | masks_.other[w];
    }
  }

  void find_starts(size_t w) {
    const auto first = [w](const ByteBits& kind) { return kind[w] & ~kind.before(w); };
    const uint64_t other = first(masks_.other) & ~masks_.blank.before(w);
    // All bytes of a character of punctuation where a piece may begin that goes on with letters.
    const uint64_t continued = masks_.continuation[w];
    uint64_t leading = other | (leading_.before(w) & continued);
    for (int i = 0; i < 3; ++i) leading |= (leading << 1) & continued;
    leading_[w] = leading;
    const uint64_t letter = first(masks_.letter) & ~inner_space_.before(w) & ~leading_.before(w);
    const uint64_t last_space = inner_space_[w] & masks_.next(solid_, w);
    const uint64_t after_break = inner_space_[w] & line_break_.before(w);
    starts_[w] =
        (letter | other | first(masks_.number) | first(space_) | last_space | after_break) & ~continued;
  }

  /// White space between line breaks belongs to one piece with them.
  void join_lines(size_t w) {
    for_each_bit(inner_space_[w] & masks_.line_break.after(w), w, [&](size_t at) {
      while (at > 0 && inner_space_.at(at - 1)) --at;
      if (at > 0 && line_break_.at(at - 1)) starts_.clear(at);
    });
  }

  const CharacterMasks& masks_;
  ByteBits& starts_;
  ByteBits space_;        ///< without the line breaks that belong to punctuation
  ByteBits line_break_;   ///< those of space_
  ByteBits inner_space_;  ///< without line breaks
  ByteBits solid_;        ///< what is not white space
  ByteBits leading_;
};

/// Where the white space at the end of a block begins: what it belongs to depends on what follows.
size_t end_of_certainty(const CharacterMasks& masks) {
  for (size_t w = masks.words; w-- > 0;) {
    const uint64_t solid = masks.letter[w] | masks.number[w] | masks.other[w];
    if (solid != 0) return w * 64 + 64 - static_cast<size_t>(std::countl_zero(solid));
  }
  return 0;
}

void collect_ends(std::string_view text, const CharacterMasks& masks, const ByteBits& starts,
                  PieceEnds& ends) {
  const bool is_whole = masks.size == text.size();
  const size_t limit = is_whole ? masks.size : end_of_certainty(masks);
  size_t count = 0;
  for (size_t w = 0; w * 64 <= limit && w < masks.words; ++w) {
    const uint64_t bits = w == 0 ? starts[w] & ~uint64_t{1} : starts[w];
    for_each_bit(bits, w, [&](size_t at) { ends.ends[count++] = at; });
  }
  while (count > 0 && ends.ends[count - 1] > limit) --count;
  if (is_whole) ends.ends[count++] = masks.size;
  ends.count = count;
}

void gpt2_block(std::string_view text, PieceEnds& ends) {
  const CharacterMasks masks(text);
  ByteBits starts;
  gpt2_starts(masks, starts);
  cut_contractions<false>(text, masks, starts);
  collect_ends(text, masks, starts, ends);
}

template <int kDigits>
void llama3_block(std::string_view text, PieceEnds& ends) {
  const CharacterMasks masks(text);
  ByteBits starts;
  Llama3Starts(masks, starts).template cut_numbers<kDigits>();
  cut_contractions<true>(text, masks, starts);
  collect_ends(text, masks, starts, ends);
}

}  // namespace

BlockScanner block_scanner_for(std::string_view pattern) {
  if (pattern == kLlama3Pattern) return llama3_block<3>;
  if (pattern == kQwen2Pattern) return llama3_block<1>;
  if (pattern == kGpt2Pattern) return gpt2_block;
  return nullptr;
}

}  // namespace stepforge

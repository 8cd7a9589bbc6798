// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <array>
#include <cstdint>
#include <new>

#include <pcre2.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/pattern_rewriter.h"

namespace stepforge {

namespace {

constexpr size_t kMaxPatternBytes = 4096;
// A piece needs a few steps per character; a pattern that backtracks exponentially reaches this limit.
constexpr size_t kBaseMatchSteps = 10'000'000;
constexpr size_t kMatchStepsPerByte = 4;
constexpr size_t kMaxJitStackBytes = size_t{4} << 20;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR8, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR8 units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR8>(text.data());
}

template <typename T>
T* require_memory(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

void require_short(std::string_view pattern, const std::string& source) {
  if (pattern.size() <= kMaxPatternBytes) return;
  throw FormatError(format("{}: a regular expression of {} bytes; at most {} are accepted", source,
                           pattern.size(), kMaxPatternBytes));
}

std::shared_ptr<pcre2_code> compile(const std::string& pattern, const std::string& source,
                                    uint32_t more_options = 0) {
  const std::shared_ptr<pcre2_compile_context> context(require_memory(pcre2_compile_context_create(nullptr)),
                                                       pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code =
      pcre2_compile(units(pattern), pattern.size(), options | more_options, &error, &offset, context.get());
  if (code == nullptr) {
    throw FormatError(format("{}: regular expression \"{}\": {} (at byte {})", source, pattern,
                             pcre2_message(error), offset));
  }
  const std::shared_ptr<pcre2_code> compiled(code, pcre2_code_free);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return compiled;
}

}  // namespace

struct SplitPattern::Scratch::State {
  State()
      : match(require_memory(pcre2_match_data_create(1, nullptr))),
        context(require_memory(pcre2_match_context_create(nullptr))),
        // Null if the machine does not allow just-in-time compilation; matching then uses the interpreter.
        stack(pcre2_jit_stack_create(size_t{32} << 10, kMaxJitStackBytes, nullptr)) {
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~State() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

SplitPattern::Scratch::Scratch() : state_(std::make_shared<State>()) {}

SplitPattern::SplitPattern(std::string_view pattern, const std::string& source, bool use_scanner)
    : source_(format("{}: regular expression {}", source, quoted_for_message(pattern))),
      scanner_(use_scanner ? scanner_for(pattern) : nullptr),
      block_scanner_(use_scanner ? block_scanner_for(pattern) : nullptr) {
  require_short(pattern, source);
  const std::shared_ptr<pcre2_code> code = compile(rewrite_pattern(pattern, source), source);
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    throw FormatError(format(
        "{}: regular expression \"{}\" can match the empty string; that is not supported", source, pattern));
  }
  code_ = code;
}

SplitPattern SplitPattern::search(std::string_view pattern, const std::string& source) {
  require_short(pattern, source);
  return {source, compile(std::string(pattern), source, PCRE2_MULTILINE)};
}

std::optional<SplitPattern::Match> SplitPattern::find(std::string_view text, size_t from,
                                                      Scratch& scratch) const {
  const Scratch::State& state = *scratch.state_;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const size_t steps = std::min<size_t>(kBaseMatchSteps + kMatchStepsPerByte * text.size(), UINT32_MAX);
  pcre2_set_match_limit(state.context, static_cast<uint32_t>(steps));
  const int found =
      pcre2_match(code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, state.match, state.context);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) {
    throw Error(format("{}: matching at byte {} of a text failed: {}", source_, from, pcre2_message(found)));
  }
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(state.match);
  return Match{span[0], span[1]};
}

size_t SplitPattern::piece_length(std::string_view text, size_t position, Scratch& scratch) const {
  if (scanner_ != nullptr) return scanner_(text, position);
  const std::optional<Match> match = find(text, position, scratch);
  if (!match) return text.size() - position;
  return (match->begin > position ? match->begin : match->end) - position;
}

void SplitPattern::next_ends(std::string_view text, size_t position, Scratch& scratch,
                             PieceEnds& ends) const {
  ends.count = 0;
  if (block_scanner_ != nullptr) block_scanner_(text.substr(position), ends);
  if (ends.count == 0) ends.ends[ends.count++] = piece_length(text, position, scratch);
}

}  // namespace stepforge

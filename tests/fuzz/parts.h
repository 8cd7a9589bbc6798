// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share: a rule that ends the run, and an input in several parts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge::fuzz {

inline void require(bool rule) {
  if (!rule) std::abort();
}

/// The parts of an input, which bytes 0xFF separate; those that are missing are empty, what is too much belongs to the
/// last.
template <size_t kCount>
std::array<std::string, kCount> parts_of(const uint8_t* data, size_t size) {
  std::array<std::string, kCount> parts;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (size_t i = 0; i < kCount; ++i) {
    const size_t end = i + 1 == kCount ? rest.size() : rest.find('\xFF');
    parts[i] = rest.substr(0, end);
    rest.remove_prefix(end < rest.size() ? end + 1 : rest.size());
  }
  return parts;
}

/// Texts become ids of the vocabulary and back, or there is an Error.
inline void use_tokenizer(const Tokenizer& tokenizer) {
  const int32_t size = tokenizer.vocab_size();
  for (const std::string_view text :
       {"", " The 3rd caf\u00E9's <s>x</s>\n\n \u6F22\u5B57\U0001F469\u200D\U0001F467 e\u0301\u0323",
        "aaaaaaaaab"}) {
    try {
      const std::vector<int32_t> ids = tokenizer.encode(text);
      for (const int32_t id : ids) require(id >= 0 && id < size);
      StreamDecoder stream(tokenizer);
      std::string decoded;
      for (const int32_t id : ids) decoded += stream.push(id);
      decoded += stream.finish();
      require(find_invalid_utf8(decoded) == std::string_view::npos);
    } catch (const Error&) {
      continue;
    }
  }
}

/// Bytes make a tokenizer that works, or an Error.
template <typename Load>
int try_tokenizer(const Load& load) {
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = load();
  } catch (const Error&) {
    return 0;
  }
  use_tokenizer(*tokenizer);
  return 0;
}

}  // namespace stepforge::fuzz

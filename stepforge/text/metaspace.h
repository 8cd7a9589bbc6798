// SPDX-License-Identifier: Apache-2.0
// The options of "Metaspace", which is a pre-tokenizer and a decoder.
#pragma once

#include <string>

#include "stepforge/base/json_reader.h"

namespace stepforge {

struct Metaspace {
  /// Throws FormatError naming the value.
  explicit Metaspace(const JsonReader& component);

  /// One character, which stands for a space.
  std::string replacement;
  /// Whether it is put before the words of a text, or before the first.
  enum class Prepend { never, first, always } prepend = Prepend::always;
  bool split = true;
};

}  // namespace stepforge

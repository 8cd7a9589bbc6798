// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this room and of those after it: folders with files, all texts of a source.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/records/text_source.h"
#include "stepforge/text/tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {

/// All documents of a source, read in chunks of about `chunk_bytes`.
inline std::vector<std::string> texts_of(const TextSource& source, int64_t chunk_bytes = 1 << 20) {
  std::vector<std::string> documents;
  for (size_t file = 0; file < source.files().size(); ++file) {
    const auto chunks = source.chunks(file, chunk_bytes);
    while (const auto chunk = chunks->next())
      source.read(*chunk, [&](std::string_view text) { documents.emplace_back(text); });
  }
  return documents;
}

/// The same with "! " and the message, from the name of the file on, in place of each record that is malformed.
inline std::vector<std::string> texts_and_faults_of(const TextSource& source, int64_t chunk_bytes = 1 << 20) {
  std::vector<std::string> found;
  const auto on_fault = [&](const auto& message) {
    const std::string text = message();
    found.push_back("! " + text.substr(text.rfind('/') + 1));
  };
  for (size_t file = 0; file < source.files().size(); ++file) {
    const auto chunks = source.chunks(file, chunk_bytes);
    while (const auto chunk = chunks->next())
      source.read(*chunk, [&](std::string_view text) { found.emplace_back(text); }, on_fault);
  }
  return found;
}

/// The message of the error that opening a source or reading all of it must throw.
template <typename Exception>
std::string source_message(const TextSourceOptions& options, int64_t chunk_bytes = 1 << 20) {
  return message_of<Exception>([&] { texts_of(TextSource(options), chunk_bytes); });
}

}  // namespace stepforge::testing

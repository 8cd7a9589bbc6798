// SPDX-License-Identifier: Apache-2.0
// Opens files of documents or of conversations by the name of their format.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/data/record_format.h"
#include "stepforge/data/text_source.h"

namespace stepforge {

struct RecordOptions {
  /// "auto" (by the name), "text", "jsonl", "csv" or "mds"; or a layout of chat data (data/conversation.h), which is
  /// read from JSON Lines or tables.
  std::string format = "auto";
  std::string field = "text";      ///< name of the text field of a JSON line
  std::string documents = "file";  ///< what a document of a text file is: "file", "line" or "paragraph"
  TextEnds ends{};
  TextFilterRules filter{};                  ///< which documents are kept
  std::string loss_on = "assistant";         ///< of chat data: what counts in the loss
  std::filesystem::path tokenizer_folder{};  ///< where the chat template lies, unless the next is given
  std::filesystem::path chat_template{};     ///< a file
};

/// Where records come from, and what they become.
struct Records {
  std::unique_ptr<const TextSource> source;
  std::unique_ptr<const RecordFormat> format;
};

/// Must not outlive `tokenizer`. Throws UsageError for unknown words and missing files, and what reading the chat
/// template throws.
Records open_records(const std::vector<std::filesystem::path>& paths, const Tokenizer& tokenizer,
                     const RecordOptions& options);

}  // namespace stepforge

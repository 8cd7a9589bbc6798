// SPDX-License-Identifier: Apache-2.0
// Opens files of documents or of conversations by the name of their format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/records/conversation.h"
#include "stepforge/records/document_limit.h"
#include "stepforge/records/record_format.h"
#include "stepforge/records/text_source.h"

namespace stepforge {

struct RecordOptions {
  /// That of the files (formats_of()), or a layout of chat data (records/conversation.h), which is read from "records".
  std::string format = "auto";
  std::string field = "text";      ///< name of the text field of a JSON line
  std::string documents = "file";  ///< what a document of a text file is: "file", "line" or "paragraph"
  TextEnds ends{};
  TextFilterRules filter{};           ///< which documents are kept
  std::string loss_on = "assistant";  ///< of chat data: what counts in the loss
  bool pairs =
      false;  ///< whether records are pairs of answers (ChatLayout::preference), and not single texts
  bool unpaired =
      false;  ///< whether they are single answers that are judged (ChatLayout::unpaired_preference)
  /// Name of a data set in LLaMA-Factory's dataset_info.json, which is the path then (records/dataset_info.h); it says the
  /// files, the format and the keys.
  std::string dataset{};
  ChatKeys keys{};                           ///< of chat data: what the parts of a record are called
  DocumentLimit limit{};                     ///< what becomes of long documents
  std::filesystem::path tokenizer_folder{};  ///< where the chat template lies, unless the next is given
  std::filesystem::path chat_template{};     ///< a file
};

/// The files of a source.
struct RecordFiles {
  std::unique_ptr<const TextSource> source;
  RecordOptions options;    ///< with what an entry of dataset_info.json says
  int64_t max_records = 0;  ///< the first that are used; 0 = all
};

/// Throws UsageError for unknown words and missing files, and what reading dataset_info.json throws.
RecordFiles open_record_files(const std::vector<std::filesystem::path>& paths, const RecordOptions& options);

/// What the records become. Must not outlive `tokenizer`. Throws UsageError for unknown words and unless options.pairs and
/// options.unpaired say what these are, and what reading the chat template throws.
std::unique_ptr<const RecordFormat> make_record_format(const Tokenizer& tokenizer,
                                                       const RecordOptions& options);

/// Where records come from, and what they become.
struct Records {
  std::unique_ptr<const TextSource> source;
  std::unique_ptr<const RecordFormat> format;
  int64_t max_records = 0;  ///< the first that are used; 0 = all
};

/// Both of the above.
Records open_records(const std::vector<std::filesystem::path>& paths, const Tokenizer& tokenizer,
                     const RecordOptions& options);

}  // namespace stepforge

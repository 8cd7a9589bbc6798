// SPDX-License-Identifier: Apache-2.0
// What `stepforge finetune` finds out about data before it chooses settings: the format, the lengths, a question to sample.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/files.h"
#include "stepforge/base/json.h"
#include "stepforge/config/config.h"
#include "stepforge/records/conversation.h"
#include "stepforge/records/records.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// How the files of a source are read.
struct FoundFormat {
  std::optional<ChatLayout> layout{};  ///< empty: texts
  bool is_plain = false;               ///< text files, whose documents are paragraphs
  bool takes_no_template = false;      ///< pairs of plain texts
  std::string because{};               ///< "its records have messages"
};

/// The format by the keys of a record. Throws UsageError naming the keys if it has those of no format; `place` names it.
FoundFormat format_of_record(const Json& record, const std::string& place);

/// The format of a file, folder or pattern, by its names and its first record. Throws what reading it throws, and as above.
FoundFormat find_format(const std::filesystem::path& path);

/// A sample of the documents of a source, from the beginning.
struct DataStudy {
  std::vector<int64_t> lengths;  ///< in tokens, ascending
  bool is_whole = true;          ///< all documents are among them
  int64_t documents = 0;         ///< of the source; an estimate unless is_whole
  /// A record's hash, by which it is held out, and the first message of a user in it.
  struct Question {
    Hash128 hash;
    std::string text;
  };
  std::vector<Question> questions;  ///< of the first conversations

  /// The length that `share` of the documents do not exceed. There must be documents.
  int64_t length_of(double share) const;
};

/// Reads up to `limit` documents. `options`: how the run reads them. Throws what reading records throws, with their place.
DataStudy study_data(const std::filesystem::path& path, const RecordOptions& options,
                     const Tokenizer& tokenizer, int64_t limit);

}  // namespace stepforge

// SPDX-License-Identifier: Apache-2.0
// The tokens of a model by id and by spelling.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json_reader.h"

namespace stepforge {

/// Ids are below this. A larger table would take gigabytes because of one number in a file.
inline constexpr int64_t kMaxVocabulary = 4'000'000;

/// Immutable after construction; may be shared between threads.
class Vocabulary {
 public:
  /// Reads {"spelling": id, ...}; ids may have holes. Throws FormatError for an empty spelling, for an id used twice
  /// and for one of kMaxVocabulary or more.
  explicit Vocabulary(const JsonReader& vocab);

  /// The ids are the positions. Of equal spellings find() returns the last, as Hugging Face does.
  explicit Vocabulary(std::vector<std::string> pieces);

  /// How many tokens there are.
  int32_t count() const { return count_; }
  /// Above all ids.
  int32_t id_end() const { return static_cast<int32_t>(pieces_.size()); }
  bool contains(int32_t id) const { return id >= 0 && id < id_end() && !piece(id).empty(); }
  /// The spelling of an id below id_end(); "" in a hole.
  const std::string& piece(int32_t id) const { return pieces_[static_cast<size_t>(id)]; }

  std::optional<int32_t> find(std::string_view piece) const;

 private:
  void make_index();
  size_t slot_of(std::string_view piece) const;

  std::vector<std::string> pieces_;
  int32_t count_ = 0;
  /// Open addressing: ids, or -1.
  std::vector<int32_t> slots_;
};

/// The ids of "<0x00>" to "<0xFF>", -1 where there is none.
std::vector<int32_t> byte_token_ids(const Vocabulary& vocabulary);

}  // namespace stepforge

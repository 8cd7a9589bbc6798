// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/vocabulary.h"

#include <algorithm>
#include <functional>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

int64_t checked_id(const JsonReader& vocab, const std::string& piece, const Json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocabulary)) {
    vocab.fail(format("{} has the id {}; ids must be 0 to {}", json_excerpt(Json(piece)), json_excerpt(value),
                      kMaxVocabulary - 1));
  }
  return value.get<int64_t>();
}

}  // namespace

Vocabulary::Vocabulary(const JsonReader& vocab) {
  const size_t count = vocab.object().json().size();
  if (static_cast<int64_t>(count) > kMaxVocabulary)
    vocab.fail(format("{} entries; at most {} are accepted", count, kMaxVocabulary));
  int64_t end = 0;
  for (const auto& [piece, value] : vocab.json().items())
    end = std::max(end, checked_id(vocab, piece, value) + 1);
  pieces_.resize(static_cast<size_t>(end));
  for (const auto& [piece, value] : vocab.json().items()) {
    if (piece.empty()) vocab.fail("an empty token");
    std::string& place = pieces_[value.get<size_t>()];
    if (!place.empty()) {
      vocab.fail(format("both {1} and {2} have the id {0}", json_excerpt(value), json_excerpt(Json(place)),
                        json_excerpt(Json(piece))));
    }
    place = piece;
  }
  make_index();
}

Vocabulary::Vocabulary(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {
  make_index();
}

void Vocabulary::make_index() {
  size_t capacity = 16;
  while (capacity < pieces_.size() * 2) capacity *= 2;
  slots_.assign(capacity, -1);
  for (int32_t id = 0; id < id_end(); ++id) {
    if (piece(id).empty()) continue;
    slots_[slot_of(piece(id))] = id;
    ++count_;
  }
}

size_t Vocabulary::slot_of(std::string_view piece) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = std::hash<std::string_view>{}(piece)&mask;
  while (slots_[slot] >= 0 && this->piece(slots_[slot]) != piece) slot = (slot + 1) & mask;
  return slot;
}

std::optional<int32_t> Vocabulary::find(std::string_view piece) const {
  const int32_t id = slots_[slot_of(piece)];
  return id < 0 ? std::nullopt : std::optional(id);
}

std::vector<int32_t> byte_token_ids(const Vocabulary& vocabulary) {
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte)
    ids.push_back(vocabulary.find(format("<0x{:02X}>", byte)).value_or(-1));
  return ids;
}

}  // namespace stepforge

// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/character_map.h"

#include <cstring>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/base64.h"
#include "stepforge/text/unicode_forms.h"

namespace stepforge {

namespace {

// Hugging Face looks up whole grapheme clusters only if they are shorter.
constexpr size_t kLongCluster = 6;

size_t character_count(std::string_view text) {
  size_t count = 0;
  for (; !text.empty(); ++count) text.remove_prefix(utf8_sequence_length(text));
  return count;
}

}  // namespace

CharacterMap::CharacterMap(const JsonReader& charsmap) {
  const auto bytes = decode_base64(charsmap.text());
  if (!bytes) charsmap.fail("this is not base64");
  uint32_t size = 0;
  if (bytes->size() < sizeof size)
    charsmap.fail(format("a character map of {} bytes is cut off", bytes->size()));
  std::memcpy(&size, bytes->data(), sizeof size);
  size = size / 4 * 4;
  if (size > bytes->size() - sizeof size)
    charsmap.fail(format("its trie should have {} bytes, but {} follow", size, bytes->size() - sizeof size));
  trie_.resize(size / 4);
  if (size > 0) std::memcpy(trie_.data(), bytes->data() + sizeof size, size);
  texts_ = bytes->substr(sizeof size + size);
  if (find_invalid_utf8(texts_) != std::string_view::npos) charsmap.fail("its texts are not UTF-8");
}

std::optional<std::string_view> CharacterMap::find(std::string_view text) const {
  const auto offset = [](uint32_t unit) { return size_t{unit >> 10} << ((unit & 0x200) >> 6); };
  if (trie_.empty()) return std::nullopt;
  size_t at = offset(trie_[0]);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    at ^= byte;
    if (byte == 0 || at >= trie_.size() || (trie_[at] & 0x800000FF) != byte) return std::nullopt;
    const uint32_t unit = trie_[at];
    at ^= offset(unit);
    if ((unit & 0x100) == 0) continue;
    const size_t begin = at < trie_.size() ? trie_[at] & 0x7FFFFFFF : texts_.size() + 1;
    if (begin > texts_.size()) return std::nullopt;
    const std::string_view rest = std::string_view(texts_).substr(begin);
    if (!rest.empty() && (static_cast<uint8_t>(rest.front()) & 0xC0) == 0x80) return std::nullopt;
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

void CharacterMap::for_each_part(std::string_view text,
                                 const std::function<bool(std::string_view, std::string_view)>& use) const {
  GraphemeClusters clusters(text);
  while (const auto cluster = clusters.next()) {
    std::string_view rest = *cluster;
    if (rest.size() < kLongCluster) {
      if (const auto found = find(rest)) {
        if (!use(rest, *found)) return;
        continue;
      }
    }
    while (!rest.empty()) {
      const std::string_view character = rest.substr(0, utf8_sequence_length(rest));
      if (!use(character, find(character).value_or(character))) return;
      rest.remove_prefix(character.size());
    }
  }
}

std::string CharacterMap::apply(std::string_view text, size_t max_bytes) const {
  std::string result;
  for_each_part(text, [&](std::string_view, std::string_view replacement) {
    result += replacement;
    return result.size() <= max_bytes;
  });
  return result;
}

/// Hugging Face counts characters: a new one comes from the old one at the same place, or, if there are more, from
/// the last; a part that becomes nothing is counted with the new character before it, if there is one.
size_t CharacterMap::head(std::string_view text, size_t head) const {
  struct New {
    size_t bytes;
    bool added;
    size_t removed;
  };
  std::vector<New> characters;
  size_t seen = 0;
  for_each_part(text, [&](std::string_view part, std::string_view replacement) {
    const bool beyond = seen >= head && !characters.empty();
    const size_t old_count = character_count(part);
    size_t count = 0;
    for (; !replacement.empty(); ++count) {
      const size_t length = utf8_sequence_length(replacement);
      characters.push_back({length, count >= old_count, 0});
      replacement.remove_prefix(length);
    }
    if (count < old_count && !characters.empty()) characters.back().removed += old_count - count;
    seen += part.size();
    return !beyond;
  });
  size_t size = 0;
  size_t offset = 0;
  for (const New& character : characters) {
    const bool inside = character.added ? offset == 0 || offset - 1 < head : offset < head;
    if (!inside) break;
    size += character.bytes;
    for (size_t i = character.added ? 1 : 0; i <= character.removed && offset < text.size(); ++i)
      offset += utf8_sequence_length(text.substr(offset));
  }
  return size;
}

}  // namespace stepforge

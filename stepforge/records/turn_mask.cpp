// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/turn_mask.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

struct MaskKey {
  std::string_view name;
  bool is_number;  ///< 0 or 1; otherwise true or false
  bool excludes;   ///< what true or 1 says
};

constexpr std::array<MaskKey, 6> kKeys = {{{"loss", false, false},
                                           {"train", false, false},
                                           {"training", false, false},
                                           {"weight", true, false},
                                           {"loss_weight", true, false},
                                           {"masked", false, true}}};

const MaskKey* find_key(std::string_view name) {
  const auto* found =
      std::find_if(kKeys.begin(), kKeys.end(), [&](const MaskKey& key) { return key.name == name; });
  return found == kKeys.end() ? nullptr : found;
}

bool looks_like_mask(std::string_view name) {
  constexpr std::array<std::string_view, 6> kWords = {"mask", "loss", "weight", "train", "learn", "label"};
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return lower.find(word) != std::string::npos; });
}

bool flag_of(const MaskKey& key, const Json& value, const std::string& place) {
  if (!key.is_number) {
    if (!value.is_boolean()) throw FormatError(format("{}.{} is not true or false", place, key.name));
    return value.get<bool>();
  }
  if (!value.is_number() || (value != 0 && value != 1))
    throw FormatError(format("{}.{} is neither 0 nor 1", place, key.name));
  return value == 1;
}

std::string known_keys() {
  std::vector<std::string> names;
  for (const MaskKey& key : kKeys) names.emplace_back(key.name);
  return join(names, ", ");
}

}  // namespace

TurnMask take_turn_mask(Json& turn, const std::string& place) {
  TurnMask mask = TurnMask::none;
  std::string said_by;
  for (auto member = turn.begin(); member != turn.end();) {
    const MaskKey* key = find_key(member.key());
    if (key == nullptr) {
      if (looks_like_mask(member.key()) && !member->is_null())
        throw FormatError(
            format("{}.{} looks like a mask of the loss and is not known; known are {}; rename or remove it",
                   place, member.key(), known_keys()));
      ++member;
      continue;
    }
    if (!member->is_null()) {
      const TurnMask says =
          flag_of(*key, *member, place) == key->excludes ? TurnMask::excluded : TurnMask::learned;
      if (mask != TurnMask::none && mask != says)
        throw FormatError(format("{}.{} and {}.{} contradict each other", place, said_by, place, key->name));
      mask = says;
      said_by = key->name;
    }
    member = turn.erase(member);
  }
  return mask;
}

}  // namespace stepforge

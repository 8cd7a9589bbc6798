// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/callback.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

Json CallbackList::states(Trainer& trainer) const {
  Json states = Json::object();
  for (const auto& callback : callbacks_) {
    Json state = callback->state(trainer);
    if (state.is_null()) continue;
    const std::string name(callback->name());
    if (states.contains(name))
      throw Error(format("two callbacks with a state have the name \"{}\"; rename one of them", name));
    states[name] = std::move(state);
  }
  return states;
}

std::vector<std::string> CallbackList::restore(Trainer& trainer, const std::vector<Json>& of_ranks) const {
  std::vector<std::string> left;
  if (of_ranks.empty()) return left;
  if (!std::ranges::all_of(of_ranks, [](const Json& rank) { return rank.is_object(); }))
    throw FormatError("the states of callbacks in the checkpoint are not objects");
  for (const auto& [name, first] : of_ranks.front().items()) left.push_back(name);
  for (const auto& callback : callbacks_) {
    const auto found = std::find(left.begin(), left.end(), callback->name());
    if (found == left.end()) continue;
    std::vector<Json> states;
    for (const Json& rank : of_ranks) states.push_back(rank.value(*found, Json()));
    callback->restore(trainer, states);
    left.erase(found);
  }
  return left;
}

std::vector<std::string> CallbackList::names() const {
  std::vector<std::string> names;
  for (const auto& callback : callbacks_) names.emplace_back(callback->name());
  return names;
}

}  // namespace stepforge

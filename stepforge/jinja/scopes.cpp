// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/scopes.h"

namespace stepforge::jinja {

const Symbols* Symbols::find(const std::string& name) const {
  const Symbols* scope = this;
  while (scope != nullptr && !scope->known_.contains(name)) scope = scope->parent_;
  return scope;
}

int Symbols::define(const std::string& name, Load load) {
  const auto [found, added] = slots_->emplace(name, owner_->slots);
  if (added) ++owner_->slots;
  known_[name] = load;
  return found->second;
}

void Symbols::store(const std::string& name) {
  stores_.insert(name);
  if (known_.contains(name)) return;
  const Symbols* outer = parent_ == nullptr ? nullptr : parent_->find(name);
  if (outer != nullptr) {
    define(name, {ScopeLoad::From::outer, outer->slot(name, depth_), false});
  } else {
    define(name, {ScopeLoad::From::nothing, {}, false});
  }
}

int Symbols::declare_parameter(const std::string& name) {
  stores_.insert(name);
  return define(name, {ScopeLoad::From::nothing, {}, true});
}

void Symbols::load(const std::string& name) {
  if (find(name) == nullptr) define(name, {ScopeLoad::From::variable, {}, false});
}

void Symbols::merge(const std::vector<Symbols>& branches) {
  std::set<std::string> stored;
  for (const Symbols& branch : branches) stored.insert(branch.stores_.begin(), branch.stores_.end());
  for (const std::string& name : stores_) stored.erase(name);
  for (const Symbols& branch : branches) {
    for (const auto& [name, load] : branch.known_) known_[name] = load;
    stores_.insert(branch.stores_.begin(), branch.stores_.end());
  }
  // A branch may not be taken, so the name keeps its outer meaning until then.
  for (const std::string& name : stored) {
    const Symbols* outer = parent_ == nullptr ? nullptr : parent_->find(name);
    if (outer != nullptr) {
      define(name, {ScopeLoad::From::outer, outer->slot(name, depth_), false});
    } else {
      define(name, {ScopeLoad::From::variable, {}, false});
    }
  }
}

Slot Symbols::slot(const std::string& name, int depth) const {
  const Symbols* scope = find(name);
  if (scope == nullptr) return {};
  return {depth - scope->depth_, scope->slots_->at(name)};
}

Scope Symbols::scope() const {
  Scope result;
  for (const auto& [name, load] : known_) {
    if (!load.parameter) result.loads.push_back({load.from, slots_->at(name), load.outer, name});
  }
  return result;
}

}  // namespace stepforge::jinja

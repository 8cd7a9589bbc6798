// SPDX-License-Identifier: Apache-2.0
// Binds names to slots with Jinja2's scoping. Which assignments stay local to a block, loop or macro, and what a name means that is
// read before it is set, is decided statically.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/jinja/tree.h"

namespace stepforge::jinja {

/// The names of one scope.
class Symbols {
 public:
  /// `owner`: the function whose frame holds the slots; `depth`: its nesting.
  Symbols(const Symbols* parent, Function* owner, int depth)
      : parent_(parent),
        owner_(owner),
        depth_(depth),
        slots_(std::make_shared<std::map<std::string, int>>()) {}

  void store(const std::string& name);
  int declare_parameter(const std::string& name);
  void load(const std::string& name);
  /// Joins the branches of an if, each a copy of this scope.
  void merge(const std::vector<Symbols>& branches);

  /// The slot of a known name, relative to the function at `depth`.
  Slot slot(const std::string& name, int depth) const;
  /// What to load when the scope is entered.
  Scope scope() const;
  int depth() const { return depth_; }
  Function* owner() const { return owner_; }

 private:
  struct Load {
    ScopeLoad::From from = ScopeLoad::From::nothing;
    Slot outer;
    bool parameter = false;
  };
  const Symbols* find(const std::string& name) const;
  int define(const std::string& name, Load load);

  const Symbols* parent_;
  Function* owner_;
  int depth_;
  std::shared_ptr<std::map<std::string, int>> slots_;  // shared by the copies for branches
  std::map<std::string, Load> known_;
  std::set<std::string> stores_;
};

/// Binds all names, filters and tests of a template. Throws SourceFault.
void bind_names(Program& program);

}  // namespace stepforge::jinja

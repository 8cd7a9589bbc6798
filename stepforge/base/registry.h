// SPDX-License-Identifier: Apache-2.0
// What plug-ins add to the program: lists of named items, one list for each kind.
#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

/// Holds the items that plug-ins have added, in the order in which they were added. An item is a struct with a `name` and
/// the name of its kind, such as
///
///     struct CallbackKind {
///       static constexpr std::string_view kKind = "callback";
///       std::string name;
///       ...
///     };
///
/// Built-in items are constant tables of the same structs. References to items stay valid. Not thread-safe while
/// items are added.
class Registry {
 public:
  /// Throws UsageError if there is an item of this kind and name, or if the name is empty.
  template <typename Item>
  void add(Item item) {
    const std::string name(item.name);
    if (name.empty()) throw UsageError(format("{} registers a {} without a name", adding_, Item::kKind));
    if (find<Item>(name) != nullptr)
      throw UsageError(
          format("{} registers the {} \"{}\", which is registered already", adding_, Item::kKind, name));
    names_[std::string(Item::kKind)].push_back(name);
    auto& list = lists_[std::string(Item::kKind)];
    if (list == nullptr) list = std::make_shared<std::deque<Item>>();
    static_cast<std::deque<Item>*>(list.get())->push_back(std::move(item));
  }

  template <typename Item>
  const std::deque<Item>& all() const {
    static const std::deque<Item> none;
    const auto found = lists_.find(Item::kKind);
    return found == lists_.end() ? none : *static_cast<const std::deque<Item>*>(found->second.get());
  }

  /// Returns nullptr if there is none.
  template <typename Item>
  const Item* find(std::string_view name) const {
    for (const Item& item : all<Item>()) {
      if (item.name == name) return &item;
    }
    return nullptr;
  }

  /// The names of the items of a kind.
  const std::deque<std::string>& names(std::string_view kind) const {
    static const std::deque<std::string> none;
    const auto found = names_.find(kind);
    return found == names_.end() ? none : found->second;
  }

  /// The files of the loaded plug-ins, as absolute paths.
  const std::vector<std::filesystem::path>& plugins() const { return plugins_; }
  /// Calls `add_items`, which adds the items of the plug-in `file`.
  void add_plugin(const std::filesystem::path& file, const std::function<void(Registry&)>& add_items) {
    adding_ = file.string();
    add_items(*this);
    plugins_.push_back(file);
    adding_ = kThisProgram;
  }

 private:
  static constexpr const char* kThisProgram = "this program";
  std::map<std::string, std::shared_ptr<void>, std::less<>> lists_;  ///< by kind; std::deque<Item>
  std::map<std::string, std::deque<std::string>, std::less<>> names_;
  std::vector<std::filesystem::path> plugins_;
  std::string adding_ = kThisProgram;  ///< who adds items, for messages
};

/// A command of the program, `stepforge NAME ARGUMENTS`.
struct SubCommand {
  static constexpr std::string_view kKind = "sub-command";
  std::string name;
  std::string summary;  ///< a line of `stepforge --help`
  /// Returns the exit code. `registry` has the items of all plug-ins, for load_config.
  std::function<int(const std::vector<std::string>& arguments, const std::shared_ptr<Registry>& registry)>
      run;
};

}  // namespace stepforge

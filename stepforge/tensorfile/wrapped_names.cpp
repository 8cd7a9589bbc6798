// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/wrapped_names.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Modules that hold another one and nothing else, wherever they are in a name.
constexpr std::array<std::string_view, 4> kWrappers = {"_orig_mod.", "_fsdp_wrapped_module.",
                                                       "_checkpoint_wrapped_module.", "_forward_module."};
constexpr std::string_view kModel = "model.";
constexpr std::string_view kEmbedding = "embed_tokens.weight";
constexpr std::string_view kHead = "lm_head.";

/// Removes kWrappers from all names; returns those that occurred.
std::set<std::string> remove_wrappers(std::vector<std::string>& names) {
  std::set<std::string> removed;
  for (std::string& name : names) {
    for (const std::string_view part : kWrappers) {
      for (size_t at = name.find(part); at != std::string::npos; at = name.find(part, at)) {
        if (at > 0 && name[at - 1] != '.') {
          ++at;
          continue;
        }
        name.erase(at, part.size());
        removed.emplace(part);
      }
    }
  }
  return removed;
}

/// The text before "embed_tokens.weight" in the only name that ends so, not counting copies in layers.
std::optional<std::string> before_embedding(const std::vector<std::string>& names) {
  std::optional<std::string> found;
  for (const std::string& name : names) {
    if (!name.ends_with(kEmbedding) || name.find("layers.") != std::string::npos) continue;
    std::string before = name.substr(0, name.size() - kEmbedding.size());
    if (found || (!before.empty() && before.back() != '.')) return std::nullopt;
    found = std::move(before);
  }
  return found;
}

/// `prefix` is removed from all names.
bool remove_prefix(std::vector<std::string>& names, const std::string& prefix) {
  const auto has_it = [&](const std::string& name) { return name.starts_with(prefix); };
  if (!std::all_of(names.begin(), names.end(), has_it)) return false;
  for (std::string& name : names) name.erase(0, prefix.size());
  return true;
}

/// `prefix` becomes "model." in all names but those of the head.
bool replace_by_model(std::vector<std::string>& names, const std::string& prefix) {
  const auto is_head = [&](std::string_view name) { return name.starts_with(kHead); };
  const auto fits = [&](const std::string& name) { return is_head(name) || name.starts_with(prefix); };
  if (!std::all_of(names.begin(), names.end(), fits)) return false;
  for (std::string& name : names) {
    const bool has_prefix = name.starts_with(prefix);
    if (!prefix.empty() && has_prefix) name.erase(0, prefix.size());
    if (has_prefix && !is_head(name)) name.insert(0, kModel);
  }
  return true;
}

}  // namespace

std::optional<WrappedNames> without_wrappers(const std::vector<std::string>& names) {
  WrappedNames result{names, ""};
  std::vector<std::string> left_out;
  for (const std::string& part : remove_wrappers(result.names)) left_out.push_back(format("\"{}\"", part));
  bool adds_model = false;
  if (const auto before = before_embedding(result.names); before && *before != kModel) {
    const bool whole = before->ends_with("." + std::string(kModel));
    const std::string prefix = whole ? before->substr(0, before->size() - kModel.size()) : *before;
    if (whole ? remove_prefix(result.names, prefix) : replace_by_model(result.names, prefix)) {
      if (!prefix.empty()) left_out.push_back(format("\"{}\"", prefix));
      adds_model = !whole;
    }
  }
  if (left_out.empty() && !adds_model) return std::nullopt;
  if (std::set<std::string>(result.names.begin(), result.names.end()).size() != names.size())
    return std::nullopt;
  if (!left_out.empty()) result.what = format("{} left out of the names of tensors", join(left_out, " and "));
  if (adds_model) result.what += format("{}\"model.\" put before them", left_out.empty() ? "" : ", ");
  return result;
}

}  // namespace stepforge

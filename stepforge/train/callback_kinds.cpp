// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/callback_kinds.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/metrics/console.h"
#include "stepforge/metrics/jsonl.h"

namespace stepforge {

namespace {

constexpr std::string_view kAll = "all";

std::unique_ptr<MetricsSink> make_console(const SinkRequest& request) {
  return std::make_unique<ConsoleSink>(request.log, request.is_main && stderr_is_terminal());
}

std::unique_ptr<MetricsSink> make_jsonl(const SinkRequest& request) {
  if (!request.is_main || !request.config.metrics.enable_jsonl) return nullptr;
  return std::make_unique<JsonlSink>(request.metrics_file, request.log);
}

/// The built-in items, then those of plug-ins.
template <typename Kind>
std::vector<Kind> with_plugins(std::vector<Kind> kinds, const Config& config) {
  const auto& added = config.extensions.registry().all<Kind>();
  kinds.insert(kinds.end(), added.begin(), added.end());
  return kinds;
}

/// training.callbacks with "all" replaced by the names that it does not list.
std::vector<std::string> callback_names(const Config& config, const std::vector<CallbackKind>& kinds) {
  const std::vector<std::string>& listed = config.training.callbacks;
  std::vector<std::string> names;
  for (const std::string& name : listed) {
    if (std::count(listed.begin(), listed.end(), name) > 1)
      throw UsageError(format("training.callbacks names \"{}\" twice; remove one", name));
    if (name != kAll) {
      names.push_back(name);
      continue;
    }
    for (const CallbackKind& kind : kinds) {
      if (std::find(listed.begin(), listed.end(), kind.name) == listed.end()) names.emplace_back(kind.name);
    }
  }
  return names;
}

}  // namespace

std::vector<std::unique_ptr<Callback>> make_callbacks(const Config& config) {
  const std::vector<CallbackKind> kinds = with_plugins(builtin_callbacks(), config);
  std::vector<std::unique_ptr<Callback>> callbacks;
  for (const std::string& name : callback_names(config, kinds)) {
    const auto kind = std::ranges::find_if(kinds, [&](const CallbackKind& one) { return one.name == name; });
    if (kind == kinds.end())
      throw UsageError(
          format("training.callbacks: there is no callback \"{}\"; is a plug-in missing?", name));
    if (auto callback = kind->make(config)) callbacks.push_back(std::move(callback));
  }
  return callbacks;
}

const std::vector<SinkKind>& builtin_sinks() {
  static const std::vector<SinkKind> kinds = {{"console", make_console}, {"jsonl", make_jsonl}};
  return kinds;
}

std::vector<std::unique_ptr<MetricsSink>> make_sinks(const SinkRequest& request) {
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  for (const SinkKind& kind : with_plugins(builtin_sinks(), request.config)) {
    if (auto sink = kind.make(request)) sinks.push_back(std::move(sink));
  }
  return sinks;
}

}  // namespace stepforge

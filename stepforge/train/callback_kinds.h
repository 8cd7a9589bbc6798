// SPDX-License-Identifier: Apache-2.0
// Callbacks and metric sinks by name: the built-in ones and those of plug-ins.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/log.h"
#include "stepforge/base/registry.h"
#include "stepforge/config/config.h"
#include "stepforge/metrics/sink.h"
#include "stepforge/train/callback.h"

namespace stepforge {

/// A name in training.callbacks; the callback should have the same name.
struct CallbackKind {
  static constexpr std::string_view kKind = "callback";
  std::string_view name;
  /// Null if the configuration does not ask for it.
  std::function<std::unique_ptr<Callback>(const Config& config)> make;
};

/// report, alarms, logging, sampling, export.
const std::vector<CallbackKind>& builtin_callbacks();

/// The callbacks that training.callbacks asks for, in this order. Throws UsageError if it names one twice.
std::vector<std::unique_ptr<Callback>> make_callbacks(const Config& config);

/// The arguments with which a sink is made.
struct SinkRequest {
  const Config& config;
  Logger& log;
  bool is_main = true;                 ///< rank 0, whose sinks write the files of the run
  std::filesystem::path metrics_file;  ///< metrics.jsonl of the run folder
};

/// A destination of metrics; every registered one is used.
struct SinkKind {
  static constexpr std::string_view kKind = "metric sink";
  std::string_view name;
  /// Null if the configuration does not ask for it, or on ranks that need none.
  std::function<std::unique_ptr<MetricsSink>(const SinkRequest& request)> make;
};

/// console, jsonl.
const std::vector<SinkKind>& builtin_sinks();

std::vector<std::unique_ptr<MetricsSink>> make_sinks(const SinkRequest& request);

}  // namespace stepforge

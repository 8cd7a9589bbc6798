// SPDX-License-Identifier: Apache-2.0
// When each option of the configuration is read: a table with a row for every one.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "stepforge/config/config.h"

namespace stepforge {

/// How many ranks a job has, as far as it is known when options are judged.
struct JobRanks {
  int world_size = 0;  ///< 0: not known yet
  int on_host = 0;     ///< of them, those on this host; 0: not known yet
};

/// An option that is judged.
struct OptionUse {
  const Config& config;
  JobRanks ranks;
  std::string_view option;      ///< "beta1"
  const void* table = nullptr;  ///< the struct that has it: of an element of a list, that element
};

/// How an option is treated that a user has set but the job does not read.
enum class UnreadAction : uint8_t {
  refuse,  ///< another choice of the same configuration excludes it
  /// A line at the start names it. The number of ranks, the kind of the data, the content of the run folder or a switch
  /// decides, and one file may serve all of these cases.
  name,
};

/// When the options of one table are read. An option may have several rules, which must all allow it.
struct OptionRule {
  /// "optimizer", "data.filter"; of a list's elements "data.sources[]", also of groups in it; "" is the top level.
  std::string_view table;
  std::string_view options;                       ///< separated by spaces
  bool (*reads)(const OptionUse& use) = nullptr;  ///< null: always
  /// What decides, for the message: fields, separated by spaces. Those after the first are shown if they are not the default.
  /// ".format" is a field of the same element.
  std::string_view choosers = {};
  std::string_view reason = {};  ///< instead of choosers: "on one rank"
  UnreadAction action = UnreadAction::refuse;
};

/// Rules for every field of config_schema().
std::span<const OptionRule> option_rules();

}  // namespace stepforge

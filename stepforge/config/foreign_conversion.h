// SPDX-License-Identifier: Apache-2.0
// One file of another trainer while it is translated.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/config/convert.h"
#include "stepforge/config/foreign_keys.h"
#include "stepforge/config/load.h"
#include "stepforge/config/value.h"

namespace stepforge {

/// The settings of a parsed file: "training.seq_len" and its value.
struct ForeignSetting {
  std::string name;  ///< as in the file
  std::string key;   ///< as in the tables
  ConfigValue value;
};

std::vector<ForeignSetting> foreign_settings(const ConfigValue& table);

class ForeignConversion {
 public:
  ForeignConversion(const ForeignTrainer& trainer, std::vector<ForeignSetting> settings, int64_t ranks);

  /// Leaves `problem` empty.
  ConvertedConfig run();

  // What the file says. An empty text is no value: null is read as one.

  /// The value of a key, which counts as translated from now on, or nullptr.
  const ConfigValue* find(std::string_view key);
  std::optional<double> number(std::string_view key);
  /// "" if there is none.
  std::string text(std::string_view key);
  bool is_true(std::string_view key);
  /// Whether the key has a value. Does not count it as translated.
  bool has(std::string_view key) const;

  // The outcome for a key.

  /// Sets our field to a TOML value. A value that the field refuses is listed as lost, under `key` if the file has it.
  void set(std::string_view key, std::string_view ours, const std::string& value,
           std::string_view comment = {});
  /// Sets our field to the other trainer's default, unless it is set.
  void set_default(std::string_view ours, std::string_view value);
  void unset(std::string_view ours);
  bool is_set(std::string_view ours) const { return written_.contains(ours); }
  /// A list of inline tables without braces. Joined ones are read as one source, each row once.
  void set_sources(std::string_view key, std::string_view ours, const std::vector<std::string>& sources,
                   bool are_joined);
  /// Lists the key as lost, even if the file does not have it.
  void lose(std::string_view key, std::string_view why);
  void refuse(std::string_view key, std::string_view why);
  void need_nothing(std::string_view key, std::string_view why);
  /// A switch that is off.
  void switch_off(std::string_view key) { mark(key, Outcome::off); }

  /// The fields that are set so far.
  const Config& config() const { return loaded_.config; }
  /// The number of ranks of the job: from the command line, else from the file, else 0.
  int64_t ranks() const { return ranks_; }
  void set_ranks(double ranks) {
    if (ranks_ == 0 && ranks >= 1) ranks_ = static_cast<int64_t>(ranks);
  }
  /// Ranks with data of their own: `ranks` divided by the degrees of the other dimensions, at least 1.
  int64_t data_ranks() const;

 private:
  enum class Outcome : uint8_t { unseen, translated, lost, refused, needless, off };
  struct Written {
    std::string value;
    std::string comment;
    std::string key;  ///< of the file, or ""
  };

  ForeignSetting* setting_of(std::string_view key);
  void mark(std::string_view key, Outcome outcome);
  void translate(const ForeignSetting& setting);
  void translate_by_rule(const ForeignSetting& setting, const ForeignKey& key);
  void set_decay(const ForeignSetting& setting);
  void set_optimizer(const ForeignSetting& setting);
  void drop_tokenizer_of_model();
  void set_defaults();
  void drop_unread();
  void require_validation_data();
  void account();
  std::string written() const;
  std::string shown(std::string_view key) const;

  const ForeignTrainer& trainer_;
  std::vector<ForeignSetting> settings_;
  std::map<std::string, Outcome, std::less<>> outcomes_;  ///< by key
  LoadedConfig loaded_;
  LoadedConfig base_;  ///< our fields if nothing is set, with the preset
  std::map<std::string, Written, std::less<>> written_;
  ConvertedConfig converted_;
  int64_t ranks_ = 0;
};

// Rules that several trainers share. Keys that the file does not have are ignored.

/// Steps above 0 win over epochs; without either, `default_epochs`.
void convert_length(ForeignConversion& conversion, std::string_view steps, std::string_view epochs,
                    int default_epochs);
/// A number of steps above 0 wins over a ratio; a number of steps below 1 is a ratio; without either there is none.
void convert_warmup(ForeignConversion& conversion, std::string_view steps, std::string_view ratio);
/// Rows per rank, and micro-batches per step on each rank.
void convert_batch(ForeignConversion& conversion, std::string_view rows, int64_t default_rows,
                   std::string_view accumulation, int64_t default_accumulation);
/// An absolute final rate, as a fraction of the peak.
void convert_min_lr(ForeignConversion& conversion, std::string_view min_lr);
/// Two decay rates in one list.
void convert_betas(ForeignConversion& conversion, std::string_view betas);
/// A number of checkpoints to keep, which may be 1 there.
void convert_kept(ForeignConversion& conversion, std::string_view kept);
/// "no", "steps" or "epoch", and the numbers of steps.
void convert_strategies(ForeignConversion& conversion);
/// One path or a list of them; joined if there are several.
void convert_paths(ForeignConversion& conversion, std::string_view key, std::string_view ours,
                   std::string_view options = {});
/// Names in LLaMA-Factory's dataset_info.json; joined, or mixed as `prefix`mix_strategy says. Of pairs all answers count.
void convert_datasets(ForeignConversion& conversion, std::string_view prefix, bool are_pairs = false);
/// The name of a chat template that Stepforge has too.
void convert_template(ForeignConversion& conversion, std::string_view key);

std::optional<double> number_of(const ConfigValue* value);
std::string lower_text(const ConfigValue& value);
/// The texts of a list, or the parts of one text between commas.
std::vector<std::string> names_in(const ConfigValue& value);
/// Whether a switch with this value is off; `more` are further values with | between them.
bool is_off(const ConfigValue& value, std::string_view more);

}  // namespace stepforge

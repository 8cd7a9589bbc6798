// SPDX-License-Identifier: Apache-2.0
// The numbers that a resumed run needs in addition to weights and moments, and the settings that must not change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/config/config.h"
#include "stepforge/data/loader.h"
#include "stepforge/metrics/smoothed.h"

namespace stepforge {

struct TrainerState {
  int64_t step = 0;        ///< finished steps
  int64_t tokens = 0;      ///< seen in them, without padding (older checkpoints: with it)
  int64_t labels = 0;      ///< learned from in them; of older checkpoints, in the steps since
  int64_t skipped = 0;     ///< steps whose update was not finite, in all
  int64_t unlabelled = 0;  ///< steps in which no token had a label, in all
  LoaderState loader;
  Smoothed smoothed_loss;
  bool validation_pending = false;  ///< the validation of `step` was interrupted and is still to be done
  int64_t schedule_begin = 0;       ///< the step with which the learning-rate schedule begins
  int64_t schedule_steps = 0;       ///< its length; 0 in older checkpoints
  std::string data_content;         ///< RowStream::content of the data; "" in older checkpoints
  std::string tokenizer;            ///< fingerprint of the tokenizer; "" in older checkpoints
  std::string arithmetic;           ///< threads and processor that computed it; "" in older checkpoints
};

/// state.json: the state, and the configuration it was made with. `rows_per_step`: of all ranks together, which
/// stands for a global batch that the configuration leaves open. `updates`: Optimizer::steps(). The numbers follow from
/// the step, but for offsets, which are 0 unless the run was continued with another batch or without a part of a checkpoint.
Json state_to_json(const TrainerState& state, const Config& config, int64_t rows_per_step, int64_t updates);
/// Throws FormatError naming `source`, the field, its value and the remedy if a number is out of range or contradicts
/// others.
TrainerState state_from_json(const Json& json, const std::string& source);

/// How `config` differs from the checkpoint's configuration.
struct ConfigChanges {
  std::vector<std::string>
      refused;  ///< of the model, seed, data and batch: "model.dim: 64 in the checkpoint, 128 now"
  std::vector<std::string> accepted;  ///< hyper-parameters, and groups that checkpoint.allow_changed names
  bool other_rows = false;            ///< an accepted change means different rows of data
  CheckpointLoadConfig load;          ///< what is to be loaded
};

/// `json` is the state that `source` holds. `own`: the checkpoint belongs to this run, so what its configuration had
/// switched off in checkpoint.load started anew before it was saved. Settings of data that is not loaded may differ. Throws
/// UsageError if this version does not accept its configuration.
ConfigChanges compare_with_checkpoint(const Json& json, const Config& config, int64_t rows_per_step,
                                      const std::string& source, bool own);

}  // namespace stepforge

// The few numbers beside weights and moments that a resumed run needs, and what must not have changed since.
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
  int64_t step = 0;     ///< finished steps
  int64_t tokens = 0;   ///< seen in them
  int64_t skipped = 0;  ///< steps without an update, in all
  LoaderState loader;
  Smoothed::State smoothed_loss;
};

/// state.json: the state, and the configuration under which it was made.
Json state_to_json(const TrainerState& state, const Config& config);
/// Throws FormatError naming `source` and the field.
TrainerState state_from_json(const Json& json, const std::string& source);

/// What the checkpoint's configuration says otherwise than `config`.
struct ConfigChanges {
  std::vector<std::string>
      refused;  ///< of the model, seed, data and batch: "model.dim: 64 in the checkpoint, 128 now"
  std::vector<std::string> accepted;  ///< hyper-parameters, and groups that checkpoint.allow_changed names
  bool other_rows = false;            ///< an accepted change gives other rows of data
};

ConfigChanges compare_with_checkpoint(const Json& json, const Config& config);

}  // namespace stepforge

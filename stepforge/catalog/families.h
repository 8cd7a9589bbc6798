// The model families, torch-free half: name, specification, Hugging Face config. A new family adds a row to
// families.cpp and, for its forward code, one to model_registry.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

struct ModelFamily {
  std::string_view name;             ///< model.family
  std::string_view hf_model_type;    ///< "model_type" in config.json
  std::string_view hf_architecture;  ///< "architectures" in config.json
  bool qk_norm;
  ModelSpec (*spec)(const ModelConfig&, int64_t loss_chunk);
};

std::span<const ModelFamily> model_families();

/// Throws UsageError listing the families if there is none of that name.
const ModelFamily& find_family(std::string_view name);

/// The specification of config.family. `loss_chunk` 0 chooses by vocabulary.
ModelSpec model_spec(const ModelConfig& config, int64_t loss_chunk = 0);

}  // namespace stepforge

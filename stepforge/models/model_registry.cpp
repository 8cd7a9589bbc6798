#include "stepforge/models/model_registry.h"

#include <array>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/models/llama_forward.h"
#include "stepforge/models/qwen3_forward.h"

namespace stepforge {

namespace {

struct ModelFactory {
  std::string_view name;
  Model (*build)(const ModelConfig&, const ParameterLookup&, const ForwardOptions&);
};

constexpr std::array<ModelFactory, 2> families = {{{"llama", &llama_forward}, {"qwen3", &qwen3_forward}}};

}  // namespace

Model make_model(const ModelConfig& config, const ParameterLookup& parameters,
                 const ForwardOptions& options) {
  for (const auto& family : families) {
    if (family.name == config.family) return family.build(config, parameters, options);
  }
  throw UsageError(format("model.family = \"{}\" has no forward code", config.family));
}

}  // namespace stepforge

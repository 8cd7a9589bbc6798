#include "stepforge/catalog/families.h"

#include <array>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/llama_spec.h"
#include "stepforge/catalog/qwen3_spec.h"

namespace stepforge {

namespace {
constexpr std::array<ModelFamily, 2> families = {{
    {"llama", "llama", "LlamaForCausalLM", false, &llama_spec},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", true, &qwen3_spec},
}};
}  // namespace

std::span<const ModelFamily> model_families() {
  return families;
}

const ModelFamily& find_family(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& family : families) {
    if (family.name == name) return family;
    names.emplace_back(family.name);
  }
  throw UsageError(
      format("model.family = \"{}\": there is no such family; there are {}", name, join(names, ", ")));
}

ModelSpec model_spec(const ModelConfig& config, int64_t loss_chunk) {
  return find_family(config.family).spec(config, loss_chunk);
}

}  // namespace stepforge

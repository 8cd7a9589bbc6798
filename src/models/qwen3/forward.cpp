#include "models/qwen3/forward.h"

#include <memory>
#include <utility>

#include "base/format.h"

namespace stepforge {

namespace {

class Qwen3Layer : public Block {
 public:
  Qwen3Layer(const ModelConfig& config, const ParameterLookup& parameters, int64_t layer,
             std::shared_ptr<const RopeTable> rope)
      : rope_(std::move(rope)),
        attention_(parameters, format("layers.{}.attention", layer), attention_shape(config), config.norm_eps,
                   /*qk_norm=*/true, *rope_, layer),
        mlp_(parameters, format("layers.{}.mlp", layer), config.norm_eps, layer) {}

  Bundle forward(const Bundle& inputs, const Context& context) override {
    // By value: a recomputed segment runs its body after this call has returned.
    const auto attention = [this, context](const at::Tensor& x) { return attention_.forward(x, context); };
    const auto mlp = [this, context](const at::Tensor& x) { return mlp_.forward(x, context); };
    return {segment(context, "mlp", mlp, segment(context, "attention", attention, inputs.at(0)))};
  }

 private:
  std::shared_ptr<const RopeTable> rope_;
  AttentionLayer attention_;
  MlpLayer mlp_;
};

}  // namespace

ModelForward qwen3_forward(const ModelConfig& config, const ParameterLookup& parameters,
                           const ForwardOptions& options) {
  return decoder_forward(config, parameters, options,
                         [&](int64_t layer, std::shared_ptr<const RopeTable> rope) -> std::unique_ptr<Block> {
                           return std::make_unique<Qwen3Layer>(config, parameters, layer, std::move(rope));
                         });
}

}  // namespace stepforge

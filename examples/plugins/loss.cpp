// SPDX-License-Identifier: Apache-2.0
// A loss with a section: focal loss (Lin et al. 2017), -(1 - p)^gamma log p of the label's probability p.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <stepforge/base/plugin.h>
#include <stepforge/catalog/loss_kinds.h>
#include <stepforge/config/config_section.h>
#include <stepforge/kernels/loss_chunk.h>

using namespace stepforge;

struct Focal {
  double gamma = 2.0;
};

static void focal(const LossChunk& chunk, const Extensions& extensions) {
  const double gamma = extensions.section<Focal>().gamma;
  const at::Tensor label = chunk.labels.unsqueeze(1);
  chunk.gradient.copy_(at::log_softmax(chunk.logits, 1, at::kFloat));
  const at::Tensor log_p = chunk.gradient.gather(1, label);
  const at::Tensor p = log_p.exp();
  const at::Tensor rest = 1 - p;
  chunk.token_loss.copy_((-rest.pow(gamma) * log_p).squeeze(1));
  // The derivative for logit v: slope times the probability of v, less 1 if v is the label.
  const at::Tensor slope = rest.pow(gamma) - gamma * rest.pow(gamma - 1) * p * log_p;
  chunk.gradient.exp_().scatter_add_(1, label, at::full_like(p, -1)).mul_(slope);
}

STEPFORGE_PLUGIN(registry) {
  const auto fields =
      SchemaOf<Focal>().field("gamma", &Focal::gamma, "Exponent of 1 - p.", {.min = 1, .max = 100});
  registry.add(config_section("focal", fields, "Focal loss."));
  registry.add(LossKind{.name = "focal", .compute = focal, .workspace_per_logit = 1});
}

// SPDX-License-Identifier: Apache-2.0
// An optimizer with a section of its own: Adagrad (Duchi et al. 2011), [adagrad] initial = 0.1.
#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <stepforge/base/plugin.h>
#include <stepforge/config/config_section.h>
#include <stepforge/optim/update_rule.h>

using namespace stepforge;

struct Adagrad {
  double initial = 0.1;
  UpdateOptions options = {};

  void operator()(const UpdateArguments& a) const {
    const at::Tensor lr = options.lr * a.scalars.lr_factor * a.scalars.finite;
    const at::Tensor g = at::where(a.scalars.finite.ne(0), a.gradient * a.scalars.grad_scale, 0);
    a.slots[0].addcmul_(g, g);
    a.parameter.mul_(1 - lr * options.weight_decay).sub_(g.div((a.slots[0] + initial).sqrt_()).mul_(lr));
  }
};

static std::vector<SlotSpec> slots(const OptimizerConfig&, const Extensions&) {
  return {{"sum"}};
}

static int64_t workspace(const OptimizerConfig&, const Extensions&, int64_t rows, int64_t columns) {
  return 12 * rows * columns;  // the gradient, and two temporary tensors
}

static UpdateRule rule(const UpdateOptions& options, const Extensions& extensions) {
  return Adagrad{extensions.section<Adagrad>().initial, options};
}

STEPFORGE_PLUGIN(registry) {
  const auto fields = SchemaOf<Adagrad>().field("initial", &Adagrad::initial, "First sum.", {.min = 0});
  registry.add(config_section("adagrad", fields, "Adagrad."));
  registry.add(OptimizerKind{.name = "adagrad", .slots = slots, .workspace = workspace, .rule = rule});
}

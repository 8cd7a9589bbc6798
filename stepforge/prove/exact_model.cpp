// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_model.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/round.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/parallel_plans.h"
#include "stepforge/data/context_part.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"
#include "stepforge/nn/mtp.h"
#include "stepforge/plan/job_plan.h"
#include "stepforge/prove/exact_experts.h"
#include "stepforge/prove/exact_rounding.h"
#include "stepforge/prove/token_sum.h"
#include "stepforge/storage/context_collectives.h"
#include "stepforge/storage/tensor_collectives.h"

namespace stepforge {

namespace {

/// x + bias. Writes the bias's gradient into the unit's buffer, like the layers of nn/.
struct AddBias : torch::autograd::Function<AddBias> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& bias, Parameter* parameter) {
    save_pointer(*ctx, "parameter", parameter);
    return x + bias;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    saved_pointer<Parameter>(*ctx, "parameter")->add_gradient(gradients[0].to(at::kFloat).sum(0));
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

class ExactEmbedding : public Block {
 public:
  /// `copies`: how many values it makes of the tokens themselves.
  ExactEmbedding(Parameter& table, size_t copies, const TensorExchange& tensor)
      : table_(table), copies_(copies), tensor_(tensor) {}
  Bundle forward(const Bundle&, const Context& context) override {
    const at::Tensor own = embedded(context.batch->tokens, context);
    Bundle outputs;
    for (size_t i = 0; i < copies_; ++i) outputs.push_back(round_to_exact(own));
    for (const at::Tensor& later : context.batch->tokens_ahead)
      outputs.push_back(round_to_exact(embedded(later, context)));
    return outputs;
  }

 private:
  at::Tensor embedded(const at::Tensor& tokens, const Context& context) {
    const at::Tensor rows = embed(tokens, table_, vocabulary_part(table_.spec()));
    return leave_layer(rows, is_divided(table_), tensor_, context) * 4.0;
  }

  Parameter& table_;
  size_t copies_;
  TensorExchange tensor_;
};

/// The tokens of all slices. The gradient of a slice is the sum over the ranks.
struct GatherSlices : torch::autograd::Function<GatherSlices> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const TensorExchange* exchange) {
    save_pointer(*ctx, "exchange", exchange);
    return all_slices(x, *exchange);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto& exchange = *saved_pointer<TensorExchange>(*ctx, "exchange");
    return {sum_of_slice(gradients[0].contiguous(), exchange), at::Tensor()};
  }
};

/// x W^T of a slice of the tokens, by a weight that every rank has: its gradient is summed over the ranks.
struct LinearOnSlice : torch::autograd::Function<LinearOnSlice> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, Parameter* parameter, const TensorExchange* exchange) {
    ctx->save_for_backward({x});
    save_pointer(*ctx, "parameter", parameter);
    save_pointer(*ctx, "exchange", exchange);
    return at::mm(x, weight.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const at::NoGradGuard no_grad;
    auto* parameter = saved_pointer<Parameter>(*ctx, "parameter");
    if (parameter->trained()) {
      const at::Tensor sum =
          at::mm(gradients[0].to(at::kFloat).t(), ctx->get_saved_variables()[0].to(at::kFloat));
      saved_pointer<TensorExchange>(*ctx, "exchange")->sum(sum);
      parameter->add_gradient(sum);
    }
    return {at::mm(gradients[0], parameter->value()), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// In place of attention: each token becomes the sum of the earlier ones of its document, itself included.
struct SumTokens : torch::autograd::Function<SumTokens> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const BatchTensors* batch, const ContextExchange* exchange) {
    save_pointer(*ctx, "batch", batch);
    save_pointer(*ctx, "exchange", exchange);
    return sum_seen_tokens(x, *batch, *exchange);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    return {sum_seeing_tokens(gradients[0], *saved_pointer<BatchTensors>(*ctx, "batch"),
                              *saved_pointer<ContextExchange>(*ctx, "exchange")),
            at::Tensor(), at::Tensor()};
  }
};

/// In place of an MLP or experts: what is added to x, with all tokens or a slice of them.
using ExactBranch = std::function<at::Tensor(const at::Tensor& x, const Context& context)>;

/// Hidden units with a bias.
ExactBranch hidden_branch(const ParameterLookup& parameters, const std::string& name,
                          const TensorExchange& tensor) {
  Parameter& up = parameters(name + ".up");
  Parameter& bias = parameters(name + ".bias");
  Parameter& down = parameters(name + ".down");
  return [&up, &bias, &down, tensor](const at::Tensor& x, const Context& context) {
    const at::Tensor sums = enter_linear(x, up, tensor, context);
    const at::Tensor inner = round_to_exact(AddBias::apply(sums, bias.value(), &bias));
    return leave_linear(inner, down, tensor, context);
  };
}

ExactBranch expert_branch(Parameter& router, ExpertFunction experts) {
  return [&router, experts = std::move(experts)](const at::Tensor& x, const Context&) {
    return experts(x, exact_route(x, router));
  };
}

/// In place of attention, with a residual and dropout.
class ExactMixing {
 public:
  ExactMixing(const ParameterLookup& parameters, int layer, const TensorExchange& tensor,
              const ContextExchange& exchange)
      : mix_(parameters(format("layers.{}.mix", layer))),
        site_(2 * static_cast<uint64_t>(layer)),
        tensor_(tensor),
        exchange_(exchange) {}

  at::Tensor forward(const at::Tensor& input, const Context& context) {
    // Captured by value: a recomputed region runs its body again after this call has returned.
    const auto attention = [this, context](const at::Tensor& x) {
      return round_to_exact(residual_add(mixed(x, context), x, context, site_, tensor_));
    };
    return recompute_region(context, "attention", attention, input);
  }

 private:
  /// The sums of the tokens that each token sees, times the weight `mix`.
  at::Tensor mixed(const at::Tensor& x, const Context& context) {
    const auto sums = [&](const at::Tensor& tokens) {
      return round_to_exact(SumTokens::apply(tokens, context.batch, &exchange_));
    };
    if (!takes_slice(tensor_, context)) return linear(sums(x), mix_);
    const at::Tensor seen = sums(GatherSlices::apply(x, &tensor_));
    const ShardRange own = tensor_.parallel.part_of(seen.size(0));
    return LinearOnSlice::apply(seen.slice(0, own.begin, own.end).contiguous(), mix_.value(), &mix_,
                                &tensor_);
  }

  Parameter& mix_;
  uint64_t site_;
  TensorExchange tensor_;
  ContextExchange exchange_;
};

/// Two regions with dropout, with factors 0 and 2, and residuals.
class ExactLayer : public Block {
 public:
  ExactLayer(ExactMixing mixing, int layer, ExactBranch branch, const TensorExchange& tensor)
      : mixing_(std::move(mixing)),
        branch_(std::move(branch)),
        site_(2 * static_cast<uint64_t>(layer) + 1),
        tensor_(tensor) {}

  Bundle forward(const Bundle& inputs, const Context& context) override {
    const auto mlp = [this, context](const at::Tensor& x) {
      return round_to_exact(residual_add(branch_(x, context), x, context, site_, tensor_));
    };
    const at::Tensor x = inputs.size() == 1 ? inputs[0] : round_to_exact(inputs.at(0) + inputs.at(1));
    return {recompute_region(context, "mlp", mlp, mixing_.forward(x, context))};
  }

 private:
  ExactMixing mixing_;
  ExactBranch branch_;
  uint64_t site_;
  TensorExchange tensor_;
};

// The same layer with experts that are spread over ranks, in the blocks of modelspec/expert_values.h.

class ExactRouterBlock : public Block {
 public:
  ExactRouterBlock(ExactMixing mixing, Parameter& router) : mixing_(std::move(mixing)), router_(router) {}
  Bundle forward(const Bundle& inputs, const Context& context) override {
    const at::Tensor x = mixing_.forward(inputs.at(0), context);
    RoutedTokens routed = exact_route(x, router_);
    return {x, std::move(routed.weights), std::move(routed.indices)};
  }

 private:
  ExactMixing mixing_;
  Parameter& router_;
};

class ExactExpertsBlock : public Block {
 public:
  explicit ExactExpertsBlock(ExpertFunction experts) : experts_(std::move(experts)) {}
  Bundle forward(const Bundle& inputs, const Context& context) override {
    const auto experts = [this](const std::vector<at::Tensor>& rows) {
      return experts_(rows[0], {rows[1], rows[2]});
    };
    return {recompute_region(context, "mlp", experts, inputs)};
  }

 private:
  ExpertFunction experts_;
};

class ExactJoinBlock : public Block {
 public:
  ExactJoinBlock(int layer, const TensorExchange& tensor)
      : site_(2 * static_cast<uint64_t>(layer) + 1), tensor_(tensor) {}
  Bundle forward(const Bundle& inputs, const Context& context) override {
    return {round_to_exact(residual_sum(inputs.at(1), inputs.at(0), context, site_, tensor_))};
  }

 private:
  uint64_t site_;
  TensorExchange tensor_;
};

/// What the layer that predicts the token after the next one takes.
class ExactMtpBlock : public Block {
 public:
  explicit ExactMtpBlock(Parameter& weight) : weight_(weight) {}
  Bundle forward(const Bundle& inputs, const Context&) override {
    return {round_to_exact(linear(join_later(inputs.at(1), inputs.at(0)), weight_))};
  }

 private:
  Parameter& weight_;
};

/// The loss is half the squared distance of the logits from 4 at the label and 0 elsewhere.
class ExactHead : public Head {
 public:
  ExactHead(Parameter& weight, const TensorExchange& tensor)
      : weight_(weight), part_(vocabulary_part(weight.spec())), tensor_(tensor) {}

  LossResult loss_with_gradients(const Bundle& inputs, const Context& context,
                                 const at::Tensor& scale) override {
    const at::NoGradGuard no_grad;
    const at::Tensor x = all_tokens(inputs.at(0), tensor_, context);
    const at::Tensor errors = errors_of(x, context);
    LossResult result = loss_of(errors);
    const at::Tensor gradient = (to_integers(errors) * scale).to(x.scalar_type());
    weight_.add_product(gradient, x);
    const at::Tensor input_gradient = at::mm(gradient, weight_.value());
    result.input_gradients = {
        to_gradients(leave_layer(input_gradient, is_divided(weight_), tensor_, context))};
    return result;
  }
  LossResult loss(const Bundle& inputs, const Context& context, bool) override {
    const at::NoGradGuard no_grad;
    return loss_of(errors_of(all_tokens(inputs.at(0), tensor_, context), context));
  }
  at::Tensor last_logits(const Bundle& inputs, const Context&) override {
    return at::mm(inputs.at(0), weight_.value().t());
  }

 private:
  /// [tokens, vocabulary] fp64, zero where the label is masked.
  at::Tensor errors_of(const at::Tensor& x, const Context& context) const {
    const at::Tensor labels = context.batch->labels.to(at::kLong).unsqueeze(1);
    const at::Tensor valid = labels.ne(kIgnoredLabel);
    const at::Tensor errors = at::mm(x, weight_.value().t()).to(at::kDouble);
    const at::Tensor tokens = at::arange(part_.begin, part_.begin + errors.size(1), at::kLong);
    const at::Tensor wanted = labels.eq(tokens).to(at::kDouble) * kExactLimit;
    return (errors - wanted) * valid;
  }
  LossResult loss_of(const at::Tensor& errors) const {
    const at::Tensor losses = 0.5 * (errors * errors).sum(1);
    if (is_divided(weight_)) tensor_.sum(losses);
    return {losses, at::Tensor(), {}};
  }

  Parameter& weight_;
  VocabularyPart part_;
  TensorExchange tensor_;
};

std::unique_ptr<Block> exact_layer_block(ExactModel model, const BlockSpec& block,
                                         const ParameterLookup& parameters, const TensorExchange& tensor,
                                         const ContextExchange& exchange) {
  const std::string name = format("layers.{}", block.layer);
  const auto experts = [&] { return exact_experts(parameters, name, model == ExactModel::biased); };
  const auto mixing = [&] { return ExactMixing(parameters, block.layer, tensor, exchange); };
  switch (block.part) {
    case LayerPart::router:
      return std::make_unique<ExactRouterBlock>(mixing(), parameters(name + ".router"));
    case LayerPart::experts:
      return std::make_unique<ExactExpertsBlock>(experts());
    case LayerPart::join:
      return std::make_unique<ExactJoinBlock>(block.layer, tensor);
    default:
      return std::make_unique<ExactLayer>(mixing(), block.layer,
                                          has_experts(model)
                                              ? expert_branch(parameters(name + ".router"), experts())
                                              : hidden_branch(parameters, name, tensor),
                                          tensor);
  }
}

Model make_exact_model(ExactModel model, const std::vector<BlockSpec>& blocks,
                       const ParameterLookup& parameters, const TensorExchange& tensor,
                       const ContextExchange& exchange) {
  Model forward;
  for (const BlockSpec& block : blocks) {
    switch (block.kind) {
      case BlockKind::embedding:
        forward.blocks.push_back(std::make_unique<ExactEmbedding>(
            parameters("embedding.weight"), model == ExactModel::graph ? 2 : 1, tensor));
        break;
      case BlockKind::layer:
        forward.blocks.push_back(exact_layer_block(model, block, parameters, tensor, exchange));
        break;
      case BlockKind::mtp:
        forward.blocks.push_back(std::make_unique<ExactMtpBlock>(parameters(block.name + ".weight")));
        break;
      case BlockKind::head: {
        const std::string output = model == ExactModel::shared ? "embedding.weight"
                                   : block.ahead > 0           ? "head.weight"
                                                               : block.name + ".weight";
        forward.heads.push_back(std::make_unique<ExactHead>(parameters(output), tensor));
      }
    }
  }
  return forward;
}

/// Masks labels by the row's index in its step, so that kExactLabels remain in each step, also of those of later tokens.
class ExactLoader : public PrefetchLoader {
 public:
  ExactLoader(const Trainer& trainer)
      : PrefetchLoader(trainer.data.train, trainer.batch, 2),
        rows_(trainer.batch.rows_per_step),
        ahead_(trainer.model_spec.ahead) {}

  Batch next() override {
    Batch batch = PrefetchLoader::next();
    mask(batch, 0);
    for (size_t i = 0; i < batch.ahead.size(); ++i) mask(batch.ahead[i], static_cast<int64_t>(i) + 1);
    return batch;
  }

 private:
  /// A label is masked, or not, at all depths alike.
  void mask(Batch& batch, int64_t depth) const {
    batch.valid_labels = 0;
    const std::vector<TokenRange> held = token_ranges(batch.part, batch.row_length());
    size_t i = 0;
    for (const uint64_t id : batch.row_ids) {
      const int64_t labels = labels_of(static_cast<int64_t>(id) % rows_);
      for (const TokenRange& range : held) {
        for (int64_t position = range.begin; position < range.begin + range.size; ++position, ++i) {
          // Of the first tokens of a row there is no earlier one that predicts their labels.
          const int64_t predicted = position + depth - ahead_;
          const bool counts = predicted >= 0 && 5 * predicted % batch.row_length() < labels;
          if (!counts) batch.labels[i] = kIgnoredLabel;
          batch.valid_labels += batch.labels[i] == kIgnoredLabel ? 0 : 1;
        }
      }
    }
  }

  /// Rows 4 to 6 have none, the others equally many, of which the first get what is left.
  int64_t labels_of(int64_t row) const {
    if (row >= 4 && row < 7) return 0;
    const int64_t labelled = rows_ - 3;
    const int64_t index = row < 4 ? row : row - 3;
    return kExactLabels / labelled + (index < kExactLabels % labelled ? 1 : 0);
  }

  int64_t rows_;  ///< of a step
  int64_t ahead_;
};

void snap(const ModelStore& store) {
  for (size_t u = 0; u < store.size(); ++u) {
    at::Tensor master = store.unit(u).master();
    // Adding 0 makes negative zeros positive.
    master.copy_(at::clamp(at::round(master * 4.0) / 4.0, -1.0, 1.0) + 0.0);
  }
}

class Snap : public Callback {
 public:
  std::string_view name() const override { return "snap"; }
  void init_end(Trainer& trainer) override { snap(*trainer.store); }
  void step_end(Trainer& trainer) override {
    if (trainer.last_step.valid_labels != kExactLabels) {
      throw Error(format("the step has {} valid labels, not {}: its sums are not exact",
                         trainer.last_step.valid_labels, kExactLabels));
    }
    snap(*trainer.store);
  }
};

}  // namespace

void use_exact_model(Trainer& trainer, ExactModel model) {
  trainer.replace_build_step("specification", [model](Trainer& built) {
    built.model_spec = exact_spec(model, built.config.model.n_layers);
    built.divided_model = exact_spec(model, built.config.model.n_layers,
                                     plan_tensor(built.config, built.place), plan_context(built.config),
                                     tensor_plan(built.config), plan_experts(built.config, built.place));
  });
  trainer.replace_build_step("model", [model](Trainer& built) {
    built.model = make_exact_model(model, built.rank_model.blocks, built.store->lookup(),
                                   tensor_exchange(*built.groups, plan_tensor(built.config, built.place)),
                                   context_exchange(*built.groups, plan_context(built.config)));
  });
  trainer.replace_build_step("loader",
                             [](Trainer& built) { built.loader = std::make_unique<ExactLoader>(built); });
  trainer.add_callback(std::make_unique<Snap>());
}

}  // namespace stepforge

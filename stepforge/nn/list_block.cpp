// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/list_block.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/call_passes.h"
#include "stepforge/nn/slices.h"

namespace stepforge {

/// The memory of the values of a list. A buffer is allocated when a step first writes it.
class ListBlock::Buffers {
 public:
  Buffers(const CallList& list, const BlockProgram& program, int64_t tokens, const TensorExchange& tensor,
          const at::TensorOptions& options)
      : list_(list),
        program_(program),
        tokens_(tokens),
        tensor_(tensor),
        options_(options),
        statistics_(options.dtype(options.dtype() == at::kDouble ? at::kDouble : at::kFloat)),
        tensors_(program.buffers.size()) {}

  at::Tensor& at(int buffer) { return tensors_[static_cast<std::size_t>(buffer)]; }
  at::Tensor read(int buffer) const {
    return buffer == kNoTensor ? at::Tensor() : tensors_[static_cast<std::size_t>(buffer)];
  }
  at::Tensor write(int buffer) {
    if (buffer == kNoTensor) return {};
    at::Tensor& tensor = at(buffer);
    if (!tensor.defined()) {
      const LayerValue& value = list_.value(program_.buffers[static_cast<std::size_t>(buffer)]);
      const int64_t rows = value.times * (value.rows == Rows::slice ? slice_size(tokens_, tensor_) : tokens_);
      tensor = at::empty({rows, value.width}, options_of(value.type));
    }
    return tensor;
  }
  void free(const std::vector<int>& buffers) {
    for (const int buffer : buffers) at(buffer).reset();
  }
  at::TensorOptions options_of(ElementType type) const {
    if (type == ElementType::int32) return options_.dtype(at::kInt);
    return type == ElementType::fp32 ? statistics_ : options_;
  }
  /// Keeps only these.
  void keep(const std::vector<int>& buffers) {
    std::vector<at::Tensor> kept(tensors_.size());
    for (const int buffer : buffers) kept[static_cast<std::size_t>(buffer)] = at(buffer).detach();
    tensors_ = std::move(kept);
  }

 private:
  const CallList& list_;
  const BlockProgram& program_;
  int64_t tokens_;
  const TensorExchange& tensor_;
  at::TensorOptions options_;
  at::TensorOptions statistics_;  ///< of fp32 values, which are fp64 if the inputs are
  std::vector<at::Tensor> tensors_;
};

struct ListBlock::Steps {
  std::vector<std::string> recomputed;
  bool trains = false;
  bool generates = false;
  int64_t ahead = 0;
  CallList list;
  BlockProgram program;
  std::vector<std::vector<Parameter*>> weights;  ///< of each call
  int64_t slices = 1;

  std::vector<at::Tensor> read(const Buffers& buffers, const std::vector<int>& from, std::size_t begin,
                               std::size_t count) const {
    std::vector<at::Tensor> found;
    found.reserve(count);
    for (std::size_t i = begin; i < begin + count; ++i) found.push_back(buffers.read(from[i]));
    return found;
  }

  void run(const std::vector<CallStep>& list_of_steps, Buffers& buffers, const LayerResources& resources,
           const Context& context) const {
    for (const CallStep& step : list_of_steps) {
      if (step.action == CallAction::forward)
        compute(step, buffers, resources, context);
      else if (step.action == CallAction::backward)
        differentiate(step, buffers, resources, context);
      else
        add(step, buffers);
      buffers.free(step.frees);
    }
  }

 private:
  class Writes : public Written {
   public:
    Writes(const std::vector<int>& to, Buffers& buffers) : to_(to), buffers_(buffers) {}
    bool wanted(std::size_t index) const override { return to_[index] != kNoTensor; }
    at::Tensor operator[](std::size_t index) const override { return buffers_.write(to_[index]); }

   private:
    const std::vector<int>& to_;
    Buffers& buffers_;
  };

  void compute(const CallStep& step, Buffers& buffers, const LayerResources& resources,
               const Context& context) const {
    const auto index = static_cast<std::size_t>(step.call);
    const Call& call = list.calls[index];
    const std::vector<at::Tensor> operands = read(buffers, step.reads, 0, step.reads.size());
    resources.entry(*call.kind)
        .forward({call, weights[index], resources, context, trains, operands, Writes(step.writes, buffers)});
  }

  void differentiate(const CallStep& step, Buffers& buffers, const LayerResources& resources,
                     const Context& context) const {
    const auto index = static_cast<std::size_t>(step.call);
    const Call& call = list.calls[index];
    const std::size_t results = call.results.size();
    const std::size_t operands = call.operands.size();
    const std::vector<at::Tensor> gradients = read(buffers, step.reads, 0, results);
    const std::vector<at::Tensor> taken = read(buffers, step.reads, results, operands);
    const std::vector<at::Tensor> made = read(buffers, step.reads, results + operands, results);
    resources.entry(*call.kind)
        .backward({call, weights[index], resources, context, trains, taken, Writes(step.writes, buffers),
                   made, gradients, buffers.read(step.reads.back())});
  }

  static void add(const CallStep& step, Buffers& buffers) {
    at::Tensor sum = buffers.write(step.writes[0]);
    at::add_out(sum, buffers.read(step.reads[0]), buffers.read(step.reads[1]));
  }
};

/// What backward needs of a forward pass.
struct ListBlock::Kept {
  std::shared_ptr<const Steps> steps;
  std::shared_ptr<const LayerResources> resources;
  Context context;
  std::unique_ptr<Buffers> buffers;

  /// The gradients of the inputs, from those of the outputs.
  Bundle backward(const std::vector<at::Tensor>& gradients) {
    const BlockProgram& program = steps->program;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (program.output_gradients[i] != kNoTensor)
        buffers->at(program.output_gradients[i]) = gradients[i].contiguous();
    steps->run(program.backward, *buffers, *resources, context);
    Bundle of_inputs;
    for (const int buffer : program.input_gradients) of_inputs.push_back(buffers->read(buffer));
    return of_inputs;
  }
};

/// Lets a node of autograd hold what backward needs.
struct ListBlock::Capsule : torch::CustomClassHolder {
  explicit Capsule(std::shared_ptr<Kept> saved) : kept(std::move(saved)) {}
  std::shared_ptr<Kept> kept;
};

struct ListBlock::Node : torch::autograd::Function<Node> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, at::TensorList inputs,
                                                const at::Tensor& /*anchor*/, ListBlock* block,
                                                const Context* context) {
    auto kept = std::make_shared<Kept>();
    Bundle outputs = block->run(block->steps(*context, /*trains=*/true), inputs.vec(), *context, kept.get());
    torch::autograd::variable_list indices;
    for (const at::Tensor& output : outputs)
      if (!output.is_floating_point()) indices.push_back(output);
    ctx->mark_non_differentiable(indices);
    ctx->saved_data["kept"] = c10::IValue::make_capsule(c10::make_intrusive<Capsule>(std::move(kept)));
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const at::NoGradGuard no_grad;
    // Taken, so that nothing else holds what backward frees.
    const auto capsule = ctx->saved_data.at("kept").toCapsule();
    const auto kept = std::exchange(static_cast<Capsule*>(capsule.get())->kept, nullptr);
    if (kept == nullptr) throw Error("a block runs backward once for each forward; run its forward again");
    torch::autograd::variable_list of_inputs = kept->backward(gradients);
    of_inputs.resize(of_inputs.size() + 3);  // of the anchor, the block and the context
    return of_inputs;
  }
};

ListBlock::BoundList::BoundList(CallList calls, const ParameterLookup& lookup) : list(std::move(calls)) {
  for (Call& call : list.calls) {
    for (CallWeight& weight : call.weights) {
      Parameter& parameter = lookup(weight.name);
      parameters[weight.name] = &parameter;
      weight.trained = parameter.trained();
    }
  }
}

ListBlock::ListBlock(CallList training, CallList generation, const ParameterLookup& parameters,
                     std::shared_ptr<const LayerResources> resources)
    : training_(std::move(training), parameters),
      generation_(std::move(generation), parameters),
      resources_(std::move(resources)) {}

ListBlock::~ListBlock() = default;

std::shared_ptr<const ListBlock::Steps> ListBlock::steps(const Context& context, bool trains) {
  const bool generates = context.cache != nullptr;
  const auto ahead = static_cast<int64_t>(context.batch->tokens_ahead.size());
  for (const auto& known : steps_)
    if (known->trains == trains && known->generates == generates && known->ahead == ahead &&
        std::ranges::equal(known->recomputed, context.recomputed_regions))
      return known;
  const BoundList& bound = generates ? generation_ : training_;
  auto made = std::make_shared<Steps>();
  made->recomputed.assign(context.recomputed_regions.begin(), context.recomputed_regions.end());
  made->trains = trains;
  made->generates = generates;
  made->ahead = ahead;
  made->list = without_ahead(bound.list, ahead);
  made->slices = generates ? 1 : resources_->tensor.parallel.degree;
  for (const Call& call : made->list.calls) {
    std::vector<Parameter*>& of_call = made->weights.emplace_back();
    for (const CallWeight& weight : call.weights) of_call.push_back(bound.parameters.at(weight.name));
  }
  recompute_calls(made->list, made->recomputed);
  made->program = derive(made->list, trains);
  steps_.push_back(made);
  return made;
}

at::Tensor ListBlock::anchor(const Bundle& inputs) const {
  if (std::ranges::none_of(inputs, &at::Tensor::requires_grad))
    for (const auto& [name, parameter] : training_.parameters)
      if (parameter->trained()) return parameter->value();
  return inputs.empty() ? training_.parameters.begin()->second->value() : inputs.front().detach();
}

Bundle ListBlock::forward(const Bundle& inputs, const Context& context) {
  if (at::GradMode::is_enabled()) return Node::apply(at::TensorList(inputs), anchor(inputs), this, &context);
  return run(steps(context, /*trains=*/false), inputs, context, nullptr);
}

ListBlock::Gradients ListBlock::forward_backward(const Bundle& inputs, const Context& context,
                                                 const Bundle& output_gradients) {
  const at::NoGradGuard no_grad;
  Kept kept;
  Gradients made{.outputs = run(steps(context, /*trains=*/true), inputs, context, &kept)};
  made.inputs = kept.backward(output_gradients);
  return made;
}

Bundle ListBlock::run(std::shared_ptr<const Steps> steps, const Bundle& inputs, const Context& context,
                      Kept* kept) const {
  const BlockProgram& program = steps->program;
  if (inputs.size() != program.inputs.size())
    throw Error(format("a block takes {} values, but was given {}", program.inputs.size(), inputs.size()));
  const bool slice = !inputs.empty() && steps->list.value(steps->list.inputs.front()).rows == Rows::slice;
  const int64_t tokens =
      inputs.empty() ? context.batch->token_count() : inputs[0].size(0) * (slice ? steps->slices : 1);
  const at::Tensor& like = inputs.empty() ? steps->weights.front().front()->value() : inputs[0];
  auto buffers = std::make_unique<Buffers>(steps->list, program, tokens, resources_->tensor,
                                           like.options().requires_grad(false));
  for (std::size_t i = 0; i < inputs.size(); ++i) buffers->at(program.inputs[i]) = inputs[i].detach();
  steps->run(program.forward, *buffers, *resources_, context);
  Bundle outputs;
  // Tensors of their own: two outputs, or an input, may have the same memory.
  for (const int output : program.outputs) outputs.push_back(buffers->at(output).detach());
  if (kept == nullptr) return outputs;
  std::vector<int> lives = program.saved;
  lives.insert(lives.end(), program.inputs.begin(), program.inputs.end());
  buffers->keep(lives);
  kept->context = context;
  kept->context.recomputed_regions = steps->recomputed;
  kept->steps = std::move(steps);
  kept->resources = resources_;
  kept->buffers = std::move(buffers);
  return outputs;
}

}  // namespace stepforge

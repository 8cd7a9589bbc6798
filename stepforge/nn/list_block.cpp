// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/list_block.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

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
  std::vector<const CallEntry*> entries;         ///< likewise
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
    entries[index]->forward(
        {call, weights[index], resources, context, trains, operands, Writes(step.writes, buffers)});
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
    entries[index]->backward({call, weights[index], resources, context, trains, taken,
                              Writes(step.writes, buffers), made, gradients,
                              buffers.read(step.reads.back())});
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

  Kept(std::shared_ptr<const Steps> of_block, std::shared_ptr<const LayerResources> used, Context of_pass,
       std::unique_ptr<Buffers> saved)
      : steps(std::move(of_block)),
        resources(std::move(used)),
        context(std::move(of_pass)),
        buffers(std::move(saved)) {}

  Bundle backward(const Bundle& gradients) {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Buffers> live = std::move(buffers);
    if (live == nullptr) throw Error("a block runs backward once for each forward; run its forward again");
    const BlockProgram& program = steps->program;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (program.output_gradients[i] != kNoTensor)
        live->at(program.output_gradients[i]) = gradients[i].contiguous();
    steps->run(program.backward, *live, *resources, context);
    Bundle of_inputs;
    for (std::size_t i = 0; i < program.inputs.size(); ++i)
      of_inputs.push_back(
          input_gradient(live->read(program.input_gradients[i]), live->at(program.inputs[i])));
    return of_inputs;
  }
};

ListBlock::BoundList::BoundList(CallList calls, const ParameterLookup& lookup) : list(std::move(calls)) {
  for (Call& call : list.calls) {
    for (CallWeight& weight : call.weights) {
      Parameter& parameter = lookup(weight.name);
      parameters[weight.name] = &parameter;
      weight.trained = parameter.trained() && !weight.constant;
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
    made->entries.push_back(&resources_->entry(*call.kind));
    for (const CallWeight& weight : call.weights) of_call.push_back(bound.parameters.at(weight.name));
  }
  recompute_calls(made->list, made->recomputed);
  made->program = derive(made->list, trains);
  steps_.push_back(made);
  return made;
}

ForwardPass ListBlock::forward(const Bundle& inputs, const Context& context, bool trains) {
  const at::NoGradGuard no_grad;
  const std::shared_ptr<const Steps> steps = this->steps(context, trains);
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
  ForwardPass pass;
  // Tensors of their own: two outputs, or an input, may have the same memory.
  for (const int output : program.outputs) pass.outputs.push_back(buffers->at(output).detach());
  if (!trains) return pass;
  std::vector<int> lives = program.saved;
  lives.insert(lives.end(), program.inputs.begin(), program.inputs.end());
  buffers->keep(lives);
  auto kept = std::make_shared<Kept>(steps, resources_, context, std::move(buffers));
  kept->context.recomputed_regions = steps->recomputed;
  pass.backward = [kept](const Bundle& gradients) { return kept->backward(gradients); };
  return pass;
}

}  // namespace stepforge

// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/value_types.h"

#include <algorithm>
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/decoder_spec.h"
#include "tests/catalog/small_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

const std::vector<TensorParallel> kTensorParts = {
    {}, {0, 2}, {1, 2, true}, {1, 2, false, true}, {0, 4, true, true}};
const std::vector<ContextParallel> kContextParts = {{},
                                                    {2, ContextMethod::allgather},
                                                    {3, ContextMethod::ring},
                                                    {2, ContextMethod::ulysses},
                                                    {4, ContextMethod::hybrid, 2}};

TEST(ValueTypes, EveryLayoutOfEveryFamilyFitsTogether) {
  for (const std::string& family : family_names()) {
    std::vector<TensorPlanRule> rules;
    if (needs_whole_attention(family)) rules.push_back({"attention", TensorStyle::replicate});
    const TensorPlan plan(rules);
    for (const bool tied : {false, true})
      for (const TensorParallel& tensor : kTensorParts)
        for (const ContextParallel& context : kContextParts) {
          if (context.has_ring() && may_slide(family)) continue;
          if (context.degree > 1 && has_latents(family)) continue;
          EXPECT_NO_THROW(
              check_value_types(model_spec(small_model(family, 8, 4, tied), 64, tensor, context, plan)));
        }
  }
}

TEST(ValueTypes, AdaptersInEveryLayoutOfEveryFamilyFitTogether) {
  AdapterConfig adapter;
  adapter.type = AdapterType::lora;
  for (const std::string& family : family_names()) {
    std::vector<TensorPlanRule> rules;
    if (needs_whole_attention(family)) rules.push_back({"attention", TensorStyle::replicate});
    adapter.targets = {"all-linear"};
    if (has_experts(family) && !find_family(family).traits.biased_experts)
      adapter.targets.emplace_back(".*\\.experts\\..*");
    for (const TensorParallel& tensor : kTensorParts)
      for (const int experts : {1, 3}) {
        if (experts > 1 && (!has_experts(family) || (tensor.degree > 1 && !tensor.sequence))) continue;
        for (const auto& [type, of_experts] : {std::pair{AdapterType::lora, ExpertAdapters::each},
                                               {AdapterType::lora, ExpertAdapters::shared_a},
                                               {AdapterType::dora, ExpertAdapters::each},
                                               {AdapterType::dora, ExpertAdapters::shared_a}}) {
          if (of_experts == ExpertAdapters::shared_a && adapter.targets.size() == 1) continue;
          ModelSpec model =
              model_spec(small_model(family, 8, 4), 64, tensor, {}, TensorPlan(rules), {0, experts});
          adapter.type = type;
          adapter.experts = of_experts;
          add_adapters(model, adapter, {DType::f32});
          EXPECT_NO_THROW(check_value_types(model)) << family;
        }
      }
  }
}

TEST(ValueTypes, SpreadExpertsFitTogether) {
  for (const std::string& family : family_names()) {
    if (!has_experts(family)) continue;
    std::vector<TensorPlanRule> rules;
    if (needs_whole_attention(family)) rules.push_back({"attention", TensorStyle::replicate});
    for (const TensorParallel& tensor : kTensorParts)
      for (const ContextParallel& context : kContextParts) {
        if (context.has_ring() || (context.degree > 1 && has_latents(family))) continue;
        if (tensor.degree > 1 && !tensor.sequence) continue;
        EXPECT_NO_THROW(check_value_types(
            model_spec(small_model(family, 8, 4), 64, tensor, context, TensorPlan(rules), {1, 3})));
      }
  }
}

TEST(ValueTypes, ARingAndAWindowAreRefusedTogether) {
  const std::string message = message_of<UsageError>(
      [] { model_spec(small_model("gemma2", 8, 4), 64, {}, {3, ContextMethod::ring}); });
  EXPECT_CONTAINS(message, "sliding_window");
  EXPECT_CONTAINS(message, "allgather");
}

TEST(ValueTypes, EveryParameterIsUsedByACall) {
  for (const std::string& family : family_names()) {
    const ModelSpec spec = model_spec(small_model(family, 8, 4));
    std::set<std::string> used;
    for (const BlockSpec& block : spec.blocks)
      for (const Call& call : block.list.calls)
        for (const CallWeight& weight : call.weights) used.insert(weight.name);
    for (const UnitSpec& unit : spec.units) {
      if (unit.state) continue;  // not a weight: it has no gradient
      for (const ParameterSpec& parameter : unit.parameters)
        EXPECT_TRUE(used.contains(parameter.name)) << family << ": " << parameter.name;
    }
  }
}

/// "norm: S(tokens), S(tokens)" of each call of a block.
std::vector<std::string> types_of(const ModelSpec& spec, size_t block, size_t axis) {
  std::vector<std::string> lines;
  const std::vector<CallInfo> calls = call_infos(spec.blocks.at(block).list);
  for (const CallTypes& types : value_types(spec, spec.blocks.at(block), calls, type_axes(spec).at(axis)))
    lines.push_back(types.call->call->name + ": " + std::string(type_name(types.value)) + ", " +
                    std::string(type_name(types.gradient)));
  return lines;
}

TEST(ValueTypes, AreInferredThroughALayerOfSlices) {
  const ModelSpec spec = model_spec(small_model("qwen3", 8, 4), 64, {0, 2, true});
  EXPECT_EQ(
      types_of(spec, 1, 1),
      (std::vector<std::string>{
          "norm: S(tokens), S(tokens)", "enter: R, P", "qkv: S(channels), S(channels)",
          "rotary: S(channels), S(channels)", "attention: S(channels), S(channels)", "out: P, R",
          "leave: S(tokens), S(tokens)", "residual_add: S(tokens), S(tokens)", "norm: S(tokens), S(tokens)",
          "enter: R, P", "gate_up: S(channels), S(channels)", "swiglu: S(channels), S(channels)",
          "down: P, R", "leave: S(tokens), S(tokens)", "residual_add: S(tokens), S(tokens)"}));
}

TEST(ValueTypes, AreInferredThroughTheHeadOfADividedVocabulary) {
  const ModelSpec spec = model_spec(small_model("llama", 8, 4), 64, {0, 2});
  EXPECT_EQ(types_of(spec, 3, 1), (std::vector<std::string>{"norm: R, R", "enter: R, P", "loss: R, R"}));
}

TEST(ValueTypes, AreInferredWhereTokensAreExchangedForHeads) {
  const ModelSpec spec = model_spec(small_model("llama", 8, 4), 64, {}, {4, ContextMethod::hybrid, 2});
  const std::vector<std::string> heads = types_of(spec, 1, 2);
  EXPECT_EQ(heads.at(3), "to heads: S(channels), S(channels)");
  EXPECT_EQ(heads.at(4), "attention: S(channels), S(channels)");
  EXPECT_EQ(heads.at(5), "to tokens: S(tokens), S(tokens)");
  EXPECT_EQ(types_of(spec, 1, 1).at(4), "attention: S(tokens), S(tokens)");
}

// A fault planted into the specification of one rank. Each must be refused.
struct TypeFault {
  const char* name;
  TensorParallel tensor;
  ContextParallel context;
  std::function<void(ModelSpec&)> plant;
  const char* message;
};

void PrintTo(const TypeFault& fault, std::ostream* out) {
  *out << fault.name;
}

class PlantedTypeFaults : public ::testing::TestWithParam<TypeFault> {};

/// By its full name, "attention.norm".
Call& find_call(ModelSpec& spec, size_t block, const std::string& name) {
  return *std::ranges::find(spec.blocks.at(block).list.calls, name, &Call::full_name);
}

/// Gives a call a row of its own, whose exchanges a test may change: those of one call at a time.
CallExchanges& exchanges_of(ModelSpec& spec, size_t block, const std::string& name) {
  static CallKind kind;
  static CallExchanges exchanges;
  Call& call = find_call(spec, block, name);
  exchanges = CallInfo{&call, spec.blocks.at(block).list.values_of(call.operands), {}}.exchanges();
  kind = *call.kind;
  kind.exchanges = [](const CallView&) { return exchanges; };
  call.kind = &kind;
  return exchanges;
}

/// What reads the result of the call reads its operand instead.
void erase_call(ModelSpec& spec, size_t block, const std::string& name) {
  CallList& list = spec.blocks.at(block).list;
  const auto erased = std::ranges::find(list.calls, name, &Call::full_name);
  const int made = erased->results.front();
  const int taken = erased->operands.front();
  list.calls.erase(erased);
  for (Call& call : list.calls) std::ranges::replace(call.operands, made, taken);
  std::ranges::replace(list.outputs, made, taken);
}

/// Makes the whole parameter of a part of one.
void make_whole(ModelSpec& spec, const std::string& name) {
  for (UnitSpec& unit : spec.units)
    for (ParameterSpec& parameter : unit.parameters)
      if (parameter.name == name)
        for (SubTensor& sub_tensor : parameter.sub_tensors) sub_tensor.tensor_shape.clear();
}

const TensorParallel kSums{0, 2};
const TensorParallel kSlices{0, 2, true};
const TensorParallel kAsync{.degree = 2, .sequence = true, .async = true};
const ContextParallel kGather{2, ContextMethod::allgather};
const ContextParallel kRing{2, ContextMethod::ring};
const ContextParallel kUlysses{2, ContextMethod::ulysses};

std::vector<TypeFault> type_faults() {
  return {
      {"OnlyTheLargestLogitIsOfTheWholeVocabulary",
       kSums,
       {},
       [](ModelSpec& s) { exchanges_of(s, 3, "head.loss").forward.pop_back(); },
       "the loss of a part of the vocabulary is not that of all of it"},
      {"TheSumsOfTheLossAreMadeTwice",
       kSums,
       {},
       [](ModelSpec& s) {
         auto& exchanges = exchanges_of(s, 3, "head.loss").forward;
         exchanges.push_back(exchanges.back());
       },
       "the parts of the vocabulary are combined twice"},
      {"KeysAreGatheredTwice",
       {},
       kGather,
       [](ModelSpec& s) {
         auto& exchanges = exchanges_of(s, 1, "attention.attention").forward;
         exchanges.push_back(exchanges.front());
       },
       "the keys of other tokens are gathered or shifted, once"},
      {"TheGradientsOfKeysAreSummedTwice",
       {},
       kGather,
       [](ModelSpec& s) {
         auto& exchanges = exchanges_of(s, 1, "attention.attention").backward;
         exchanges.front() = exchanges.back();
       },
       "the gradients of keys are returned more than once"},
      {"NoCallUsesAParameter",
       kSums,
       {},
       [](ModelSpec& s) { find_call(s, 1, "attention.rotary").weights.pop_back(); },
       "layers.0.attention.k_norm: no call of the model's specification uses it"},
      {"ASumAfterAttentionIsMissing",
       kSums,
       {},
       [](ModelSpec& s) { erase_call(s, 1, "attention.leave"); },
       "layers.0, attention, residual_add, over tensor: what is combined with its first input is R, but must be P"},
      {"ASumAfterTheMlpIsMadeTwice",
       kSums,
       {},
       [](ModelSpec& s) {
         auto& exchanges = exchanges_of(s, 2, "mlp.leave").forward;
         exchanges.push_back(exchanges.front());
       },
       "layers.1, mlp, leave, over tensor: its input is R: a sum needs a partial sum (P)"},
      {"TheGradientBeforeAttentionIsNotSummed",
       kSums,
       {},
       [](ModelSpec& s) { erase_call(s, 1, "attention.enter"); },
       "layers.0, attention, norm, over tensor: the gradient of its input is P, and that of its other use R"},
      {"TheGradientBeforeTheMlpIsSummedTwice",
       kSums,
       {},
       [](ModelSpec& s) {
         auto& exchanges = exchanges_of(s, 1, "mlp.enter").backward;
         exchanges.push_back(exchanges.front());
       },
       "layers.0, mlp, enter, over tensor: the gradient of its result is R: a sum needs a partial sum (P)"},
      {"TheSlicesAreNotGatheredBeforeTheProjection",
       kSlices,
       {},
       [](ModelSpec& s) { erase_call(s, 1, "attention.enter"); },
       "qkv, over tensor: the input of a weight that is divided by rows is S(tokens), but must be R"},
      {"TheResultIsSummedWholeWhereASliceIsWanted",
       kSlices,
       {},
       [](ModelSpec& s) { exchanges_of(s, 1, "attention.leave").forward[0].kind = ExchangeKind::sum; },
       "layers.0, attention, residual_add, over tensor: what is combined with its first input is S(tokens), but "
       "must be R"},
      {"TheGradientOfASliceIsNotGathered",
       kSlices,
       {},
       [](ModelSpec& s) { exchanges_of(s, 1, "mlp.leave").backward.clear(); },
       "layers.0, mlp, leave, over tensor: the gradient of its input, which is P, is S(tokens)"},
      {"TheGradientOfASliceIsSummedWhole",
       kSlices,
       {},
       [](ModelSpec& s) { exchanges_of(s, 1, "mlp.enter").backward[0].kind = ExchangeKind::sum; },
       "layers.0, mlp, enter, over tensor: the gradient of its input, which is S(tokens), is R"},
      {"ASliceIsKeptAndNotGatheredAgain",
       kAsync,
       {},
       [](ModelSpec& s) { exchanges_of(s, 1, "mlp.gate_up").backward.pop_back(); },
       "gate_up, over tensor: keeps a slice of its input and does not gather it once in backward"},
      {"SlicesDoNotPassBesideTheProductThatNeedsThem",
       kAsync,
       {},
       [](ModelSpec& s) { exchanges_of(s, 1, "attention.qkv").forward.clear(); },
       "qkv, over tensor: the input of a weight that is divided by rows is S(tokens), but must be R"},
      {"SharesAreNotSummedBesideTheProductThatMakesThem",
       kAsync,
       {},
       [](ModelSpec& s) { exchanges_of(s, 1, "mlp.down").forward.clear(); },
       "layers.0, mlp, residual_add, over tensor: what is combined with its first input is S(tokens), but must be P"},
      {"TheGradientOfAResultIsNotGatheredBesideTheProduct",
       kAsync,
       {},
       [](ModelSpec& s) { exchanges_of(s, 1, "mlp.down").backward.clear(); },
       "down, over tensor: the gradient of its result is S(tokens), but must be R"},
      {"TheGradientOfASliceIsNotSummedBesideTheProduct",
       kAsync,
       {},
       [](ModelSpec& s) {
         auto& exchanges = exchanges_of(s, 1, "mlp.gate_up").backward;
         exchanges.erase(exchanges.begin());
       },
       "gate_up, over tensor: the gradient of its input, which is S(tokens), is P"},
      {"AProductGathersTwice",
       kAsync,
       {},
       [](ModelSpec& s) {
         auto& exchanges = exchanges_of(s, 1, "mlp.gate_up").forward;
         exchanges.push_back(exchanges.front());
       },
       "gate_up, over tensor: a gather where nothing must be exchanged"},
      {"TheGradientOfANormOfSlicesIsNotSummed",
       kSlices,
       {},
       [](ModelSpec& s) { find_call(s, 2, "attention.norm").sums_weight_gradients = false; },
       "layers.1, over tensor: the gradient of layers.1.attention.norm is a partial sum (P) that nothing "
       "sums"},
      {"TheGradientOfAWholeNormIsSummed",
       kSums,
       {},
       [](ModelSpec& s) { find_call(s, 2, "attention.norm").sums_weight_gradients = true; },
       "the gradient of layers.1.attention.norm is R: a sum needs a partial sum (P)"},
      {"TheGradientOfTheHeadNormsIsNotSummed",
       kSums,
       {},
       [](ModelSpec& s) { find_call(s, 1, "attention.rotary").sums_weight_gradients = false; },
       "the gradient of layers.0.attention.q_norm is a partial sum (P) that nothing sums"},
      {"TheGradientOfTheFinalNormIsNotSummed",
       kSlices,
       {},
       [](ModelSpec& s) { find_call(s, 3, "head.norm").sums_weight_gradients = false; },
       "head, over tensor: the gradient of head.norm is a partial sum (P) that nothing sums"},
      {"TheEmbeddingsOfOtherTokensAreMissing",
       kSums,
       {},
       [](ModelSpec& s) { erase_call(s, 0, "embedding.leave"); },
       "embedding, over tensor: what passes to the next block is P, but must be R"},
      {"TheLossIsOfOnePartOfTheVocabulary",
       kSums,
       {},
       [](ModelSpec& s) { exchanges_of(s, 3, "head.loss").forward.clear(); },
       "the loss of a part of the vocabulary is not that of all of it"},
      {"TheGradientOfTheLossIsNotSummed",
       kSums,
       {},
       [](ModelSpec& s) { erase_call(s, 3, "head.enter"); },
       "head, over tensor: the gradient of its input is P, but must be R"},
      {"AWholeVocabularyIsExchanged",
       kSums,
       {},
       [](ModelSpec& s) { make_whole(s, "head.weight"); },
       "loss, over tensor: a max where nothing must be exchanged"},
      {"AProjectionIsNotDivided",
       kSums,
       {},
       [](ModelSpec& s) { make_whole(s, "layers.0.mlp.gate_up"); },
       "layers.0, mlp, down, over tensor: the input of a weight that is divided by columns is R"},
      {"AProjectionOutIsNotDivided",
       kSums,
       {},
       [](ModelSpec& s) { make_whole(s, "layers.0.attention.out"); },
       "layers.0, attention, out, over tensor: a part of the channels (S(channels)) meets a weight that is "
       "not "
       "divided"},
      {"ABlockPassesAllTokensWhereASliceIsExpected",
       kSlices,
       {},
       [](ModelSpec& s) { s.blocks.at(2).inputs.at(0).slice = false; },
       "layers.1"},
      {"AttentionSeesItsOwnTokensOnly",
       {},
       kGather,
       [](ModelSpec& s) { exchanges_of(s, 1, "attention.attention").forward.clear(); },
       "layers.0, attention, attention, over context: sees only its own tokens of each row"},
      {"TheGradientsOfKeysAreNotReturned",
       {},
       kGather,
       [](ModelSpec& s) { exchanges_of(s, 1, "attention.attention").backward.pop_back(); },
       "the gradients of keys are not returned to the ranks that have the tokens"},
      {"TheRingDoesNotTurnInBackward",
       {},
       kRing,
       [](ModelSpec& s) { exchanges_of(s, 2, "attention.attention").backward.clear(); },
       "layers.1, attention, attention, over context: the gradients of keys are not returned"},
      {"TokensAreNotExchangedForHeads",
       {},
       kUlysses,
       [](ModelSpec& s) { erase_call(s, 1, "attention.to heads"); },
       "layers.0, attention, attention, over heads: sees only its own tokens of each row"},
      {"HeadsAreNotExchangedBack",
       {},
       kUlysses,
       [](ModelSpec& s) { erase_call(s, 1, "attention.to tokens"); },
       "layers.0, attention, out, over heads: a part of the channels (S(channels)) meets a weight that is "
       "not divided"},
      {"AWeightGradientIsSummedInTheBlockAndInTheStep",
       {},
       kGather,
       [](ModelSpec& s) {
         exchanges_of(s, 1, "attention.norm").backward = {{BlockAxis::context, ExchangeKind::sum, {}, 96}};
       },
       "the gradient of layers.0.attention.norm, which the step sums, is R, but must be P"},
      {"AParameterIsOfAnotherBlock",
       kSums,
       {},
       [](ModelSpec& s) { find_call(s, 1, "attention.out").weights.front().name = "layers.1.attention.out"; },
       "uses the parameter layers.1.attention.out, which is in none of the units of the block"},
      {"AnExchangeIsOverAnAxisOfOneRank",
       kSums,
       {},
       [](ModelSpec& s) { exchanges_of(s, 1, "attention.leave").forward[0].axis = BlockAxis::context; },
       "layers.0: exchanges over an axis of one rank"},
  };
}

TEST_P(PlantedTypeFaults, IsRefused) {
  const TypeFault& fault = GetParam();
  ModelConfig model = small_model("qwen3", 8, 4);
  model.sliding_window = 0;  // for the ring
  ModelSpec spec = model_spec(model, 64, fault.tensor, fault.context);
  ASSERT_NO_THROW(check_value_types(spec));
  fault.plant(spec);
  EXPECT_CONTAINS(message_of<ValueTypeError>([&] { check_value_types(spec); }), fault.message);
}

INSTANTIATE_TEST_SUITE_P(Of, PlantedTypeFaults, ::testing::ValuesIn(type_faults()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ValueTypes, APartialSumIsNotNormed) {
  ModelSpec spec = model_spec(small_model("gemma2", 8, 4), 64, kSums);
  erase_call(spec, 1, "attention.leave");
  EXPECT_CONTAINS(
      message_of<ValueTypeError>([&] { check_value_types(spec); }),
      "layers.0, attention, post_norm, over tensor: uses a partial sum (P), which must be summed first");
}

struct ExpertTypeFault {
  const char* name;
  std::function<void(ModelSpec&)> plant;
  const char* message;
};

/// Faults of the blocks between which rows pass to the ranks that have their experts, in the first layer.
TEST(ValueTypes, FaultsOfSpreadExpertsAreRefused) {
  constexpr size_t kExperts = 2;
  constexpr size_t kJoin = 3;
  const auto dispatch = [](ModelSpec& spec) -> DispatchSpec& { return *spec.blocks.at(kExperts).dispatch; };
  const std::vector<ExpertTypeFault> faults = {
      {"rows are not dispatched", [](ModelSpec& s) { s.blocks.at(kExperts).dispatch.reset(); },
       "layers.0.experts, over data: takes rows for experts, but none are dispatched to it"},
      {"experts take tokens", [&](ModelSpec& s) { s.blocks.at(kExperts).inputs = dispatch(s).sent; },
       "layers.0.experts, over data: rows are dispatched to it, but it takes or makes values of tokens"},
      {"experts make values of tokens",
       [&](ModelSpec& s) { s.blocks.at(kExperts).outputs = dispatch(s).returned; },
       "rows are dispatched to it, but it takes or makes values of tokens"},
      {"rows are dispatched twice", [&](ModelSpec& s) { dispatch(s).sent = s.blocks.at(kExperts).inputs; },
       "rows that are dispatched are sent or returned once more"},
      {"results come back as rows",
       [&](ModelSpec& s) { dispatch(s).returned = s.blocks.at(kExperts).outputs; },
       "rows that are dispatched are sent or returned once more"},
      {"weights are not sent", [&](ModelSpec& s) { dispatch(s).sent.erase(dispatch(s).sent.begin() + 1); },
       "tokens, weights and experts are dispatched, and results combined"},
      {"a token has fewer weights than experts", [&](ModelSpec& s) { dispatch(s).sent.at(1).width = 1; },
       "the widths of dispatched rows are not those of tokens, weights and results"},
      {"rows are narrower than tokens", [](ModelSpec& s) { s.blocks.at(kExperts).inputs.at(0).width /= 2; },
       "the widths of dispatched rows are not those of tokens, weights and results"},
      {"weights are rounded on their way",
       [](ModelSpec& s) { s.blocks.at(kExperts).inputs.at(1).dtype = DType::bf16; },
       "the types of dispatched rows are not those of tokens, weights and experts"},
      {"rows are joined with tokens",
       [](ModelSpec& s) { s.blocks.at(kJoin).inputs.at(1) = s.blocks.at(kExperts).outputs.at(0); },
       "layers.0.join, over data: of the values that pass, only some are rows that are dispatched to "
       "experts"},
      {"one rank has all experts", [](ModelSpec& s) { s.degrees.back() = 1; },
       "rows are dispatched to experts that one rank has"},
      {"experts are exchanged inside a block",
       [](ModelSpec& s) {
         exchanges_of(s, kExperts, "mlp.expert_gate_up").forward = {
             {BlockAxis::experts, ExchangeKind::all_to_all, {1}}};
       },
       "layers.0.experts, mlp, expert_gate_up, over experts: a all-to-all where nothing must be exchanged"},
      {"experts are one unit with the layer", [](ModelSpec& s) { s.units.at(2).mesh = UnitMesh::rows; },
       "a part of the channels (S(channels)) meets a weight that is not divided"},
      {"the gradient of the router is summed in the block too",
       [](ModelSpec& s) {
         exchanges_of(s, 1, "router.route").backward = {{BlockAxis::experts, ExchangeKind::sum, {}, 96}};
       },
       "the gradient of layers.0.mlp.router, which the step sums, is R, but must be P"},
      {"gradients of experts are summed over their ranks",
       [](ModelSpec& s) {
         exchanges_of(s, kExperts, "mlp.expert_gate_up").backward = {
             {BlockAxis::experts, ExchangeKind::sum, {}, 96}};
       },
       "the gradient of layers.0.mlp.expert_gate_up is S(channels): a sum needs a partial sum (P)"},
  };
  for (const ExpertTypeFault& fault : faults) {
    ModelSpec spec = model_spec(small_model("qwen3_moe", 8, 4), 64, {}, {}, {}, {1, 3});
    ASSERT_NO_THROW(check_value_types(spec));
    fault.plant(spec);
    EXPECT_CONTAINS(message_of<ValueTypeError>([&] { check_value_types(spec); }), fault.message)
        << fault.name;
  }
}

/// Router, shared expert and experts with slices of the tokens: the step sums over tensor parallelism too.
TEST(ValueTypes, FaultsOfExpertsThatTakeSlicesAreRefused) {
  constexpr size_t kShared = 2;
  constexpr size_t kExperts = 3;
  constexpr size_t kJoin = 4;
  constexpr size_t kSliceUnit = 2;
  constexpr size_t kExpertUnit = 3;
  const auto sum_over_tensor = [](size_t block, const char* call) {
    return [=](ModelSpec& s) {
      exchanges_of(s, block, call).backward = {{BlockAxis::tensor, ExchangeKind::sum, {}, 96}};
    };
  };
  const std::vector<ExpertTypeFault> faults = {
      {"the gradient of the router is not summed",
       [](ModelSpec& s) { s.units.at(kSliceUnit).mesh = UnitMesh::rows; },
       "layers.0, over tensor: the gradient of layers.0.mlp.norm is a partial sum (P) that nothing sums"},
      {"the gradient of the router is summed twice", sum_over_tensor(1, "router.route"),
       "the gradient of layers.0.mlp.router, which the step sums, is R, but must be P"},
      {"the gradient of the shared expert is summed twice", sum_over_tensor(kShared, "mlp.shared_gate"),
       "the gradient of layers.0.mlp.shared_gate, which the step sums, is R, but must be P"},
      {"gradients of experts are not summed",
       [](ModelSpec& s) { s.units.at(kExpertUnit).mesh = UnitMesh::rows; },
       "layers.0.experts, mlp, expert_gate_up, over tensor: the input of a weight that is divided by rows is "
       "S(tokens)"},
      {"gradients of experts are summed over tensor and by the step",
       sum_over_tensor(kExperts, "mlp.expert_gate_up"), "the gradient of layers.0.mlp.expert_gate_up"},
      {"each rank sends all tokens",
       [](ModelSpec& s) { s.blocks.at(kExperts).dispatch->sent[0].slice = false; },
       "of what is dispatched and returned, only some is of slices of the tokens"},
      {"results are of all tokens",
       [](ModelSpec& s) { s.blocks.at(kExperts).dispatch->returned[0].slice = false; },
       "of what is dispatched and returned, only some is of slices of the tokens"},
      {"results of all tokens are joined with slices",
       [](ModelSpec& s) { s.blocks.at(kJoin).inputs[1].slice = false; },
       "only one of hidden and combined is divided into slices of the tokens"}};
  for (const ExpertTypeFault& fault : faults) {
    ModelSpec spec = model_spec(small_model("qwen2_moe", 8, 4), 64, {0, 2, true}, {}, {}, {1, 3});
    ASSERT_NO_THROW(check_value_types(spec));
    fault.plant(spec);
    EXPECT_CONTAINS(message_of<ValueTypeError>([&] { check_value_types(spec); }), fault.message)
        << fault.name;
  }
}

}  // namespace
}  // namespace stepforge::testing

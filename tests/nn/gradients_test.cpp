// SPDX-License-Identifier: Apache-2.0
// Every layer's outputs and gradients against plain fp64 tensor operations under libtorch's autograd.
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/format.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/layers.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/norm.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/calls/rotary.h"
#include "stepforge/modelspec/calls/swiglu.h"
#include "stepforge/nn/list_head.h"
#include "tests/nn/one_call.h"
#include "tests/nn/reference.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {
namespace {

constexpr double kTolerance = 2e-6;
constexpr int64_t kSeqLen = 24;

/// Two rows with three documents and a masked label.
Batch packed_batch(int64_t vocab) {
  Batch batch = empty_batch(kSeqLen, 2);
  append_row(made_up_row(0, kSeqLen, vocab, {7}), 0, batch);
  append_row(made_up_row(1, kSeqLen, vocab), 1, batch);
  mask_labels(batch, [](size_t i) { return i % 11 == 3; });
  return batch;
}

at::Tensor leaf(const at::Tensor& values) {
  at::Tensor tensor = values.clone();
  tensor.set_requires_grad(true);
  return tensor;
}

class Gradients : public ::testing::Test {
 protected:
  explicit Gradients(const std::string& family = "llama")
      : tiny(tiny_config(family)),
        batch(packed_batch(tiny.config.vocab_size)),
        shape({tiny.config.n_heads, tiny.config.n_kv_heads, head_size(tiny.config), 0.25}),
        rope(make_rope_table(64, head_size(tiny.config), tiny.config.rope_theta, {})) {
    context.batch = &batch;
    for (size_t u = 0; u < tiny.store.size(); ++u) {
      // Norm weights that differ from 1 and matrices large enough to matter.
      for (size_t i = 0; i < tiny.store.unit(u).parameters().size(); ++i) {
        at::Tensor master = tiny.store.unit(u).master_view(i);
        const bool norm = tiny.store.unit(u).spec().parameters[i].tag == ParameterTag::norm;
        master.copy_(random_tensor(master.sizes(), 100 * u + i) * (norm ? 0.25 : 0.2) + (norm ? 1.0 : 0.0));
      }
    }
    tiny.start_gradients();
  }

  int64_t tokens() const { return batch.token_count(); }
  Parameter& parameter(const std::string& name) { return tiny.parameter(name); }
  std::unique_ptr<ListBlock> block(const CallList& list) {
    return std::make_unique<ListBlock>(list, list, tiny.store.lookup(),
                                       std::make_shared<const LayerResources>());
  }
  /// The result of one call.
  at::Tensor call(const CallKind& kind, const Bundle& operands, std::any attributes = {},
                  const std::vector<const ParameterSpec*>& weights = {}) {
    std::vector<int64_t> widths;
    for (const at::Tensor& operand : operands) widths.push_back(operand.size(1));
    const auto made = block(one_call(kind, widths, std::move(attributes), weights));
    return forward_in_graph(*made, operands, context).front();
  }
  at::Tensor linear(const at::Tensor& x, const Parameter& weight) {
    return call(kLinear, {x}, {}, {&weight.spec()});
  }
  at::Tensor residual_add(const at::Tensor& branch, const at::Tensor& x, uint64_t site) {
    return call(kResidualAdd, {branch, x}, ResidualAttributes{site, true});
  }

  TinyModel tiny;
  BatchTensors batch;
  AttentionShape shape;
  RopeTable rope;
  Context context;
};

TEST_F(Gradients, EmbeddingMatchesAutograd) {
  Parameter& table = parameter("embedding.weight");
  const at::Tensor expected_table = leaf64(table.value());
  const at::Tensor cotangent = random_tensor({tokens(), tiny.config.dim}, 1);
  const at::Tensor out = forward_in_graph(*tiny.model.blocks.front(), {}, context).front();
  torch::autograd::backward({out}, {cotangent});
  const at::Tensor expected = at::embedding(expected_table, batch.tokens.to(at::kLong));
  torch::autograd::backward({expected}, {cotangent.to(at::kDouble)});
  EXPECT_TRUE(at::equal(out.detach().to(at::kDouble), expected.detach()));
  expect_near(table.gradient(), expected_table.grad(), kTolerance, "table");
}

TEST_F(Gradients, LinearMatchesAutograd) {
  Parameter& weight = parameter("layers.0.mlp.down");
  const at::Tensor x = leaf(random_tensor({tokens(), tiny.config.ffn_dim}, 2));
  const at::Tensor cotangent = random_tensor({tokens(), tiny.config.dim}, 3);
  const at::Tensor x64 = leaf64(x);
  const at::Tensor weight64 = leaf64(weight.value());
  const at::Tensor out = linear(x, weight);
  torch::autograd::backward({out}, {cotangent});
  const at::Tensor expected = at::matmul(x64, weight64.t());
  torch::autograd::backward({expected}, {cotangent.to(at::kDouble)});
  expect_near(out, expected, kTolerance, "out");
  expect_near(x.grad(), x64.grad(), kTolerance, "x");
  expect_near(weight.gradient(), weight64.grad(), kTolerance, "weight");
}

TEST_F(Gradients, ASecondBackwardAddsUntilStartGradient) {
  Parameter& weight = parameter("layers.0.mlp.down");
  const at::Tensor x = random_tensor({tokens(), tiny.config.ffn_dim}, 2);
  const at::Tensor cotangent = random_tensor({tokens(), tiny.config.dim}, 3);
  const auto run = [&] { torch::autograd::backward({linear(x, weight)}, {cotangent}); };
  run();
  const at::Tensor once = weight.gradient().clone();
  run();
  expect_near(weight.gradient(), once * 2, kTolerance, "added");
  weight.start_gradient();
  run();
  EXPECT_TRUE(at::equal(weight.gradient(), once));
}

TEST_F(Gradients, NormAndItsResidualPathMatchAutograd) {
  Parameter& weight = parameter("layers.0.attention.norm");
  const at::Tensor x = leaf(random_tensor({tokens(), tiny.config.dim}, 4));
  const at::Tensor to_normed = random_tensor(x.sizes(), 5);
  const at::Tensor to_residual = random_tensor(x.sizes(), 6);
  const at::Tensor x64 = leaf64(x);
  const at::Tensor weight64 = leaf64(weight.value());
  ListWriter writer("test");
  const int in = writer.input({"x", tiny.config.dim});
  const int out = writer.call(kRmsNorm, "norm", {in}, {&weight.spec()}, NormAttributes{1e-5});
  const auto norm = block(writer.finish({out, in}));
  const Bundle made = forward_in_graph(*norm, {x}, context);
  const at::Tensor& normed = made[0];
  const at::Tensor& residual = made[1];
  EXPECT_TRUE(at::equal(residual, x));
  // backward() overwrites its gradients: pass copies.
  torch::autograd::backward({normed, residual}, {to_normed.clone(), to_residual.clone()});
  const at::Tensor expected = reference_norm(x64, weight64, 1e-5);
  torch::autograd::backward({expected, x64.clone()},
                            {to_normed.to(at::kDouble), to_residual.to(at::kDouble)});
  expect_near(normed, expected, kTolerance, "normed");
  expect_near(x.grad(), x64.grad(), kTolerance, "x");
  expect_near(weight.gradient(), weight64.grad(), kTolerance, "weight");
}

TEST_F(Gradients, RopeMatchesAutograd) {
  const at::Tensor qkv = leaf(random_tensor({tokens(), shape.qkv_width()}, 7));
  const at::Tensor qkv64 = leaf64(qkv);
  const at::Tensor cotangent = random_tensor(qkv.sizes(), 8);
  const auto block = block_of(one_call(kRotary, {shape.qkv_width()}, RotaryAttributes{shape}),
                              {std::make_shared<const RopeTable>(rope), nullptr, {}, {}});
  const at::Tensor out = forward_in_graph(*block, {qkv}, context).front();
  torch::autograd::backward({out}, {cotangent.clone()});
  const at::Tensor expected = reference_rotate(qkv64, shape, batch.positions, rope, {}, {}, 1e-6);
  torch::autograd::backward({expected}, {cotangent.to(at::kDouble)});
  expect_near(out, expected, kTolerance, "out");
  expect_near(qkv.grad(), qkv64.grad(), kTolerance, "qkv");
}

TEST_F(Gradients, AttentionWithinDocumentsMatchesAutograd) {
  const at::Tensor qkv = leaf(random_tensor({tokens(), shape.qkv_width()}, 9));
  const at::Tensor qkv64 = leaf64(qkv);
  const at::Tensor cotangent = random_tensor({tokens(), shape.out_width()}, 10);
  const at::Tensor out = attend_by_calls(qkv, shape, batch);
  torch::autograd::backward({out}, {cotangent});
  const at::Tensor expected = reference_attention(qkv64, shape, batch.host.cu_seqlens);
  torch::autograd::backward({expected}, {cotangent.to(at::kDouble)});
  expect_near(out, expected, kTolerance, "out");
  expect_near(qkv.grad(), qkv64.grad(), kTolerance, "qkv");
}

TEST_F(Gradients, SwigluMatchesAutograd) {
  const at::Tensor gate_up = leaf(random_tensor({tokens(), 2 * tiny.config.ffn_dim}, 11));
  const at::Tensor gate_up64 = leaf64(gate_up);
  const at::Tensor cotangent = random_tensor({tokens(), tiny.config.ffn_dim}, 12);
  const at::Tensor out = call(kSwiglu, {gate_up}, SwigluAttributes());
  torch::autograd::backward({out}, {cotangent});
  const at::Tensor expected = reference_swiglu(gate_up64);
  torch::autograd::backward({expected}, {cotangent.to(at::kDouble)});
  expect_near(out, expected, kTolerance, "out");
  expect_near(gate_up.grad(), gate_up64.grad(), kTolerance, "gate_up");
}

TEST_F(Gradients, ResidualDropoutUsesOneMaskInForwardAndBackward) {
  context.dropout = 0.25;
  context.dropout_key.key = 99;
  const at::Tensor branch = leaf(random_tensor({tokens(), tiny.config.dim}, 13));
  const at::Tensor residual = leaf(random_tensor(branch.sizes(), 14));
  const at::Tensor cotangent = random_tensor(branch.sizes(), 15);
  const at::Tensor mask = residual_add(at::ones_like(branch), at::zeros_like(residual), 5);
  EXPECT_NEAR(mask.eq(0).to(at::kDouble).mean().item<double>(), 0.25, 0.03);
  EXPECT_NEAR(mask.mean().item<double>(), 1.0, 0.04);
  const at::Tensor out = residual_add(branch, residual, 5);
  torch::autograd::backward({out}, {cotangent});
  expect_near(out, branch * mask + residual, kTolerance, "out");
  EXPECT_TRUE(at::equal(residual.grad(), cotangent));
  expect_near(branch.grad(), cotangent * mask, kTolerance, "branch");
  const at::Tensor elsewhere = residual_add(at::ones_like(branch), at::zeros_like(residual), 6);
  EXPECT_FALSE(at::equal(elsewhere, mask));
}

TEST_F(Gradients, HeadAndLossAreScaledAndSkipMaskedLabels) {
  Parameter& norm = parameter("head.norm");
  Parameter& weight = parameter("head.weight");
  const at::Tensor hidden = random_tensor({tokens(), tiny.config.dim}, 16);
  const at::Tensor hidden64 = leaf64(hidden);
  const at::Tensor norm64 = leaf64(norm.value());
  const at::Tensor weight64 = leaf64(weight.value());
  const at::Tensor logits = at::matmul(reference_norm(hidden64, norm64, 1e-5), weight64.t());
  const at::Tensor loss = reference_loss(logits, batch.labels);
  torch::autograd::backward({loss * 0.125});
  for (const int64_t chunk : {int64_t{64}, int64_t{48}, int64_t{7}, int64_t{1}}) {  // 48 tokens
    const CallList calls =
        head_layer(
            "head",
            {.width = tiny.config.dim, .vocab = tiny.config.vocab_size, .chunk = chunk, .norm_eps = 1e-5})
            .list;
    ListHead head(calls, calls, tiny.store.lookup(), std::make_shared<const LayerResources>());
    tiny.start_gradients();
    const LossResult result = head.loss_with_gradients({hidden}, context, scalar(0.125));
    EXPECT_NEAR(result.token_loss.to(at::kDouble).sum().item<double>(), loss.item<double>(),
                1e-5 * loss.item<double>())
        << chunk;
    expect_near(result.input_gradients.at(0), hidden64.grad(), kTolerance, "hidden");
    expect_near(norm.gradient(), norm64.grad(), kTolerance, "norm");
    expect_near(weight.gradient(), weight64.grad(), kTolerance, "weight");
    EXPECT_TRUE(at::equal(head.loss({hidden}, context, /*with_logits=*/false).token_loss, result.token_loss))
        << chunk;
    expect_near(head.loss({hidden}, context, /*with_logits=*/true).logits, logits, kTolerance, "logits");
  }
}

/// A whole layer of each family.
class LayerGradients : public Gradients, public ::testing::WithParamInterface<std::string> {
 protected:
  LayerGradients() : Gradients(GetParam()) {}

  at::Tensor reference_layer(int64_t layer, const at::Tensor& x, std::map<std::string, at::Tensor>& weights) {
    const LayerTraits traits = layer_traits(tiny.config, layer);
    AttentionShape of_layer = shape;
    of_layer.scale = traits.query_scale;
    of_layer.window = traits.window;
    of_layer.cap = traits.score_cap;
    const double theta = traits.window > 0 && tiny.config.rope_local_theta > 0 ? tiny.config.rope_local_theta
                                                                               : tiny.config.rope_theta;
    const RopeTable table =
        make_rope_table(64, traits.latent() ? tiny.config.qk_rope_head_dim : of_layer.head_dim, theta, {});
    const double eps = tiny.config.norm_eps;
    const auto weight = [&](const std::string& name) {
      const std::string full = format("layers.{}.{}", layer, name);
      return weights.try_emplace(full, leaf64(parameter(full).value())).first->second;
    };
    const auto scale = [&](const std::string& name) { return weight(name) + traits.norm_offset; };
    const auto before = [&](const at::Tensor& input, const char* name) {
      return traits.norms_before() ? reference_norm(input, scale(name), eps) : input;
    };
    const auto after = [&](const at::Tensor& result, const char* name) {
      return traits.norms_after() ? reference_norm(result, scale(name), eps) : result;
    };
    const auto direct = [&](const at::Tensor& input) {
      at::Tensor qkv = at::matmul(input, weight("attention.qkv").t());
      if (traits.qkv_bias) qkv = qkv + weight("attention.qkv_bias");
      const bool qk_norm = traits.qk_norm != QkNormScope::none;
      return reference_rotate(qkv, of_layer, batch.positions, table,
                              qk_norm ? scale("attention.q_norm") : at::Tensor(),
                              qk_norm ? scale("attention.k_norm") : at::Tensor(), eps);
    };
    if (traits.latent()) of_layer.value_dim = tiny.config.v_head_dim;
    const at::Tensor input = before(x, "attention.norm");
    const at::Tensor rotated = traits.latent() ? reference_latents(input, table, weight) : direct(input);
    const at::Tensor attended = reference_attention(rotated, of_layer, batch.host.cu_seqlens,
                                                    traits.sinks ? weight("attention.sinks") : at::Tensor());
    at::Tensor projected = at::matmul(attended, weight("attention.out").t());
    if (traits.out_bias) projected = projected + weight("attention.out_bias");
    const at::Tensor middle = x + after(projected, "attention.post_norm");
    if (traits.experts) {
      const at::Tensor correction =
          traits.corrected() ? parameter(format("layers.{}.mlp.correction", layer)).value() : at::Tensor();
      return middle + reference_experts(before(middle, "mlp.norm"), correction, weight);
    }
    const at::Tensor gate_up = at::matmul(before(middle, "mlp.norm"), weight("mlp.gate_up").t());
    const at::Tensor hidden = reference_swiglu(gate_up, traits.activation);
    return middle + after(at::matmul(hidden, weight("mlp.down").t()), "mlp.post_norm");
  }

  /// Rotated queries, keys and values of latent attention.
  template <typename Weight>
  at::Tensor reference_latents(const at::Tensor& x, const RopeTable& table, const Weight& weight) const {
    const LatentDims d = latent_dims(tiny.config);
    const auto normed = [&](const at::Tensor& latent, const char* name) {
      return reference_norm(latent, weight(name), 1e-6);
    };
    const auto product = [&](const at::Tensor& input, const char* name) {
      return at::matmul(input, weight(name).t());
    };
    const at::Tensor q =
        (d.q_rank > 0
             ? product(normed(product(x, "attention.q_down"), "attention.q_latent_norm"), "attention.q_up")
             : product(x, "attention.q"))
            .view({x.size(0), d.heads, d.head_dim()});
    const at::Tensor down = product(x, "attention.kv_down");
    const at::Tensor kv =
        product(normed(down.slice(1, 0, d.kv_rank), "attention.kv_latent_norm"), "attention.kv_up")
            .view({x.size(0), d.heads, d.plain + d.value});
    const auto rotated = [&](const at::Tensor& heads) {
      return reference_pair_rope(heads, batch.positions, table);
    };
    const at::Tensor key_end = rotated(down.slice(1, d.kv_rank).unsqueeze(1)).expand({-1, d.heads, -1});
    return pack(at::cat({q.slice(2, 0, d.plain), rotated(q.slice(2, d.plain))}, 2),
                at::cat({kv.slice(2, 0, d.plain), key_end}, 2), kv.slice(2, d.plain));
  }

  /// The experts of each token and the scores that weigh them, by the kernel's reference (tests/kernels/router_test.cpp).
  at::Tensor chosen_experts(const at::Tensor& logits, const at::Tensor& correction) const {
    const bool sigmoid = correction.defined();
    const RouterOptions options{.score = sigmoid ? RouterScore::sigmoid : RouterScore::softmax,
                                .chosen = tiny.config.experts_per_token,
                                .groups = tiny.config.n_expert_groups,
                                .chosen_groups = tiny.config.groups_per_token,
                                .group_score = sigmoid ? GroupScore::two_largest : GroupScore::largest};
    const at::Tensor indices = at::empty({logits.size(0), options.chosen}, at::kInt);
    const at::Tensor weights = at::empty(indices.sizes(), at::kDouble);
    reference::router_forward(logits.detach(), sigmoid ? correction.to(at::kDouble) : correction, {}, options,
                              indices, weights, {});
    return indices.to(at::kLong);
  }

  template <typename Weight>
  static at::Tensor biased_experts(const at::Tensor& x, const at::Tensor& weights, const Weight& weight) {
    at::Tensor out = at::zeros_like(x);
    for (int64_t e = 0; e < weights.size(1); ++e) {
      const auto of_expert = [&](const std::string& name) {
        return weight("mlp.expert_" + name).select(0, e);
      };
      const at::Tensor gate_up = at::matmul(x, of_expert("gate_up")) + of_expert("gate_up_bias");
      const at::Tensor down =
          at::matmul(reference_clamped_swiglu(gate_up), of_expert("down")) + of_expert("down_bias");
      out = out + weights.select(1, e).unsqueeze(1) * down;
    }
    return out;
  }

  /// All experts for all tokens, of which most weigh 0.
  template <typename Weight>
  at::Tensor reference_experts(const at::Tensor& x, const at::Tensor& correction,
                               const Weight& weight) const {
    const ExpertDims dims = expert_dims(tiny.config);
    const bool biased = layer_traits(tiny.config, 0).biased_experts;
    const auto mlp = [&](const at::Tensor& gate_up, const at::Tensor& down) {
      return at::matmul(reference_swiglu(at::matmul(x, gate_up.t())), down.t());
    };
    at::Tensor logits = at::matmul(x, weight("mlp.router").t());
    if (biased) logits = logits + weight("mlp.router_bias");
    const at::Tensor scores = correction.defined() ? at::sigmoid(logits) : logits.softmax(1);
    const at::Tensor chosen = chosen_experts(logits, correction);
    at::Tensor weights = scores * at::zeros_like(scores.detach()).scatter(1, chosen, 1.0);
    if (normalizes_experts(tiny.config)) weights = weights / weights.sum(1, true);
    weights = weights * tiny.config.routed_scaling_factor;
    if (biased) return biased_experts(x, weights, weight);
    const at::Tensor gate_up = weight("mlp.expert_gate_up").view({dims.experts, -1, dims.width});
    const at::Tensor down = weight("mlp.expert_down").view({dims.experts, dims.width, -1});
    at::Tensor out = at::zeros_like(x);
    for (int64_t e = 0; e < dims.experts; ++e)
      out = out + weights.select(1, e).unsqueeze(1) * mlp(gate_up.select(0, e), down.select(0, e));
    if (dims.shared_hidden == 0) return out;
    const at::Tensor shared = mlp(weight("mlp.shared_gate_up"), weight("mlp.shared_down"));
    if (!dims.shared_gate) return out + shared;
    return out + shared * at::sigmoid(at::matmul(x, weight("mlp.shared_gate").t()));
  }
};

TEST_P(LayerGradients, AWholeLayerMatchesAutograd) {
  for (const int64_t layer : {0, 1}) {
    SCOPED_TRACE(layer);
    const at::Tensor x = leaf(random_tensor({tokens(), tiny.config.dim}, 17));
    const at::Tensor x64 = leaf64(x);
    const at::Tensor cotangent = random_tensor(x.sizes(), 18);
    std::map<std::string, at::Tensor> weights;
    const at::Tensor expected = reference_layer(layer, x64, weights);
    torch::autograd::backward({expected}, {cotangent.to(at::kDouble)});
    const auto block = static_cast<size_t>(layer) + 1;
    const Bundle outputs = forward_in_graph(*tiny.model.blocks.at(block), {x}, context);
    torch::autograd::backward(outputs, {cotangent.clone()});
    expect_near(outputs.at(0), expected, 4 * kTolerance, "out");
    expect_near(x.grad(), x64.grad(), 4 * kTolerance, "x");
    EXPECT_EQ(weights.size(), tiny.store.unit(block).parameters().size());
    for (const auto& [name, weight] : weights) {
      expect_near(parameter(name).gradient(), weight.grad(), 4 * kTolerance, name.c_str());
    }
  }
}

TEST_P(LayerGradients, RecomputedRegionsGiveTheSameBits) {
  context.dropout = 0.1;
  context.dropout_key.key = 4;
  const at::Tensor cotangent = random_tensor({tokens(), tiny.config.dim}, 18);
  const auto run = [&](const std::vector<std::string>& recomputed) {
    context.recomputed_regions = recomputed;
    const at::Tensor x = leaf(random_tensor({tokens(), tiny.config.dim}, 17));
    tiny.start_gradients();
    const Bundle outputs = forward_in_graph(*tiny.model.blocks.at(1), {x}, context);
    torch::autograd::backward(outputs, {cotangent});
    return std::vector<at::Tensor>{outputs.at(0).detach(), x.grad(), tiny.store.unit(1).gradient().clone()};
  };
  const std::vector<at::Tensor> expected = run({});
  for (const std::vector<std::string>& recomputed : std::vector<std::vector<std::string>>{
           {"attention"},
           {"mlp"},
           {"attention", "mlp"},
           {"attention.norm", "mlp.norm", "mlp.swiglu"},
           {"attention.qkv", "attention.attention", "mlp.gate_up"},
           {"attention.rotary", "attention.out", "attention.residual_add"}}) {
    const std::vector<at::Tensor> actual = run(recomputed);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(actual[i], expected[i])) << recomputed.front() << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LayerGradients, ::testing::ValuesIn(family_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stepforge::testing

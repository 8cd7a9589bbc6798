// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/calls_text.h"

#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "stepforge/catalog/decoder_spec.h"
#include "tests/catalog/small_model.h"

namespace stepforge::testing {
namespace {

TEST(CallsText, ListsTheCallsOfEqualLayersOnce) {
  ModelConfig config = small_model("llama", 8, 2);
  config.n_layers = 3;
  config.dim = 48;
  config.head_dim = 6;
  config.ffn_dim = 80;
  EXPECT_EQ(calls_text(model_spec(config)),
            "embedding\n"
            "  embedding\n"
            "    embedding = lookup(; embedding.weight)                  tokens x 48\n"
            "layers.0 to layers.2\n"
            "  attention\n"
            "    norm = rms_norm(hidden; norm)                           tokens x 48, eps 1e-05\n"
            "    qkv = linear(norm; qkv)                                 tokens x 72\n"
            "    rotary = rotary(qkv)                                    tokens x 72\n"
            "    attention = attention(rotary)                           tokens x 48, 8 heads, 2 of keys\n"
            "    out = linear(attention; out)                            tokens x 48\n"
            "    residual_add = residual_add(out, hidden)                tokens x 48\n"
            "  mlp\n"
            "    norm = rms_norm(residual_add; norm)                     tokens x 48, eps 1e-05\n"
            "    gate_up = linear(norm; gate_up)                         tokens x 160\n"
            "    swiglu = swiglu(gate_up)                                tokens x 80, silu\n"
            "    down = linear(swiglu; down)                             tokens x 48\n"
            "    residual_add = residual_add(down, residual_add)         tokens x 48\n"
            "head\n"
            "  head\n"
            "    norm = rms_norm(hidden; head.norm)                      tokens x 48, eps 1e-05\n"
            "    loss = loss(norm; head.weight)                          tokens x 1, 4032 tokens at once\n");
}

TEST(CallsText, OfExpertsAndLatentsReadsLikeTheModel) {
  ModelConfig config = small_model("deepseek_v3", 4, 4);
  const std::string text = calls_text(model_spec(config));
  std::string names;
  std::istringstream lines(text.substr(text.find("layers.0"), text.find("\nhead") - text.find("layers.0")));
  for (std::string line; std::getline(lines, line);)
    if (line.find(" = ") != std::string::npos) names += line.substr(4, line.find_first_of(")") - 3) + "\n";
  EXPECT_EQ(names,
            "norm = rms_norm(hidden; norm)\n"
            "q_down = linear(norm; q_down)\n"
            "q_latent_norm = rms_norm(q_down; q_latent_norm)\n"
            "q_up = linear(q_latent_norm; q_up)\n"
            "kv_down = linear(norm; kv_down)\n"
            "kv_split = split(kv_down)\n"
            "kv_latent_norm = rms_norm(kv_split; kv_latent_norm)\n"
            "kv_up = linear(kv_latent_norm; kv_up)\n"
            "heads = latent_heads(q_up, kv_up, kv_split.1)\n"
            "attention = attention(heads)\n"
            "out = linear(attention; out)\n"
            "residual_add = residual_add(out, hidden)\n"
            "norm = rms_norm(residual_add; norm)\n"
            "route = route(norm; router, correction)\n"
            "slots = sort_rows(route.1)\n"
            "expert_gate_up = expert_in(norm, route.1, slots, slots.1; expert_gate_up)\n"
            "expert_swiglu = swiglu(expert_gate_up, route, slots)\n"
            "expert_down = expert_out(expert_swiglu, route.1, slots, slots.1; expert_down)\n"
            "shared_gate_up = linear(norm; shared_gate_up)\n"
            "shared_swiglu = swiglu(shared_gate_up)\n"
            "shared_down = linear(shared_swiglu; shared_down)\n"
            "add = add(expert_down, shared_down)\n"
            "residual_add = residual_add(add, residual_add)\n");
}

TEST(CallsText, FoldsLayersWhoseExpertsAreSpreadOverRanks) {
  ModelConfig config = small_model("qwen2_moe", 8, 4);
  const std::string text = calls_text(model_spec(config, 0, {}, {}, {}, {0, 3}));
  EXPECT_EQ(text.find("\nlayers."), text.rfind("\nlayers.")) << text;
  EXPECT_NE(text.find("\n .experts\n"), std::string::npos) << text;
  EXPECT_NE(text.find("expert_in(rows, experts, slots, slots.1; expert_gate_up)"), std::string::npos) << text;
  EXPECT_NE(text.find("rows x 40"), std::string::npos) << text;
}

TEST(CallsText, SaysWhatARankOfSlicesExchangesAndRecomputes) {
  const std::string text =
      calls_text(model_spec(small_model("llama", 8, 2), 0, {.degree = 2, .sequence = true}));
  EXPECT_NE(text.find("    enter = exchange(norm)"), std::string::npos) << text;
  EXPECT_NE(text.find("gather; backward: sum of slices, recomputed in backward"), std::string::npos) << text;
  EXPECT_NE(text.find("slice x "), std::string::npos) << text;
}

}  // namespace
}  // namespace stepforge::testing

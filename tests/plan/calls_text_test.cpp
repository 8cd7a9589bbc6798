// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/calls_text.h"

#include <gtest/gtest.h>

#include "stepforge/catalog/decoder_spec.h"
#include "tests/catalog/small_model.h"

namespace stepforge::testing {
namespace {

TEST(CallsText, ListsTheCallsOfEqualLayersOnceAndNamesThoseOfOtherBlocks) {
  ModelConfig config = small_model("llama", 8, 2);
  config.n_layers = 3;
  config.dim = 48;
  config.head_dim = 6;
  config.ffn_dim = 80;
  EXPECT_EQ(calls_text(model_spec(config)),
            "embedding\n"
            "  embedding\n"
            "    embedding\n"
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
            "    rms_norm\n"
            "    linear_cross_entropy\n");
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

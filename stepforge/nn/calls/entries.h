// SPDX-License-Identifier: Apache-2.0
// The functions of call_entries.cpp, one file for each operation.
#pragma once

#include "stepforge/nn/call_entries.h"

namespace stepforge::calls {

void rms_norm(const CallRun& run);
void rms_norm_backward(const CallRun& run);
void linear(const CallRun& run);
void linear_backward(const CallRun& run);
void bias(const CallRun& run);
void bias_backward(const CallRun& run);
void exchange(const CallRun& run);
void exchange_backward(const CallRun& run);
void rotary(const CallRun& run);
void rotary_backward(const CallRun& run);
void attention(const CallRun& run);
void attention_backward(const CallRun& run);
void to_heads(const CallRun& run);
void to_heads_backward(const CallRun& run);
void to_tokens(const CallRun& run);
void to_tokens_backward(const CallRun& run);
void swiglu(const CallRun& run);
void swiglu_backward(const CallRun& run);
void residual_add(const CallRun& run);
void residual_add_backward(const CallRun& run);
void add(const CallRun& run);
void add_backward(const CallRun& run);
void gated_add(const CallRun& run);
void gated_add_backward(const CallRun& run);
void lookup(const CallRun& run);
void lookup_backward(const CallRun& run);
void split(const CallRun& run);
void split_backward(const CallRun& run);
void concat(const CallRun& run);
void concat_backward(const CallRun& run);
void latent_heads(const CallRun& run);
void latent_heads_backward(const CallRun& run);
void wide_linear(const CallRun& run);
void wide_linear_backward(const CallRun& run);
void route(const CallRun& run);
void route_backward(const CallRun& run);
void sort_rows(const CallRun& run);
void sort_rows_backward(const CallRun& run);
void expert_in(const CallRun& run);
void expert_in_backward(const CallRun& run);
void expert_out(const CallRun& run);
void expert_out_backward(const CallRun& run);
void loss(const CallRun& run);
void loss_backward(const CallRun& run);

}  // namespace stepforge::calls

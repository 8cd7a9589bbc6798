// SPDX-License-Identifier: Apache-2.0
// LoRA and DoRA of other trainers as [adapter], and quantized weights as model.frozen_dtype.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stepforge/config/foreign_conversion.h"

namespace stepforge {

/// Where a trainer has the settings of LoRA and DoRA, and what it takes if they are missing. "" for a key that it does not have.
struct ForeignAdapter {
  std::string_view rank = {};
  std::string_view alpha = {};
  std::string_view dropout = {};
  std::string_view targets = {};     ///< a list, names between commas, or one expression; "all" is all-linear
  std::string_view all_linear = {};  ///< a switch for all-linear
  std::string_view also_train = {};
  std::string_view layers = {};
  std::string_view rslora = {};
  std::string_view dora = {};
  std::string_view pissa = {};             ///< a switch
  std::string_view pissa_iterations = {};  ///< below 1: a full SVD
  std::string_view init = {};              ///< init_lora_weights of PEFT
  std::string_view b_lr_ratio = {};
  std::string_view from = {};  ///< folder of an adapter that goes on; it says rank, alpha and targets
  int64_t default_rank = 8;
  double default_alpha = 8;  ///< 0: twice the rank
  double default_dropout = 0.0;
  int64_t default_pissa_iterations = 0;
  std::string_view default_targets = "[\"all-linear\"]";
};

/// Sets [adapter]; `key` asks for it.
void convert_lora(ForeignConversion& conversion, std::string_view key, const ForeignAdapter& adapter);

/// The keys of `adapter` that the file has need nothing.
void need_no_lora(ForeignConversion& conversion, const ForeignAdapter& adapter, std::string_view why);

/// `bits`: of frozen weights, 4 or 8; 0 if they are not quantized, but bf16 if the computation is. `key` says so, and is refused without an adapter or for other
/// numbers of bits.
void convert_quantization(ForeignConversion& conversion, std::string_view key, int64_t bits);

/// The kind of 4-bit numbers, "nf4" or another one, which is lost.
void convert_quantization_type(ForeignConversion& conversion, std::string_view key);

/// Whether factors of 4-bit numbers are quantized too, by `fallback` unless the file has `key`. After convert_quantization().
void convert_double_quantization(ForeignConversion& conversion, std::string_view key, bool fallback);

inline constexpr std::string_view kOnlyLora =
    "of adapters only LoRA and DoRA are available; `--force` converts the rest";
inline constexpr std::string_view kTypeOfProducts =
    "codes are decoded in the type of precision.compute, in which products are computed";
inline constexpr std::string_view kOtherEightBits =
    "LLM.int8 has factors of whole rows, and rounds inputs; here each 64 weights have a factor";
inline constexpr std::string_view kFrozenBits = "\"nf4\" for 4 bits, \"int8\" for 8";
inline constexpr std::string_view kEmbeddingRate =
    "adapter.b_lr_ratio leaves out adapters of embeddings; a group with the pattern embedding.weight.lora "
    "gives them a rate";
inline constexpr std::string_view kOnlyInitOfLora = "adapter.init is kaiming, gaussian or pissa";
inline constexpr std::string_view kOnlyWithPissa = "read only if the adapter starts with singular parts";

}  // namespace stepforge

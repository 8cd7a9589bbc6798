// SPDX-License-Identifier: Apache-2.0
// The section [adapter]. Defaults and meanings are those of PEFT, unless a description says otherwise.
#include "stepforge/config/sections.h"

namespace stepforge {

namespace {

constexpr double kMaxRank = 4096;

SchemaOf<AdapterPatternConfig> pattern_table() {
  return SchemaOf<AdapterPatternConfig>()
      .field("pattern", &AdapterPatternConfig::pattern,
             "Name of modules, or a regular expression that matches their whole name.", {.non_empty = true})
      .field("rank", &AdapterPatternConfig::rank, "Rank of these modules; 0 means adapter.rank.",
             {.min = 0, .max = kMaxRank})
      .field("alpha", &AdapterPatternConfig::alpha, "Alpha of these modules; 0 means adapter.alpha.",
             {.min = 0, .max = 1e6});
}

}  // namespace

SchemaOf<AdapterConfig> adapter_section() {
  return SchemaOf<AdapterConfig>()
      .field("type", &AdapterConfig::type,
             "Kind of adapter: none trains the model itself, lora adds B A x alpha / rank to the result of "
             "each matrix that targets names (arXiv:2106.09685), dora also trains the norms of the rows of "
             "these sums (arXiv:2402.09353).")
      .field("from", &AdapterConfig::from,
             "Folder of an adapter in the format of PEFT whose weights a new run starts from; empty means "
             "init.")
      .field("rank", &AdapterConfig::rank, "Rows of A, and columns of B.", {.min = 1, .max = kMaxRank})
      .field("alpha", &AdapterConfig::alpha, "Scale of the adapter's result, before the division by rank.",
             {.max = 1e6, .above = 0})
      .field("dropout", &AdapterConfig::dropout, "Dropout probability of the adapter's input in training.",
             {.min = 0, .below = 1})
      .field("targets", &AdapterConfig::targets,
             "Modules that get an adapter: names as in Hugging Face models, whole or the last part (q_proj), "
             "regular expressions of whole names, or all-linear, which means all matrices of layers but "
             "those of experts and routers; embed_tokens and lm_head get one only if they are named.",
             {.non_empty = true})
      .field("layers", &AdapterConfig::layers, "Indices of the layers that get adapters; empty means all.",
             {.min = 0, .max = 1e6})
      .tables("patterns", &AdapterConfig::patterns, pattern_table(),
              "Modules with a rank or alpha of their own: one table {pattern, rank, alpha} each; the first "
              "that matches counts.")
      .field(
          "experts", &AdapterConfig::experts,
          "What the experts of a layer have of their own, if targets names them: with each A and B, with shared_a "
          "only B, and one A for each of their matrices (gate, up and down) serves all of them.")
      .field("rslora", &AdapterConfig::rslora,
             "Whether alpha is divided by the square root of the rank instead (arXiv:2312.03732).")
      .field(
          "init", &AdapterConfig::init,
          "Initial values: with kaiming A is uniform within 1 / sqrt(columns), with gaussian normal with "
          "standard deviation 1 / rank, and B is zero; of an embedding A is zero and B normal with standard "
          "deviation 1; with pissa A and B are the largest singular parts of each matrix, which the frozen one "
          "is then without (arXiv:2404.02948).")
      .field(
          "svd_iterations", &AdapterConfig::svd_iterations,
          "Subspace iterations by which pissa computes the singular parts (arXiv:0909.4061): 4 to 16 are fast "
          "and nearly exact; 0 means a full SVD.",
          {.min = 0, .max = 1000})
      .field("b_lr_ratio", &AdapterConfig::b_lr_ratio,
             "Learning rate of B divided by that of A (LoRA+, arXiv:2402.12354); not of embeddings.",
             {.max = 1e6, .above = 0})
      .field("also_train", &AdapterConfig::also_train,
             "Modules of the model that are trained too, named as in targets (modules_to_save in PEFT): "
             "embed_tokens, lm_head, norm.",
             {.non_empty = true})
      .field("bias", &AdapterConfig::bias,
             "Biases of the model that are trained and saved with the adapter: none, all of them, or with "
             "lora_only those of the modules that have an adapter.");
}

}  // namespace stepforge

// SPDX-License-Identifier: Apache-2.0
// Sections [model], [tokenizer] and [data].
#include "stepforge/config/sections.h"

namespace stepforge {

namespace {

SchemaOf<RopeScalingConfig> rope_scaling_table() {
  SchemaOf<RopeScalingConfig> schema;
  schema
      .field(
          "type", &RopeScalingConfig::type,
          {.doc = "How rotary frequencies are stretched for long contexts; llama3 is the rule of Llama 3.1."})
      .field("factor", &RopeScalingConfig::factor,
             {.doc = "Divisor of the lowest frequencies.", .min = 1, .max = 1e6})
      .field("low_freq_factor", &RopeScalingConfig::low_freq_factor,
             {.doc = "Wavelengths above original_max_position divided by this are stretched in full.",
              .max = 1e6,
              .above = 0})
      .field("high_freq_factor", &RopeScalingConfig::high_freq_factor,
             {.doc = "Wavelengths below original_max_position divided by this are left alone.",
              .max = 1e6,
              .above = 0})
      .field("original_max_position", &RopeScalingConfig::original_max_position,
             {.doc = "Context length before stretching.", .unit = "tokens", .min = 1, .max = 1 << 30});
  return schema;
}

SchemaOf<DataSourceConfig> data_source_table() {
  SchemaOf<DataSourceConfig> schema;
  schema
      .field(
          "path", &DataSourceConfig::path,
          {.doc =
               "A file, or a folder whose files are read in the order of their names; of format bin the path "
               "without .bin and .idx, of format synthetic empty."})
      .field("weight", &DataSourceConfig::weight,
             {.doc = "Share of the mixture relative to the other sources.", .max = 1e9, .above = 0})
      .field("field", &DataSourceConfig::field,
             {.doc = "Key under which a JSON line holds its text.", .non_empty = true})
      .field("format", &DataSourceConfig::format,
             {.doc = "What the files hold; auto decides by their names."});
  return schema;
}

}  // namespace

SchemaOf<ModelConfig> model_section() {
  SchemaOf<ModelConfig> schema;
  schema
      .field("family", &ModelConfig::family,
             {.doc = "Architecture; qwen3 normalises queries and keys, llama does not.",
              .choices = {"llama", "qwen3"}})
      .field("dim", &ModelConfig::dim, {.doc = "Width of the hidden state.", .min = 1, .max = 1 << 20})
      .field("n_layers", &ModelConfig::n_layers,
             {.doc = "Number of transformer layers.", .min = 1, .max = 10000})
      .field("n_heads", &ModelConfig::n_heads, {.doc = "Query heads per layer.", .min = 1, .max = 65536})
      .field("n_kv_heads", &ModelConfig::n_kv_heads,
             {.doc = "Key and value heads per layer; divides n_heads.", .min = 1, .max = 65536})
      .field("head_dim", &ModelConfig::head_dim,
             {.doc = "Width of one head, an even number; 0 = dim / n_heads.", .min = 0, .max = 65536})
      .field("ffn_dim", &ModelConfig::ffn_dim, {.doc = "Hidden width of the MLP.", .min = 1, .max = 1 << 22})
      .field("vocab_size", &ModelConfig::vocab_size,
             {.doc = "Rows of the embedding and of the output head; 0 = as many as the tokenizer has tokens.",
              .unit = "tokens",
              .min = 0,
              .max = 1 << 24})
      .field("norm_eps", &ModelConfig::norm_eps,
             {.doc = "Added to the mean square in every RMS norm.", .min = 0, .max = 1})
      .field("rope_theta", &ModelConfig::rope_theta,
             {.doc = "Base of the rotary frequencies.", .max = 1e12, .above = 0})
      .table("rope_scaling", &ModelConfig::rope_scaling, rope_scaling_table(),
             "Change of the rotary frequencies for contexts longer than those first trained on.")
      .field("tie_embeddings", &ModelConfig::tie_embeddings,
             {.doc = "Whether the output head is the embedding matrix itself."})
      .field("dropout", &ModelConfig::dropout,
             {.doc = "Probability of dropping an element of the residual branches while training.",
              .min = 0,
              .below = 1})
      .field("max_position", &ModelConfig::max_position,
             {.doc = "Longest context the model is meant for; bounds training.seq_len.",
              .unit = "tokens",
              .min = 1,
              .max = 1 << 30});
  return schema;
}

SchemaOf<TokenizerConfig> tokenizer_section() {
  SchemaOf<TokenizerConfig> schema;
  schema
      .field("type", &TokenizerConfig::type,
             {.doc = "bytes needs nothing; bpe is trained on the data unless path names one; hf reads the "
                     "tokenizer of a "
                     "Hugging Face model."})
      .field(
          "path", &TokenizerConfig::path,
          {.doc = "A tokenizer.json, or a folder that holds one; empty = the one in run_dir, which type bpe "
                  "trains and keeps there."})
      .field(
          "vocab_size", &TokenizerConfig::vocab_size,
          {.doc = "Size to which a bpe tokenizer is trained.", .unit = "tokens", .min = 257, .max = 1 << 24})
      .field("train_bytes", &TokenizerConfig::train_bytes,
             {.doc = "Most text read to train a bpe tokenizer.", .unit = "bytes", .min = 1, .max = 1e12});
  return schema;
}

SchemaOf<DataConfig> data_section() {
  SchemaOf<DataConfig> schema;
  schema
      .tables("sources", &DataConfig::sources, data_source_table(),
              "What is trained on: one table {path, weight, field, format} per source.", guarded(Guard::data))
      .tables("validation", &DataConfig::validation, data_source_table(),
              "What is validated on; empty = see validation_fraction.")
      .field("validation_fraction", &DataConfig::validation_fraction,
             {.doc = "Share of the documents of the sources that is held out for validation; 0 = none.",
              .min = 0,
              .below = 1,
              .on_resume = guarded(Guard::data)})
      .field("document", &DataConfig::document,
             {.doc = "What one document of a plain-text file is; paragraphs end at an empty line.",
              .on_resume = guarded(Guard::data)})
      .field("shuffle", &DataConfig::shuffle,
             {.doc = "Whether the rows of an epoch are visited in random order.",
              .on_resume = guarded(Guard::data)})
      .field("seed", &DataConfig::seed,
             {.doc = "Seed of the order, the mixture and the held-out share.",
              .min = 0,
              .max = 1e15,
              .on_resume = guarded(Guard::seed)})
      .field("prefetch", &DataConfig::prefetch,
             {.doc = "Batches prepared ahead of the step.",
              .unit = "batches",
              .min = 0,
              .max = 1024,
              .on_resume = unreported})
      .field("cache_dir", &DataConfig::cache_dir,
             {.doc = "Folder of tokenized data; empty = stepforge under the user's cache directory.",
              .on_resume = unreported})
      .field("synthetic_tokens", &DataConfig::synthetic_tokens,
             {.doc = "Length of a synthetic source before it repeats.",
              .unit = "tokens",
              .min = 2,
              .max = 1e12,
              .on_resume = guarded(Guard::data)})
      .field("synthetic_document_length", &DataConfig::synthetic_document_length,
             {.doc = "Mean length of a synthetic document; 0 = each row is one document.",
              .unit = "tokens",
              .min = 0,
              .max = 1e9,
              .on_resume = guarded(Guard::data)});
  return schema;
}

}  // namespace stepforge

// SPDX-License-Identifier: Apache-2.0
// Sections [model], [tokenizer] and [data].
#include "stepforge/config/sections.h"

namespace stepforge {

namespace {

SchemaOf<RopeScalingConfig> rope_scaling_table() {
  return SchemaOf<RopeScalingConfig>()
      .field("type", &RopeScalingConfig::type,
             "How rotary frequencies are scaled for long contexts: "
             "none leaves them unchanged, linear divides all, dynamic none up to max_position, "
             "llama3 and yarn the low ones, longrope each by its own factor.")
      .field("factor", &RopeScalingConfig::factor, "Factor by which the lowest frequencies are divided.",
             {.min = 1, .max = 1e6})
      .field("low_freq_factor", &RopeScalingConfig::low_freq_factor,
             "Wavelengths longer than original_max_position / low_freq_factor are scaled by the full factor.",
             {.max = 1e6, .above = 0})
      .field("high_freq_factor", &RopeScalingConfig::high_freq_factor,
             "Wavelengths shorter than original_max_position / high_freq_factor are not scaled.",
             {.max = 1e6, .above = 0})
      .field("original_max_position", &RopeScalingConfig::original_max_position,
             "Context length of the model before scaling.", {.unit = "tokens", .min = 1, .max = 1 << 30})
      .field("attention_factor", &RopeScalingConfig::attention_factor,
             "With yarn and longrope: factor of rotated queries and keys; "
             "0 means 1 + mscale ln(factor) / 10, where mscale is 1 unless both are set, "
             "or with longrope the root of 1 + ln(factor) / ln(original_max_position).",
             {.min = 0, .max = 1e6})
      .field("beta_fast", &RopeScalingConfig::beta_fast,
             "With yarn: frequencies with more turns in the original context are not scaled.",
             {.max = 1e6, .above = 0})
      .field("beta_slow", &RopeScalingConfig::beta_slow,
             "With yarn: frequencies with fewer turns in the original context are scaled by the full factor.",
             {.max = 1e6, .above = 0})
      .field("mscale", &RopeScalingConfig::mscale,
             "With yarn: if mscale_all_dim is set too, the attention factor is the ratio of the factors "
             "that the two give.",
             {.min = 0, .max = 1e6})
      .field("mscale_all_dim", &RopeScalingConfig::mscale_all_dim, "See mscale.", {.min = 0, .max = 1e6})
      .field("truncate", &RopeScalingConfig::truncate,
             "With yarn: whether the range between beta_fast and beta_slow is rounded to whole frequencies.")
      .field("short_factor", &RopeScalingConfig::short_factor,
             "With longrope: divisor of each frequency in rows of up to original_max_position tokens, "
             "one number for each rotated pair of elements.",
             {.max = 1e6, .above = 0})
      .field("long_factor", &RopeScalingConfig::long_factor,
             "With longrope: the same for longer rows (training.seq_len).", {.max = 1e6, .above = 0});
}

constexpr int kMaxGroupDepth = 8;

SchemaOf<DataSourceConfig> data_source_table() {
  return SchemaOf<DataSourceConfig>()
      .field("path", &DataSourceConfig::path,
             "File to read, pattern such as books/*.txt, or folder whose files are read in the order of "
             "their names; for a Megatron pair the path without .bin and .idx, for format synthetic empty.")
      .field("kind", &DataSourceConfig::kind,
             "What reads the source: the program, according to format (builtin), or the data source of this "
             "name in a plug-in.",
             {.choices = {"builtin"}, .open_to = "data source"})
      .field("weight", &DataSourceConfig::weight,
             "Weight of this source in the mixture, relative to the other sources.", {.max = 1e9, .above = 0})
      .field("field", &DataSourceConfig::field, "Key of the text in each JSON line, or column of a table.",
             {.non_empty = true})
      .field("format", &DataSourceConfig::format,
             "Format of the files: auto derives it from their names, bin stands for Megatron's pairs "
             "and llm.c's token files, tokens_u16 and tokens_u32 for token ids without a header, "
             "mds for folders of MosaicML's shards, messages to prompt_completion for conversations, "
             "preference for pairs of answers, and unpaired_preference for answers that are judged alone.")
      .field("loss_on", &DataSourceConfig::loss_on,
             "Which messages of a conversation count in the loss: "
             "all messages of the assistant, its last one, or all messages.")
      .field("dataset", &DataSourceConfig::dataset,
             "Name of a data set in LLaMA-Factory's dataset_info.json; "
             "path is then that file or its folder, and the entry gives the data file and its format.")
      .field("name", &DataSourceConfig::name,
             "Name of the source in statistics and metrics; empty means its data set or path.");
}

/// A source or a group, in which groups are nested up to `depth` deep.
SchemaOf<DataSourceConfig> data_entry_table(int depth) {
  SchemaOf<DataSourceConfig> table = data_source_table();
  table.field(
      "epochs", &DataSourceConfig::epochs,
      "How often the source is repeated in one epoch of its list, instead of weight; 0.5 is half of it, -1 "
      "means that weight applies.",
      {.max = 1e6, .above = 0, .special = -1});
  if (depth == 0) return table;
  return table
      .field("combine", &DataSourceConfig::combine,
             "How the sources of a group are combined: mix divides its rows by their weights or epochs, "
             "concat makes them one source with the rows of each once.")
      .inner_tables("sources", &DataSourceConfig::sources, data_entry_table(depth - 1),
                    "Makes the entry a group of these sources, which may be groups too.");
}

}  // namespace

SchemaOf<ModelConfig> model_section() {
  return SchemaOf<ModelConfig>()
      .field("from", &ModelConfig::from,
             "Hugging Face folder, run or checkpoint to start from: it sets the other keys of this section, "
             "the tokenizer, the chat template and the initial weights, and defaults for fine-tuning; "
             "empty means a new model.",
             {}, kUnreported)
      .field("family", &ModelConfig::family,
             "Model architecture; docs/models.md says how the families differ.",
             {.choices = {"llama", "qwen2", "qwen3", "mistral", "olmo2", "gemma2", "gemma3", "qwen3_moe",
                          "qwen2_moe", "mixtral", "deepseek_v2", "deepseek_v3", "gpt_oss"},
              .open_to = "model family"})
      .field("dim", &ModelConfig::dim, "Hidden size of the model.", {.min = 1, .max = 1 << 20})
      .field("n_layers", &ModelConfig::n_layers, "Number of transformer layers.", {.min = 1, .max = 10000})
      .field("n_heads", &ModelConfig::n_heads, "Number of query heads per layer.", {.min = 1, .max = 65536})
      .field("n_kv_heads", &ModelConfig::n_kv_heads,
             "Number of key and value heads per layer; must divide n_heads.", {.min = 1, .max = 65536})
      .field("head_dim", &ModelConfig::head_dim,
             "Size of each attention head, an even number; 0 means dim / n_heads.", {.min = 0, .max = 65536})
      .field("ffn_dim", &ModelConfig::ffn_dim, "Hidden size of the MLP.", {.min = 1, .max = 1 << 22})
      .field(
          "vocab_size", &ModelConfig::vocab_size,
          "Number of rows of the embedding and of the output head; 0 means the tokenizer's vocabulary size.",
          {.unit = "tokens", .min = 0, .max = 1 << 24})
      .field("norm_eps", &ModelConfig::norm_eps, "Epsilon added to the mean square in RMS norms.",
             {.min = 0, .max = 1})
      .field("rope_theta", &ModelConfig::rope_theta, "Base of the rotary embedding frequencies.",
             {.max = 1e12, .above = 0})
      .field("rope_local_theta", &ModelConfig::rope_local_theta,
             "Base of the rotary embedding in layers with a sliding window, which rope_scaling does not "
             "scale; 0 means rope_theta.",
             {.min = 0, .max = 1e12})
      .table("rope_scaling", &ModelConfig::rope_scaling, rope_scaling_table(),
             "Scaling of the rotary frequencies for contexts longer than the original one.")
      .field("sliding_window", &ModelConfig::sliding_window,
             "Number of keys that a query sees in layers with a sliding window, itself and those before it; "
             "0 means that no layer has one.",
             {.unit = "tokens", .min = 0, .max = 1 << 30})
      .field("layer_types", &ModelConfig::layer_types,
             "Which layers have the sliding window; the list is repeated for further layers, "
             "and an empty one means all.")
      .field("query_pre_attn_scalar", &ModelConfig::query_pre_attn_scalar,
             "Attention scores are divided by the square root of this number; 0 means head_dim.",
             {.min = 0, .max = 1e9})
      .field("attention_softcap", &ModelConfig::attention_softcap,
             "Soft cap c of the attention scores s, which become c tanh(s / c); 0 means none.",
             {.min = 0, .max = 1e9})
      .field("q_lora_rank", &ModelConfig::q_lora_rank,
             "With multi-head latent attention (MLA): size of the latent from which queries are computed; "
             "0 means that queries have no latent.",
             {.min = 0, .max = 1 << 20})
      .field("kv_lora_rank", &ModelConfig::kv_lora_rank,
             "With MLA: size of the latent from which keys and values are computed.",
             {.min = 0, .max = 1 << 20})
      .field("qk_nope_head_dim", &ModelConfig::qk_nope_head_dim,
             "With MLA: number of elements of a query or key head without rotary embedding.",
             {.min = 0, .max = 65536})
      .field("qk_rope_head_dim", &ModelConfig::qk_rope_head_dim,
             "With MLA: number of elements of a query or key head with rotary embedding, an even number; "
             "all heads share those of the key.",
             {.min = 0, .max = 65536})
      .field("v_head_dim", &ModelConfig::v_head_dim, "With MLA: size of a value head.",
             {.min = 0, .max = 65536})
      .field("logit_softcap", &ModelConfig::logit_softcap,
             "Soft cap c of the logits x, which become c tanh(x / c); 0 means none.", {.min = 0, .max = 1e9})
      .field("n_experts", &ModelConfig::n_experts,
             "Number of experts in a mixture-of-experts layer; families with such layers need it.",
             {.min = 0, .max = 65536})
      .field("experts_per_token", &ModelConfig::experts_per_token,
             "Number of experts that the router chooses for each token.", {.min = 0, .max = 65536})
      .field("moe_ffn_dim", &ModelConfig::moe_ffn_dim, "Hidden size of each expert; 0 means ffn_dim.",
             {.min = 0, .max = 1 << 22})
      .field("shared_expert_dim", &ModelConfig::shared_expert_dim,
             "Hidden size of the shared expert, which all tokens take.", {.min = 0, .max = 1 << 22})
      .field("n_shared_experts", &ModelConfig::n_shared_experts,
             "Size of the shared expert, which all tokens take, as a multiple of an expert's "
             "size (DeepSeek).",
             {.min = 0, .max = 65536})
      .field("norm_topk_prob", &ModelConfig::norm_topk_prob,
             "Whether the weights of a token's experts are divided by their sum.")
      .field("routed_scaling_factor", &ModelConfig::routed_scaling_factor,
             "Factor of the weights of a token's experts (DeepSeek).", {.max = 1e6, .above = 0})
      .field("n_expert_groups", &ModelConfig::n_expert_groups,
             "Number of equal groups of experts; the router first chooses some of the groups (DeepSeek).",
             {.min = 1, .max = 65536})
      .field("groups_per_token", &ModelConfig::groups_per_token,
             "Number of groups of experts that the router chooses for each token.", {.min = 1, .max = 65536})
      .field("moe_layer_freq", &ModelConfig::moe_layer_freq,
             "With n, every n-th layer (n - 1, 2 n - 1, ...) has experts, unless dense_layers names it.",
             {.min = 1, .max = 10000})
      .field("first_dense_layers", &ModelConfig::first_dense_layers,
             "Number of layers at the start of the model that have an MLP instead of experts.",
             {.min = 0, .max = 10000})
      .field("dense_layers", &ModelConfig::dense_layers,
             "Indices of layers that have an MLP instead of experts.", {.min = 0, .max = 9999})
      .field("router_aux_loss_weight", &ModelConfig::router_aux_loss_weight,
             "Weight of the loss that balances the experts within each row (DeepSeek-V3: 1e-4), which is not "
             "part of the logged loss; 0 means none.",
             {.min = 0, .max = 1})
      .field("router_z_loss_weight", &ModelConfig::router_z_loss_weight,
             "Weight of the z-loss of the routers in the gradients (ST-MoE: 1e-3), which keeps their logits "
             "from growing and is not part of the logged loss.",
             {.min = 0, .max = 1})
      .field("router_bias_update_speed", &ModelConfig::router_bias_update_speed,
             "Amount by which each step raises the correction of experts that had too few tokens, "
             "and lowers that of the others (DeepSeek-V3: 1e-3), to balance experts without a loss; "
             "0 leaves the corrections unchanged.",
             {.min = 0, .max = 1})
      .field("n_mtp_layers", &ModelConfig::n_mtp_layers,
             "Number of additional layers that are trained to predict tokens after the next one "
             "(multi-token prediction; DeepSeek-V3: 1); evaluation and generation do not use them.",
             {.min = 0, .max = 16})
      .field("mtp_loss_weight", &ModelConfig::mtp_loss_weight,
             "Weight of the mean loss of multi-token prediction in the gradients (DeepSeek-V3: "
             "0.3, later 0.1), which is not part of the logged loss.",
             {.max = 10, .above = 0})
      .field("tie_embeddings", &ModelConfig::tie_embeddings,
             "Whether the output head shares its weights with the embedding.")
      .field(
          "head", &ModelConfig::head,
          "What the model makes of its last hidden states: vocabulary, logits of the next token, or score, the "
          "one number of a reward model; preference.loss = \"reward\" makes it a score.")
      .field("score_init_std", &ModelConfig::score_init_std,
             "Standard deviation of the initial weights of a score (initializer_range of config.json).",
             {.min = 0, .max = 10})
      .field("dropout", &ModelConfig::dropout,
             "Dropout probability of the residual branches during training.", {.min = 0, .below = 1})
      .field("max_position", &ModelConfig::max_position,
             "Maximum context length of the model; training.seq_len must not exceed it.",
             {.unit = "tokens", .min = 1, .max = 1 << 30})
      .field("freeze", &ModelConfig::freeze,
             "Regular expressions of weights that are not trained: "
             "each must match the whole name of a unit (embedding, layers.0), of a parameter "
             "(layers.0.mlp.down) or of a tensor in Hugging Face files.",
             {.non_empty = true})
      .field(
          "frozen_dtype", &ModelConfig::frozen_dtype,
          "How frozen weights are kept: bf16 halves their memory, and is exact if the initial weights are bf16; nf4 "
          "has 4.5 bits (QLoRA) and int8 has 8.5 bits for each weight of the matrices in layers, which a step decodes block "
          "by block, and bf16 for the others.")
      .field(
          "double_quantization", &ModelConfig::double_quantization,
          "With frozen_dtype = \"nf4\": whether the factors of blocks are codes of 8 bits too, so that a weight has 4.13 bits "
          "(QLoRA).");
}

SchemaOf<TokenizerConfig> tokenizer_section() {
  return SchemaOf<TokenizerConfig>()
      .field("type", &TokenizerConfig::type,
             "Tokenizer type: bytes maps each byte to a token, bpe is trained on the data unless path is "
             "set, hf loads the tokenizer of a Hugging Face model.")
      .field("path", &TokenizerConfig::path,
             "Path of a tokenizer.json or of the folder that contains it; empty means the tokenizer in "
             "run_dir, where a trained bpe tokenizer is saved.")
      .field("vocab_size", &TokenizerConfig::vocab_size, "Vocabulary size of a bpe tokenizer to be trained.",
             {.unit = "tokens", .min = 257, .max = 1 << 24})
      .field("train_bytes", &TokenizerConfig::train_bytes,
             "Maximum amount of text used to train a bpe tokenizer.",
             {.unit = "bytes", .min = 1, .max = 1e12})
      .field(
          "special_tokens", &TokenizerConfig::special_tokens,
          "Special tokens of a tokenizer to be trained, which have the first ids in this order; empty means "
          "<|endoftext|>, which has the last id.")
      .field("eos_token", &TokenizerConfig::eos_token,
             "Which of special_tokens ends a text; empty means <|endoftext|>.")
      .field("bos_token", &TokenizerConfig::bos_token,
             "Which of special_tokens begins every text; empty means none.")
      .field("min_frequency", &TokenizerConfig::min_frequency,
             "How often a pair of tokens must occur in the text to become a token.", {.min = 1, .max = 1e12})
      .field(
          "pattern", &TokenizerConfig::pattern,
          "How text is split into words before training: gpt2, llama3, qwen, o200k, or a regular expression.")
      .field("digits", &TokenizerConfig::digits,
             "How digits are split before the pattern applies: pattern does not split them, "
             "one makes each digit a word, three makes words of up to three digits.");
}

SchemaOf<DataFilterConfig> data_filter_table() {
  return SchemaOf<DataFilterConfig>()
      .field("min_bytes", &DataFilterConfig::min_bytes, "Shorter documents are dropped.",
             {.unit = "bytes", .min = 0, .max = 1e15})
      .field("max_bytes", &DataFilterConfig::max_bytes, "Longer documents are dropped; 0 means none are.",
             {.unit = "bytes", .min = 0, .max = 1e15})
      .field("min_words", &DataFilterConfig::min_words,
             "Documents of fewer words are dropped; words are separated by white space.",
             {.unit = "words", .min = 0, .max = 1e15})
      .field("max_words", &DataFilterConfig::max_words,
             "Documents of more words are dropped; 0 means none are.",
             {.unit = "words", .min = 0, .max = 1e15})
      .field("max_symbols", &DataFilterConfig::max_symbols,
             "Documents are dropped if a larger share of their characters are neither letters, "
             "digits nor white space.",
             {.min = 0, .max = 1})
      .field("min_mean_word_length", &DataFilterConfig::min_mean_word_length,
             "Documents whose words are shorter on average are dropped.",
             {.unit = "characters", .min = 0, .max = 1e6})
      .field("max_mean_word_length", &DataFilterConfig::max_mean_word_length,
             "Documents whose words are longer on average are dropped; 0 means none are.",
             {.unit = "characters", .min = 0, .max = 1e6})
      .field("max_repeated_lines", &DataFilterConfig::max_repeated_lines,
             "Documents are dropped if a larger share of their lines repeat an earlier one.",
             {.min = 0, .max = 1})
      .field("include", &DataFilterConfig::include,
             "Regular expressions; only documents in which one of them matches are kept.")
      .field("exclude", &DataFilterConfig::exclude,
             "Regular expressions; documents in which one of them matches are dropped.");
}

SchemaOf<DataConfig> data_section() {
  return SchemaOf<DataConfig>()
      .tables("sources", &DataConfig::sources, data_entry_table(kMaxGroupDepth),
              "Training data: one table {path, weight, field, format} per source, or {sources, weight, "
              "combine} per group of sources.",
              guarded(Guard::data))
      .tables("validation", &DataConfig::validation, data_source_table(),
              "Validation data, in the format of sources; if empty, validation_fraction applies.")
      .field("validation_fraction", &DataConfig::validation_fraction,
             "Fraction of the documents in sources that is held out for validation; 0 means none.",
             {.min = 0, .below = 1}, guarded(Guard::data))
      .field(
          "split", &DataConfig::split,
          "Shares of the documents of finished data sets for training, validation and test, in their order, "
          "such as 969,30,1; empty means that all are for training.",
          {}, guarded(Guard::data))
      .field("document", &DataConfig::document,
             "How plain-text files are split into documents: one per file, per line, or per paragraph, where "
             "an empty line ends a paragraph.",
             {}, guarded(Guard::data))
      .table("filter", &DataConfig::filter, data_filter_table(),
             "Rules for documents; a document that breaks one is dropped.", guarded(Guard::data))
      .field("deduplicate", &DataConfig::deduplicate,
             "Whether documents whose text occurred before in the same source are dropped.", {},
             guarded(Guard::data))
      .field("on_bad_record", &DataConfig::on_bad_record,
             "What to do about a malformed record: stop with an error that names it, or skip it.", {},
             guarded(Guard::data))
      .field("max_bad_records", &DataConfig::max_bad_records,
             "With on_bad_record = \"skip\": maximum number of malformed records that are skipped per "
             "source; one more is an error.",
             {.unit = "records", .min = 0, .max = 1e12}, guarded(Guard::data))
      .field("packing", &DataConfig::packing,
             "How documents are packed into rows (default: best_fit if a source has conversations or "
             "instructions): concat joins all documents and cuts them into rows, hard does the same in "
             "shuffled order, soft and best_fit pack whole documents, budget packs whole documents in "
             "their order, none gives each document its own row, preset reads the packing from files.",
             {}, guarded(Guard::data))
      .field("preset", &DataConfig::preset,
             "With packing preset: folder with the rows, which stepforge data pack writes.", {},
             guarded(Guard::data))
      .field("group_by_length", &DataConfig::group_by_length,
             "Whether each step has rows of about the same attention cost: rows are shuffled, "
             "sorted by cost in blocks of some steps, and the steps of a block are shuffled.",
             {}, guarded(Guard::data))
      .field("balance", &DataConfig::balance,
             "Whether the rows of a step are ordered so that all ranks have about the same attention cost "
             "(the sum over documents of the squared length).",
             {}, guarded(Guard::data))
      .field("too_long", &DataConfig::too_long,
             "How documents longer than seq_len are handled where rows hold whole documents: "
             "cut removes their end, drop leaves them out, error stops, proportional cuts questions and "
             "answers in proportion, as LLaMA-Factory does.",
             {}, guarded(Guard::data))
      .field("chat_template", &DataConfig::chat_template,
             "Jinja template that renders conversations: a path, or the name of a built-in one: chatml, "
             "llama3, gemma, mistral, qwen, deepseek, alpaca; empty means the one beside the tokenizer.",
             {}, guarded(Guard::data))
      .field("bos", &DataConfig::bos,
             "Whether documents begin with the tokens that the tokenizer puts before a text, such as <s>.",
             {}, guarded(Guard::data))
      .field("eos", &DataConfig::eos, "Whether documents end with the end-of-text token of the tokenizer.",
             {}, guarded(Guard::data))
      .field("shuffle", &DataConfig::shuffle, "Whether to shuffle the rows in every epoch.", {},
             guarded(Guard::data))
      .field("weights_by", &DataConfig::weights_by,
             "What weights are shares of: rows, tokens without padding, or samples (documents).", {},
             guarded(Guard::data))
      .field("temperature", &DataConfig::temperature,
             "If T is above 0, sources in a list without weights are weighted by their number of tokens to "
             "the power of 1/T; large values make the weights equal.",
             {.min = 0, .max = 1e6}, guarded(Guard::data))
      .field("epoch_remainder", &DataConfig::epoch_remainder,
             "What happens to the last rows of an epoch if they do not fill a step: carry puts them into a "
             "step with rows of the next epoch, smaller_step into a step of their own.",
             {}, guarded(Guard::data))
      .field("seed", &DataConfig::seed, "Seed of the shuffling, the mixture and the validation split.",
             {.min = 0, .max = 1e15}, guarded(Guard::seed))
      .field("prefetch", &DataConfig::prefetch, "Number of batches prepared ahead of the training step.",
             {.unit = "batches", .min = 0, .max = 1024}, kUnreported)
      .field("cache_dir", &DataConfig::cache_dir,
             "Folder for tokenized data; empty means the folder stepforge in the user's cache directory.", {},
             kUnreported)
      .field("synthetic_tokens", &DataConfig::synthetic_tokens,
             "Number of tokens after which a synthetic source repeats.",
             {.unit = "tokens", .min = 2, .max = 1e12}, guarded(Guard::data))
      .field("synthetic_document_length", &DataConfig::synthetic_document_length,
             "Mean length of the documents of a synthetic source; 0 means one document per row.",
             {.unit = "tokens", .min = 0, .max = 1e9}, guarded(Guard::data));
}

}  // namespace stepforge

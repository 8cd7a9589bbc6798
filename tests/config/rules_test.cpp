// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/rules.h"

#include <gtest/gtest.h>

#include "tests/config/config_testing.h"
#include "tests/support/temp_folder.h"

namespace stepforge::testing {
namespace {

TEST(ModelRules, HeadsDivideEvenly) {
  EXPECT_EQ(error_of("[model]\nn_heads = 6\nn_kv_heads = 4\nhead_dim = 32\n"),
            "run.toml:2:11: model.n_heads = 6 and run.toml:3:14: model.n_kv_heads = 4: n_heads must be a "
            "multiple of n_kv_heads");
  EXPECT_EQ(error_of("[model]\ndim = 100\n"),
            "run.toml:2:7: model.dim = 100 and default: model.n_heads = 8: dim must be a multiple of "
            "n_heads, unless model.head_dim is set");
  EXPECT_EQ(error_of("[model]\ndim = 100\nhead_dim = 12\n"), "");
}

TEST(ModelRules, HeadDimIsEven) {
  EXPECT_EQ(error_of("[model]\nhead_dim = 33\n"),
            "run.toml:2:12: model.head_dim = 33: rotary embeddings need an even head_dim");
  EXPECT_EQ(error_of("[model]\ndim = 24\n"),
            "run.toml:2:7: model.dim = 24 and default: model.n_heads = 8: dim / n_heads = 3, but rotary "
            "embeddings need an even head_dim");
}

TEST(ModelRules, RopeScalingFactorsAreInOrder) {
  const std::string text = "[model.rope_scaling]\nlow_freq_factor = 4\n";
  EXPECT_EQ(error_of(text), "");
  for (const char* head_dim : {"0", "64"}) {
    EXPECT_EQ(error_of(text, {"model.rope_scaling.type=llama3", format("model.head_dim={}", head_dim)}),
              "run.toml:2:19: model.rope_scaling.low_freq_factor = 4.0 and default: "
              "model.rope_scaling.high_freq_factor = 4.0: low_freq_factor must be below high_freq_factor");
  }
}

TEST(AdapterRules, SingularPartsOfExpertsHaveNoCommonA) {
  Strings pissa{"adapter.type=lora", "adapter.init=pissa", "checkpoint.initial_load_path=model"};
  EXPECT_EQ(error_of("", pissa), "");
  pissa.emplace_back("adapter.experts=shared_a");
  EXPECT_CONTAINS(error_of("", pissa), "adapter.init = \"pissa\"", "adapter.experts = \"shared_a\"",
                  "set experts = \"each\"");
}

TEST(TokenizerRules, ABytesTokenizerHasNoFile) {
  EXPECT_EQ(error_of("[tokenizer]\npath = \"x\"\n"),
            "default: tokenizer.type = \"bytes\" and run.toml:2:8: tokenizer.path = \"x\": a bytes tokenizer "
            "has no file; remove path, or set type to \"bpe\" or \"hf\"");
}

TEST(TokenizerRules, ATrainedTokenizerFitsTheVocabularyOfTheModel) {
  EXPECT_EQ(
      error_of("[model]\nvocab_size = 300\n[tokenizer]\ntype = \"bpe\"\n"),
      "default: tokenizer.vocab_size = 4096 and run.toml:2:14: model.vocab_size = 300: the tokenizer would "
      "have more tokens than the model; increase model.vocab_size, or set it to 0 for the tokenizer's size");
  EXPECT_EQ(error_of("[model]\nvocab_size = 5000\n[tokenizer]\ntype = \"bpe\"\n"), "");
}

TEST(TokenizerRules, EosAndBosAreSpecialTokens) {
  const std::string bpe = "[tokenizer]\ntype = \"bpe\"\n";
  EXPECT_CONTAINS(error_of(bpe + "special_tokens = [\"<s>\"]\n"), "tokenizer.eos_token",
                  "one of special_tokens");
  EXPECT_CONTAINS(error_of(bpe + "bos_token = \"<s>\"\n"), "tokenizer.bos_token = \"<s>\"");
  EXPECT_EQ(
      error_of(bpe + "special_tokens = [\"<s>\", \"</s>\"]\neos_token = \"</s>\"\nbos_token = \"<s>\"\n"),
      "");
}

TEST(DataRules, OnlyASyntheticSourceHasNoPath) {
  EXPECT_EQ(
      error_of("[data]\nsources = [{ weight = 2 }]\n"),
      "run.toml:2:12: data.sources.0.path = \"\": a source needs a path, unless its format is \"synthetic\"");
  EXPECT_EQ(error_of("[data]\nvalidation = [{ format = \"synthetic\", path = \"a\" }]\n"),
            "run.toml:2:46: data.validation.0.path = \"a\" and run.toml:2:26: data.validation.0.format = "
            "\"synthetic\": a synthetic source has no path; remove it, or choose another format");
}

std::string error_of_sources(const std::string& sources, const std::string& more = "") {
  return error_of(format("[data]\nsources = [{}]\n{}", sources, more));
}

TEST(DataRules, SourcesAreNestedInGroups) {
  EXPECT_EQ(error_of_sources("{path = \"a\", weight = 2}, {name = \"g\", combine = \"concat\", sources = "
                             "[{path = \"b\"}, {sources = [{path = \"c\", weight = 3}, {format = "
                             "\"synthetic\"}]}]}"),
            "");
  EXPECT_CONTAINS(error_of_sources("{sources = [{weight = 2}]}"),
                  "data.sources.0.sources.0.path = \"\": a source needs a path");
  EXPECT_CONTAINS(error_of_sources("{sources = []}"), "data.sources.0.path = \"\": a source needs a path");
  EXPECT_CONTAINS(error_of_sources("{sources = [{path = \"a\", weight = 0}]}"),
                  "data.sources.0.sources.0.weight = 0: expected a number (above 0");
  EXPECT_CONTAINS(error_of("[data]\nvalidation = [{ sources = [] }]\n"),
                  "data.validation.0.sources: unknown key");
}

TEST(DataRules, GroupsAreNestedEightDeepAtMost) {
  std::string nested = "{path = \"a\"}";
  for (int depth = 0; depth < 8; ++depth) nested = format("{{sources = [{}]}}", nested);
  EXPECT_EQ(error_of_sources(nested), "");
  EXPECT_CONTAINS(error_of_sources(format("{{sources = [{}]}}", nested)), "sources.0.sources: unknown key");
}

TEST(DataRules, AGroupReadsNothingItself) {
  for (const std::string own : {"path = \"x\"", "field = \"x\"", "format = \"text\"", "loss_on = \"all\""}) {
    EXPECT_CONTAINS(error_of_sources(format("{{{}, sources = [{{path = \"a\"}}]}}", own)),
                    own + ": an entry with sources is a group, which reads nothing itself");
  }
  EXPECT_CONTAINS(error_of_sources("{path = \"a\", combine = \"concat\"}"),
                  "data.sources.0.combine = \"concat\": only a group combines sources");
}

TEST(DataRules, AListHasWeightsOrEpochs) {
  EXPECT_EQ(error_of_sources("{path = \"a\", epochs = 0.5}, {path = \"b\", epochs = 2}"), "");
  EXPECT_CONTAINS(error_of_sources("{path = \"a\", epochs = 0}"),
                  "data.sources.0.epochs = 0: expected a number");
  EXPECT_CONTAINS(error_of_sources("{path = \"a\", epochs = 1}, {path = \"b\"}"),
                  "data.sources.1.epochs = -1.0: a list of sources has either weights or epochs");
  EXPECT_CONTAINS(error_of_sources("{path = \"a\", epochs = 1, weight = 2}"),
                  "data.sources.0.epochs = 1.0: a source has either a weight or epochs");
  EXPECT_CONTAINS(error_of_sources("{sources = [{path = \"a\", epochs = 1}, {path = \"b\"}]}"),
                  "data.sources.0.sources.1.epochs = -1.0: a list of sources has either weights or epochs");
  EXPECT_CONTAINS(error_of_sources("{combine = \"concat\", sources = [{path = \"a\", weight = 2}]}"),
                  "data.sources.0.combine = \"concat\": concat has the rows of each source once");
  EXPECT_CONTAINS(error_of_sources("{combine = \"concat\", sources = [{path = \"a\", epochs = 2}]}"),
                  "remove epochs, or combine by \"mix\"");
}

TEST(DataRules, SharesOfNothingAreRefused) {
  const std::string two = "{path = \"a\"}, {path = \"b\"}";
  EXPECT_EQ(error_of_sources(two, "weights_by = \"tokens\"\ntemperature = 2\n"), "");
  EXPECT_EQ(error_of_sources("{path = \"a\"}, {path = \"b\", weight = 2}", "weights_by = \"samples\"\n"), "");
  EXPECT_EQ(error_of_sources(format("{{sources = [{}]}}", two), "temperature = 2\n"), "");
  EXPECT_CONTAINS(error_of_sources("{path = \"a\"}", "weights_by = \"tokens\"\n"),
                  "no list of sources is mixed by weight");
  EXPECT_CONTAINS(
      error_of_sources("{path = \"a\"}, {path = \"b\", weight = 2}", "temperature = 2\n"),
      "data.temperature = 2.0: it sets the weights of lists of several sources that have neither");
  EXPECT_CONTAINS(
      error_of_sources(format("{{combine = \"concat\", sources = [{}]}}", two), "temperature = 2\n"),
      "data.temperature = 2.0: it sets the weights");
}

TEST(DataRules, ASmallerLastStepNeedsAnEpochAndABatch) {
  const std::string smaller = "epoch_remainder = \"smaller_step\"\n[training]\n";
  const std::string batch = smaller + "global_batch_size = 16\nlocal_batch_size = 8\n";
  EXPECT_CONTAINS(error_of_sources("{path = \"a\"}", smaller),
                  "training.global_batch_size = -1: smaller_step fills");
  EXPECT_EQ(error_of_sources("{path = \"a\"}", batch), "");
  const std::string epochs = "{path = \"a\", epochs = 1}, {path = \"b\", epochs = 2}";
  EXPECT_EQ(error_of_sources(epochs, batch), "");
  EXPECT_EQ(error_of_sources("{combine = \"concat\", sources = [{path = \"a\"}, {path = \"b\"}]}", batch),
            "");
  const std::string two = "{path = \"a\"}, {path = \"b\"}";
  for (const std::string& mixed : {two, format("{{sources = [{}]}}", two),
                                   format("{{combine = \"concat\", sources = [{{path = \"c\"}}, "
                                          "{{sources = [{}]}}]}}",
                                          two)}) {
    EXPECT_CONTAINS(error_of_sources(mixed, batch),
                    "sources that are mixed by weight have no epoch of their own");
    EXPECT_EQ(error_of_sources(mixed, batch + "epochs = 2\n"), "");
  }
}

TEST(DataRules, ValidationDataIsHeldOutOrListed) {
  EXPECT_CONTAINS(error_of("[data]\nvalidation = [{ path = \"a\" }]\nvalidation_fraction = 0.1\n"),
                  "run.toml:3:23: data.validation_fraction = 0.1 and run.toml:2:14: "
                  "data.validation = [{ path = \"a\", kind = \"builtin\", weight = 1.0, field = \"text\", "
                  "format = \"auto\", loss_on = \"assistant\", dataset = \"\", name = \"\" }]: "
                  "validation data is either held out of the sources or listed; set only one of them");
}

TEST(DataRules, TheEntryOfADataSetSaysFormatAndFields) {
  const auto source = [](const std::string& more) {
    return error_of("[data]\nsources = [{ path = \"dataset_info.json\", dataset = \"a\"" + more + " }]\n");
  };
  EXPECT_EQ(source(""), "");
  EXPECT_EQ(source(", loss_on = \"last\""), "");
  EXPECT_CONTAINS(source(", format = \"alpaca\""),
                  "the entry of dataset_info.json gives the format; remove it");
  EXPECT_CONTAINS(source(", sources = [{path = \"a\"}]"), "data.sources.0.dataset = \"a\"");
  EXPECT_CONTAINS(source(", field = \"t\""), "the entry of dataset_info.json gives the fields; remove it");
}

TEST(DataRules, RulesForLongDocumentsNeedRowsOfWholeDocuments) {
  EXPECT_CONTAINS(error_of("[data]\ntoo_long = \"drop\"\n"),
                  "rows of this packing hold documents of any length");
  EXPECT_EQ(error_of("[data]\ntoo_long = \"proportional\"\npacking = \"none\"\n"), "");
  EXPECT_EQ(error_of("[data]\ntoo_long = \"drop\"\npacking = \"budget\"\n"), "");
  EXPECT_EQ(error_of("[data]\ntoo_long = \"drop\"\npacking = \"preset\"\npreset = \"packed\"\n"), "");
  EXPECT_EQ(error_of("[data]\ntoo_long = \"cut\"\n"), "");
}

TEST(DataRules, APresetHasAFolderAndOneSource) {
  EXPECT_EQ(
      error_of("[data]\npacking = \"preset\"\n"),
      "run.toml:2:11: data.packing = \"preset\" and default: data.preset = \"\": name the folder of the "
      "rows, such as data.preset = \"packed\"");
  EXPECT_CONTAINS(error_of("[data]\nsources = [{path = \"a\"}, {path = \"b\"}]\npacking = \"preset\"\n"
                           "preset = \"packed\"\n"),
                  "a preset has the rows of one source");
}

TEST(DataRules, OrdersByStepNeedTheStepAndRowsThatDiffer) {
  const std::string step = "[training]\nglobal_batch_size = 8\nlocal_batch_size = 1\n[data]\n";
  for (const std::string field : {"balance", "group_by_length"}) {
    EXPECT_CONTAINS(
        error_of("[data]\npacking = \"soft\"\n" + field + " = true\n"),
        format("data.{} = true and default: training.global_batch_size = -1: the order of the rows of "
               "a step must not depend on the number of ranks",
               field));
    EXPECT_EQ(error_of(step + "packing = \"soft\"\n" + field + " = true\n"), "");
  }
  EXPECT_CONTAINS(error_of(step + "group_by_length = true\n"), "all rows of packing \"concat\" are full");
  EXPECT_CONTAINS(error_of(step + "group_by_length = true\npacking = \"soft\"\nshuffle = false\n"),
                  "rows that are grouped by length are shuffled");
  EXPECT_CONTAINS(error_of(step + "group_by_length = true\npacking = \"soft\"\n"
                                  "sources = [{path = \"a\"}, {path = \"b\"}]\n"),
                  "a step has rows of all data.sources");
  const std::string synthetic = step + "balance = true\nsources = [{format = \"synthetic\"}]\n";
  EXPECT_CONTAINS(error_of(synthetic), "all synthetic rows cost the same");
  EXPECT_EQ(error_of(synthetic + "synthetic_document_length = 100\n"), "");
}

TEST(TrainingRules, StepsAndEpochsExcludeEachOther) {
  EXPECT_EQ(error_of("[training]\nsteps = 10\nepochs = 2\n"),
            "run.toml:2:9: training.steps = 10 and run.toml:3:10: training.epochs = 2: only one of them can "
            "set the length of the run; set the other to 0");
}

TEST(TrainingRules, GlobalBatchSizeIsAMultipleOfLocalBatchSize) {
  EXPECT_EQ(error_of("[training]\nlocal_batch_size = 3\n", {"training.global_batch_size=8"}),
            "command line: training.global_batch_size = 8 and run.toml:2:20: training.local_batch_size = 3: "
            "global_batch_size must be a multiple of local_batch_size");
  EXPECT_EQ(error_of("[training]\nlocal_batch_size = 3\nglobal_batch_size = 9\n"), "");
  EXPECT_EQ(error_of("[training]\nlocal_batch_size = 3\nglobal_batch_size = -1\n"), "");
}

TEST(TrainingRules, ADeviceIsAKindWithOrWithoutANumber) {
  for (const char* name : {"auto", "cpu", "cuda", "cuda:0", "cuda:15", "sim"})
    EXPECT_EQ(error_of(std::string("[training]\ndevice = \"") + name + "\"\n"), "") << name;
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:1234", "cpu:0", "auto:1", "npu:1"})
    EXPECT_EQ(error_of(std::string("[training]\ndevice = \"") + name + "\"\n"),
              std::string("run.toml:2:10: training.device = \"") + name +
                  "\": it is not a device: use auto, cpu, cuda or a GPU with its number, such as cuda:1");
}

TEST(TrainingRules, SequencesFitTheContext) {
  EXPECT_EQ(error_of("[model]\nmax_position = 1024\n"),
            "default: training.seq_len = 2048 and run.toml:2:16: model.max_position = 1024: seq_len must not "
            "exceed max_position, the context length of the model");
}

TEST(TrainingRules, WarmupMayBeLongerThanTheRun) {
  EXPECT_EQ(error_of("[training]\nsteps = 10\n[lr_scheduler]\nwarmup_steps = 100\n"), "");
}

TEST(ParallelismRules, OnlyOneDegreeMayBeMinusOne) {
  EXPECT_EQ(error_of("[parallelism]\ndata_parallel_replicate_degree = -1\n"),
            "run.toml:2:34: parallelism.data_parallel_replicate_degree = -1 and default: "
            "parallelism.data_parallel_shard_degree = -1: only one of them can be -1; set the other to a "
            "number of ranks");
  EXPECT_EQ(error_of("[parallelism]\ndata_parallel_replicate_degree = -1\ndata_parallel_shard_degree = 1\n"),
            "");
}

TEST(PipelineRules, MicroBatchesDivideALocalBatch) {
  const std::string three = "[parallelism]\npipeline_parallel_microbatch_size = 3\n[training]\n";
  EXPECT_CONTAINS(error_of(three + "local_batch_size = 8\n"),
                  "set pipeline_parallel_microbatch_size to a divisor of it");
  EXPECT_EQ(error_of(three + "local_batch_size = 6\n"), "");
  EXPECT_CONTAINS(error_of(three + "local_batch_size = 6\nreduction = \"ordered\"\n"),
                  "a micro-batch is one row");
}

TEST(OrderedRules, GradientsAreReducedOncePerStep) {
  const std::string each = "[parallelism]\nfsdp_reduce_each_micro_batch = true\n";
  EXPECT_EQ(error_of(each), "");
  EXPECT_CONTAINS(error_of(each + "[training]\nreduction = \"ordered\"\n"), "cannot be reduced one by one");
}

TEST(OrderedRules, PartitionIsFlatAndReductionFp32) {
  const std::string ordered = "[training]\nreduction = \"ordered\"\n";
  for (const std::string wrong :
       {"[parallelism]\nfsdp_partition = \"by_tensor\"\n", "[parallelism]\nfsdp_partition = \"by_dim\"\n"}) {
    EXPECT_EQ(error_of(wrong), "");
    EXPECT_CONTAINS(error_of(wrong + ordered), "set fsdp_partition to \"flat\"");
  }
  const std::string rounded = "[precision]\nreduce = \"bf16\"\n";
  EXPECT_EQ(error_of(rounded), "");
  EXPECT_CONTAINS(error_of(rounded + ordered), "set precision.reduce to \"fp32\"");
}

TEST(ParallelismRules, PrefetchListsAreNotEmptyDuplicateOrSelfReferring) {
  const auto list = [](const std::string& text) {
    return error_of("[[parallelism.fsdp_prefetch_lists]]\n" + text);
  };
  EXPECT_EQ(list("unit = \"layers.0\"\nforward = [\"layers.1\", \"layers.2\"]\n"), "");
  EXPECT_CONTAINS(list("unit = \"layers.0\"\n"), "both lists of this unit are empty");
  EXPECT_CONTAINS(list("unit = \"head\"\nbackward = [\"head\"]\n"),
                  "already gathered when it computes; remove it");
  EXPECT_CONTAINS(list("unit = \"head\"\nforward = [\"embedding\"]\n"
                       "[[parallelism.fsdp_prefetch_lists]]\nunit = \"head\"\nbackward = [\"layers.0\"]\n"),
                  "an earlier table has the same unit");
}

TEST(OrderedRules, LossIsNotAveragedOverRanks) {
  EXPECT_EQ(error_of("[training]\nloss_aggregation = \"rank_average\"\n"), "");
  EXPECT_CONTAINS(error_of("[training]\nloss_aggregation = \"rank_average\"\nreduction = \"ordered\"\n"),
                  "set loss_aggregation to \"token_mean\"");
}

TEST(ParallelismRules, PartsOfRowsExcludeSumsAndAveragesOfWholeRows) {
  const std::string parts = "[parallelism]\ncontext_parallel_degree = 2\n";
  EXPECT_EQ(error_of(parts), "");
  EXPECT_CONTAINS(error_of(parts + "[training]\nreduction = \"ordered\"\n"),
                  "set context_parallel_degree to 1, or reduction to \"fast\"");
  EXPECT_CONTAINS(error_of(parts + "[training]\nloss_aggregation = \"rank_average\"\n"),
                  "set loss_aggregation to \"token_mean\"");
}

TEST(ParallelismRules, OnlySlicesPassBesideTheProducts) {
  const std::string async = "[parallelism]\nenable_async_tensor_parallel = true\n";
  EXPECT_EQ(error_of(async), "");
  EXPECT_CONTAINS(error_of(async + "enable_sequence_parallel = false\n"),
                  "set enable_sequence_parallel to true, or enable_async_tensor_parallel to false");
}

TEST(ParallelismRules, NeighboursThatExchangeHeadsDivideTheContext) {
  const std::string hybrid =
      "[parallelism]\ncontext_parallel_method = \"hybrid\"\ncontext_parallel_degree = ";
  EXPECT_EQ(error_of(hybrid + "4\n"), "");
  EXPECT_EQ(error_of(hybrid + "1\n"), "");
  EXPECT_CONTAINS(error_of(hybrid + "2\n"), "needs a ulysses_degree that divides context_parallel_degree");
  EXPECT_CONTAINS(error_of(hybrid + "8\nulysses_degree = 3\n"), "use the method \"ulysses\" or \"ring\"");
}

TEST(ParallelismRules, EachRuleOfATensorParallelPlanNeedsARegularExpression) {
  // Without a pattern it would match every parameter.
  EXPECT_EQ(error_of("[parallelism]\ntensor_parallel_plan = [{ style = \"replicate\" }]\n"),
            "run.toml:2:25: parallelism.tensor_parallel_plan.0.pattern = \"\": a rule needs a pattern, "
            "such as \"mlp\"");
  EXPECT_CONTAINS(
      error_of("[parallelism]\ntensor_parallel_plan = [{ pattern = \"mlp\" }, { pattern = \"(a\" }]\n"),
      "parallelism.tensor_parallel_plan.1.pattern = \"(a\": not a regular expression: ");
}

TEST(OptimizerRules, PatternsAreDistinctRegularExpressions) {
  EXPECT_EQ(
      error_of("[optimizer]\nparam_groups = [{ lr = 1 }]\n"),
      "run.toml:2:17: optimizer.param_groups.0.pattern = \"\": a group needs a pattern, such as \"embed\"");
  EXPECT_CONTAINS(error_of("[optimizer]\nparam_groups = [{ pattern = \"(a\" }]\n"),
                  "run.toml:2:29: optimizer.param_groups.0.pattern = \"(a\": not a regular expression: ");
  EXPECT_CONTAINS(
      error_of("[optimizer]\nparam_groups = [{ pattern = \"" + std::string(1001, '(') + "\" }]\n"),
      ": longer than 1000 characters");
  EXPECT_CONTAINS(error_of("[optimizer]\nparam_groups = [{ pattern = \"(([a-z.0-9])+)+[A-Z]\" }]\n"),
                  "match limit exceeded; write it without nested repetitions");
  EXPECT_EQ(error_of("[optimizer]\nparam_groups = [{ pattern = \"a\" }, { pattern = \"a\" }]\n"),
            "run.toml:2:48: optimizer.param_groups.1.pattern = \"a\": an earlier group has the same pattern "
            "and takes all its parameters; remove one");
}

TEST(RecomputeRules, AModeNeedsItsList) {
  EXPECT_EQ(error_of("[activation_checkpoint]\nmode = \"regions\"\n"),
            "run.toml:2:8: activation_checkpoint.mode = \"regions\" and default: "
            "activation_checkpoint.regions = []: mode \"regions\" needs a non-empty list");
  EXPECT_CONTAINS(error_of("[activation_checkpoint]\nmode = \"calls\"\n"),
                  "activation_checkpoint.calls = []: mode \"calls\" needs a non-empty list");
}

TEST(RecomputeRules, ListsHaveNoDuplicatesAndNoUnknownLayers) {
  const std::string blocks = "[activation_checkpoint]\nmode = \"blocks\"\nblocks = ";
  EXPECT_EQ(error_of(blocks + "[0, 5]\n"), "");
  EXPECT_EQ(error_of(blocks + "[0, 6]\n"),
            "run.toml:3:10: activation_checkpoint.blocks = [0, 6] and default: model.n_layers = 6: layers "
            "are numbered from 0 to 5");
  EXPECT_EQ(error_of(blocks + "[1, 0, 1]\n"),
            "run.toml:3:10: activation_checkpoint.blocks = [1, 0, 1]: the list has a duplicate");
  EXPECT_CONTAINS(error_of("[activation_checkpoint]\nmode = \"regions\"\nregions = [\"mlp\", \"mlp\"]\n"),
                  "the list has a duplicate");
  EXPECT_CONTAINS(error_of("[activation_checkpoint]\nmode = \"calls\"\ncalls = [\"swiglu\", \"swiglu\"]\n"),
                  "the list has a duplicate");
}

TEST(RecomputeRules, AMemoryBudgetIsAFraction) {
  EXPECT_EQ(error_of("[activation_checkpoint]\nmode = \"budget\"\nmemory_budget = 0.3\n"), "");
  EXPECT_CONTAINS(error_of("[activation_checkpoint]\nmode = \"budget\"\nmemory_budget = 2\n"),
                  "run.toml:3:17: activation_checkpoint.memory_budget = 2");
}

TEST(RunRules, LastSaveInHfNeedsALastSave) {
  const std::string wanted = "[checkpoint]\nlast_save_in_hf = true\n";
  EXPECT_EQ(error_of(wanted), "");
  for (const char* without : {"save_at_end = false\n", "enable = false\n"}) {
    EXPECT_CONTAINS(error_of(wanted + without), "is made from the last checkpoint") << without;
  }
}

TEST(RunRules, TrainingKeepsCheckpointsInOneFolderInsideTheRunFolder) {
  const std::string rest = "[data]\nsources = [{ format = \"synthetic\" }]\n[training]\nsteps = 1\n";
  const auto error = [&](const char* folder, ConfigUse use) {
    return error_of(rest + format("[checkpoint]\nfolder = \"{}\"\n", folder), {}, use);
  };
  for (const char* inside : {"checkpoint", "..a", "a b"})
    EXPECT_EQ(error(inside, ConfigUse::train), "") << inside;
  for (const char* outside : {"/tmp/checkpoint", "..", "../other", "a/b", "a/../../b", "a/", ".", "./"}) {
    EXPECT_CONTAINS(error(outside, ConfigUse::train), "checkpoint.folder", "inside run_dir");
    // Commands that only read a run accept where its checkpoints lie.
    EXPECT_EQ(error(outside, ConfigUse::inspect), "") << outside;
  }
  for (const char* unprintable : {"x\\n", "\\u001b[2J", "a\\u007f"})
    EXPECT_CONTAINS(error(unprintable, ConfigUse::train), "checkpoint.folder", "control characters");
}

TEST(RunRules, NothingElseOfARunHasTheNameOfTheFolderOfCheckpoints) {
  const std::string rest = "[data]\nsources = [{ format = \"synthetic\" }]\n[training]\nsteps = 1\n";
  for (const char* name : {"config.toml", "generation_config.json", "hf", "log.txt", "logs", "metrics.jsonl",
                           "run.json", "run.lock", "tokenizer"}) {
    const std::string error =
        error_of(rest + format("[checkpoint]\nfolder = \"{}\"\n", name), {}, ConfigUse::train);
    EXPECT_CONTAINS(error, "checkpoint.folder", "a run keeps something else under this name");
  }
}

TEST(RunRules, APlantedNanHasStepAndBlock) {
  EXPECT_CONTAINS(error_of("[debug]\nplant_nan_step = 5\n"), "set both of them or neither");
  EXPECT_CONTAINS(error_of("[debug]\nplant_nan_block = \"head\"\n"), "set both of them or neither");
  EXPECT_EQ(error_of("[debug]\nplant_nan_step = 5\nplant_nan_block = \"head\"\n"), "");
}

TEST(TrainingUse, NeedsDataAndStepsOrEpochs) {
  EXPECT_EQ(error_of("", {}, ConfigUse::inspect), "");
  EXPECT_EQ(error_of("", {}, ConfigUse::train),
            "2 errors in the configuration:\n"
            "  default: data.sources = []: there is no data; write data.sources = [{ path = \"book.txt\" }]\n"
            "  default: training.steps = 0 and default: training.epochs = 0: one of them must set the length "
            "of the run, such as training.steps = 1000");
  EXPECT_EQ(error_of("", {}, ConfigUse::data),
            "default: data.sources = []: there is no data; write data.sources = [{ path = \"book.txt\" }]");
}

TEST(TrainingUse, AcceptsTheDebugPreset) {
  EXPECT_EQ(error_of("preset = \"debug\"\n", {}, ConfigUse::train), "");
}

TEST(TrainingUse, NeedsDataForValidation) {
  const std::string text = "preset = \"debug\"\n[validation]\nfreq = 5\n";
  EXPECT_EQ(error_of(text, {}, ConfigUse::train),
            "run.toml:3:8: validation.freq = 5 and default: data.validation = []: there is no validation "
            "data; set data.validation, or data.validation_fraction to a value such as 0.01");
  EXPECT_EQ(error_of(text, {"data.validation_fraction=0.1"}, ConfigUse::train), "");
  EXPECT_EQ(error_of(text, {"data.validation=[{format=\"synthetic\"}]"}, ConfigUse::train), "");
}

TEST(TrainingUse, NeedsThePathOfAHuggingFaceTokenizer) {
  EXPECT_EQ(error_of("preset = \"debug\"\n[tokenizer]\ntype = \"hf\"\n", {}, ConfigUse::train),
            "run.toml:3:8: tokenizer.type = \"hf\" and default: tokenizer.path = \"\": set tokenizer.path to "
            "the folder of a Hugging Face model or to its tokenizer.json");
}

TEST(TrainingUse, NeedsFilesThatExist) {
  const std::string text =
      "preset = \"debug\"\n[tokenizer]\ntype = \"bpe\"\npath = \"/none/t.json\"\n[data]\nsources = [{ path = "
      "\"/none/a\" }]\n"
      "[checkpoint]\ninitial_load_path = \"/none/c\"\n";
  EXPECT_EQ(error_of(text), "");
  EXPECT_EQ(error_of(text, {}, ConfigUse::train),
            "3 errors in the configuration:\n"
            "  run.toml:4:8: tokenizer.path = \"/none/t.json\": no such file or folder\n"
            "  run.toml:6:21: data.sources.0.path = \"/none/a\": no such file or folder\n"
            "  run.toml:8:21: checkpoint.initial_load_path = \"/none/c\": no such file or folder");
}

TEST(TrainingUse, PathsOfSourcesMayBePatternsButNotRemote) {
  const TempFolder folder;
  folder.write("a.txt", "x");
  const auto error = [&](const std::string& path) {
    return error_of("preset = \"debug\"\n[data]\nsources = [{ path = \"" + path + "\" }]\n", {},
                    ConfigUse::train);
  };
  EXPECT_EQ(error((folder / "*.txt").string()), "");
  EXPECT_CONTAINS(error((folder / "*.md").string()),
                  "run.toml:3:21: data.sources.0.path = ", "nothing matches",
                  "the nearest folder that exists is " + folder.path().string());
  EXPECT_CONTAINS(error("s3://bucket/a"), "s3://bucket/a is a remote address");
}

TEST(TrainingUse, NamesOfTheHubAndPointersOfGitLfsAreNamedWithTheRemedy) {
  const TempFolder folder;
  const auto error = [&](const std::string& path) {
    return error_of("preset = \"debug\"\n[data]\nsources = [{ path = \"" + path + "\" }]\n", {},
                    ConfigUse::train);
  };
  EXPECT_CONTAINS(error("tatsu-lab/alpaca"), "hf download --repo-type dataset tatsu-lab/alpaca");
  folder.write("a.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 10760\n");
  EXPECT_CONTAINS(error((folder / "a.parquet").string()), "git lfs pull");
  std::filesystem::create_directories(folder / "datasets--tatsu-lab--alpaca/snapshots/abc");
  EXPECT_CONTAINS(error((folder / "datasets--tatsu-lab--alpaca").string()), "snapshots/abc");
  EXPECT_CONTAINS(
      error_of("preset = \"debug\"\n[tokenizer]\npath = \"Qwen/Qwen3-0.6B\"\n", {}, ConfigUse::train),
      "hf download Qwen/Qwen3-0.6B");
}

TEST(TrainingUse, CanBeCheckedLater) {
  EXPECT_NO_THROW(validate_for_training(parsed("preset = \"debug\"\n")));
  EXPECT_THROW(validate_for_training(parsed("")), UsageError);
}

}  // namespace
}  // namespace stepforge::testing

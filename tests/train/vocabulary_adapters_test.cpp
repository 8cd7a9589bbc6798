// SPDX-License-Identifier: Apache-2.0
// Runs that train adapters of the embedding and of the head: where they start, in which layouts they have the same curve, what
// they leave, and what a tie of both means.
#include <cmath>
#include <cstring>

#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/checkpoint/adapter_folder.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "tests/checkpoint/stacked_files.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

const std::string kTied = "model.tie_embeddings=true";
const std::string kUntied = "model.tie_embeddings=false";

/// A Hugging Face folder of a model that was trained for two steps.
fs::path vocabulary_base(const TempFolder& folder, const std::string& tie) {
  TestRun(trainer_run(folder / "base") +
          Strings{"model.n_kv_heads=2", "training.steps=2", "checkpoint.last_save_in_hf=true", tie})
      .run();
  return folder / "base" / "hf" / "step-2";
}

/// Starts from `base`, without an adapter.
Strings vocabulary_run(const TempFolder& folder, const std::string& name, const fs::path& base,
                       const Strings& more) {
  return trainer_run(folder / name) +
         Strings{format("checkpoint.initial_load_path={}", base.string()),
                 "model.n_kv_heads=2",
                 "training.steps=4",
                 "training.global_batch_size=4",
                 "training.local_batch_size=1",
                 "checkpoint.interval=2",
                 "lr_scheduler.warmup_steps=0",
                 "optimizer.lr=0.01"} +
         more;
}

Strings lora_of(const char* targets) {
  return {"adapter.type=lora", "adapter.rank=4", format("adapter.targets={}", targets)};
}

const Strings kEverything = lora_of("all-linear,embed_tokens,lm_head");

double loss_of_first_step(const Strings& run) {
  return TestRun(run + Strings{"training.steps=1", "checkpoint.enable=false", "optimizer.lr=0"})
      .run()
      .at(0)
      .loss;
}

TEST(VocabularyAdapterRun, StartsAsTheModelThatItBelongsToAndTrainsOnlyWhatIsNamed) {
  const TempFolder folder;
  const fs::path base = vocabulary_base(folder, kTied);
  for (const char* compute : {"fp32", "bf16"}) {
    const Strings in{kTied, format("precision.compute={}", compute), "checkpoint.enable=false"};
    const double plain = loss_of_first_step(vocabulary_run(folder, "plain", base, in));
    for (const char* targets : {"embed_tokens", "lm_head", "embed_tokens,lm_head"}) {
      TestRun run(vocabulary_run(folder, "run", base, in + lora_of(targets)));
      const Records steps = run.run();
      EXPECT_EQ(steps.at(0).loss, plain) << "A or B is zero: " << targets << " " << compute;
      EXPECT_NE(steps.at(3).loss, steps.at(0).loss) << targets;
      for (const UnitSpec& unit : run.trainer().job.whole.units)
        for (const ParameterSpec& parameter : unit.parameters)
          EXPECT_EQ(unit.trainable, is_adapter_tensor(parameter.sub_tensors.front().hf_name))
              << parameter.name;
    }
  }
}

constexpr CurveTolerance kVocabularyCurve{.norm = 2e-4};

/// `layouts`: each of two ranks.
void expect_curve_of_one_rank(const std::string& tie, const std::vector<Strings>& layouts) {
  const TempFolder folder;
  const fs::path base = vocabulary_base(folder, tie);
  const Strings all = kEverything + Strings{tie};
  const Records one = TestRun(vocabulary_run(folder, "one", base, all)).run();
  EXPECT_NE(one.at(3).loss, one.at(0).loss);
  for (size_t i = 0; i < layouts.size(); ++i) {
    const auto records =
        RankThreads(2).run(vocabulary_run(folder, format("two{}", i), base, all + layouts[i]));
    expect_curve(records.at(0), one, tie + " " + join(layouts[i], " "), kVocabularyCurve);
  }
  const Records continued =
      TestRun(vocabulary_run(folder, "two0", base, all + Strings{"checkpoint.load_step=2"})).run();
  expect_curve(continued, {one.at(2), one.at(3)}, "what two ranks have stored, continued by one",
               kVocabularyCurve);
}

const std::string kTensor2 = "parallelism.tensor_parallel_degree=2";
const std::string kPipeline2 = "parallelism.pipeline_parallel_degree=2";

TEST(VocabularyAdapterRun, HasTheCurveOfOneRankInEveryLayout) {
  expect_curve_of_one_rank(kUntied,
                           {{kTensor2},
                            {kTensor2, "parallelism.enable_sequence_parallel=false"},
                            {kTensor2, "parallelism.enable_async_tensor_parallel=true"},
                            {kTensor2, "parallelism.disable_loss_parallel=true"},
                            {"parallelism.context_parallel_degree=2"},
                            {kPipeline2},
                            {"parallelism.fsdp_cpu_offload=true", "activation_checkpoint.mode=full"}});
}

TEST(VocabularyAdapterRun, OfATiedModelHasTheCurveOfOneRankWhereverItsEndsAre) {
  expect_curve_of_one_rank(kTied, {{kTensor2}, {}, {kPipeline2}});
}

TEST(VocabularyAdapterRun, ContinuesOnAnyNumberOfRanksWithTheSameBits) {
  const TempFolder folder;
  const fs::path base = vocabulary_base(folder, kTied);
  const Strings ordered = kEverything + Strings{kTied, "training.reduction=ordered"};
  const Records whole = TestRun(vocabulary_run(folder, "whole", base, ordered)).run();
  int number = 0;
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, Strings>>{{1, {}}, {2, {}}, {2, {kPipeline2}}}) {
    const std::string name = format("again{}", ++number);
    fs::create_directories(folder / name);
    fs::copy(folder / "whole", folder / name, fs::copy_options::recursive);
    const auto records = RankThreads(ranks).run(
        vocabulary_run(folder, name, base, ordered + layout + Strings{"checkpoint.load_step=2"}));
    ASSERT_EQ(records.at(0).size(), 2U);
    EXPECT_EQ(records[0][1].loss, whole.at(3).loss) << name;
    EXPECT_EQ(records[0][1].grad_norm, whole.at(3).grad_norm) << name;
  }
}

std::string bytes_of_tensor(const TensorFolder& tensors, const std::string& name) {
  const StoredTensor* found = tensors.find(name);
  if (found == nullptr) return "none";
  std::vector<std::byte> bytes(static_cast<size_t>(whole_slice(found->shape).elements()) * 4);
  tensors.read(name, whole_slice(found->shape), bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(VocabularyAdapterRun, IsExportedAsAFolderOfPeftThatARunStartsFrom) {
  const TempFolder folder;
  const fs::path base = vocabulary_base(folder, kUntied);
  TestRun first(vocabulary_run(folder, "first", base,
                               kEverything + Strings{kUntied, "checkpoint.last_save_in_hf=true"}));
  first.run();
  const fs::path adapter = folder / "first" / "hf" / "step-4";
  const int64_t vocabulary = first.trainer().config.model.vocab_size;
  const TensorFolder files({adapter / "adapter_model.safetensors"});
  const std::string a = "base_model.model.model.embed_tokens.lora_embedding_A";
  EXPECT_EQ(files.find(a)->shape, (std::vector<int64_t>{4, vocabulary})) << "as PEFT has it";
  EXPECT_EQ(files.find("base_model.model.lm_head.lora_B.weight")->shape,
            (std::vector<int64_t>{vocabulary, 4}));
  RankThreads(2).run(vocabulary_run(folder, "second", base,
                                    {kUntied, "adapter.from=" + adapter.string(), "training.steps=1",
                                     "checkpoint.interval=1", "optimizer.lr=0"}));
  const TensorFolder left = stored_tensors(folder / "first" / "checkpoint" / "step-4");
  const TensorFolder right = stored_tensors(folder / "second" / "checkpoint" / "step-1");
  int64_t compared = 0;
  for (const std::string& name : left.names()) {
    if (!is_adapter_tensor(name)) continue;
    ++compared;
    EXPECT_EQ(bytes_of_tensor(left, name), bytes_of_tensor(right, name)) << name;
  }
  EXPECT_GT(compared, 4);
}

/// The adapter of a run in PEFT's files with `copy` as the weights beside that of the embedding.
fs::path with_base_copy(const fs::path& adapter, const fs::path& target, const TensorFolder& copies,
                        const std::string& copied) {
  fs::create_directories(target);
  fs::copy(adapter / "adapter_config.json", target / "adapter_config.json");
  const TensorFolder files({adapter / "adapter_model.safetensors"});
  const std::string name = "base_model.model.model.embed_tokens.base_layer.weight";
  std::vector<TensorSpec> specs{{name, DType::f32, copies.find(copied)->shape}};
  for (const std::string& tensor : files.names())
    specs.push_back({tensor, DType::f32, files.find(tensor)->shape});
  SafetensorsWriter writer(target / "adapter_model.safetensors", specs);
  const auto write = [&](const std::string& as, const std::string& bytes) {
    writer.write(as, std::as_bytes(std::span(bytes)));
  };
  write(name, bytes_of_tensor(copies, copied));
  for (const std::string& tensor : files.names()) write(tensor, bytes_of_tensor(files, tensor));
  writer.finish();
  return target;
}

TEST(VocabularyAdapterRun, StartsFromAFolderWithACopyOfTheEmbeddingIfItIsOne) {
  const TempFolder folder;
  const fs::path base = vocabulary_base(folder, kUntied);
  TestRun(vocabulary_run(folder, "first", base,
                         lora_of("embed_tokens") + Strings{kUntied, "checkpoint.last_save_in_hf=true"}))
      .run();
  const fs::path adapter = folder / "first" / "hf" / "step-4";
  const TensorFolder weights = open_hf_weights(base);
  const fs::path same = with_base_copy(adapter, folder / "same", weights, "model.embed_tokens.weight");
  const fs::path other = with_base_copy(adapter, folder / "other", weights, "lm_head.weight");
  const auto first_loss = [&](const fs::path& from) {
    return loss_of_first_step(
        vocabulary_run(folder, "second", base, {kUntied, "adapter.from=" + from.string()}));
  };
  EXPECT_EQ(first_loss(same), first_loss(adapter));
  EXPECT_CONTAINS(message_of<UsageError>([&] { first_loss(other); }), "model.embed_tokens.weight", "--merge");
}

void expect_same_when_merged(const TempFolder& folder, const fs::path& base, const std::string& tie,
                             const char* targets) {
  const std::string name = format("{}-{}", tie == kTied ? "tied" : "untied", std::strlen(targets));
  TestRun run(
      vocabulary_run(folder, name, base, lora_of(targets) + Strings{tie, "checkpoint.last_save_in_hf=true"}));
  run.run();
  const fs::path adapter = folder / name / "hf" / "step-4";
  ModelConfig config = run.trainer().config.model;
  const ModelSpec plain = model_spec(config);
  const AdapterDeltas deltas = read_adapters({adapter.string()}, plain);
  TensorFolder weights = open_hf_weights(base);
  EXPECT_EQ(deltas.unties(plain), tie == kTied);
  if (deltas.unties(plain)) untie(config, plain, weights);
  const fs::path merged = folder / (name + "-merged");
  export_hf(merged, config, model_spec(config), weights, nullptr, {.adapters = &deltas});
  const auto first_loss = [&](const char* run_name, const fs::path& from, const Strings& more) {
    return loss_of_first_step(vocabulary_run(folder, name + run_name, from, more));
  };
  const double adapted = first_loss("-adapted", base, {tie, "adapter.from=" + adapter.string()});
  EXPECT_GT(std::abs(adapted - first_loss("-plain", base, {tie})), 1e-3) << name;
  EXPECT_NEAR(first_loss("-of-merged", merged, {kUntied}), adapted, 2e-5 * adapted) << name;
}

TEST(VocabularyAdapterRun, IsMergedIntoAModelThatComputesTheSame) {
  const TempFolder untied;
  expect_same_when_merged(untied, vocabulary_base(untied, kUntied), kUntied, "embed_tokens,lm_head");
  const TempFolder tied;
  const fs::path base = vocabulary_base(tied, kTied);
  for (const char* targets : {"embed_tokens", "lm_head", "embed_tokens,lm_head"})
    expect_same_when_merged(tied, base, kTied, targets);
}

}  // namespace
}  // namespace stepforge::testing

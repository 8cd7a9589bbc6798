// SPDX-License-Identifier: Apache-2.0
// From text to a trained and exported model that is evaluated and generates text.
#include <bit>
#include <cmath>
#include <map>
#include <sstream>

#include "stepforge/base/json.h"
#include "stepforge/base/staged.h"
#include "stepforge/tensorfile/safetensors.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

/// All tests share one model: trained for 12 steps on a text, with a tokenizer of 300 tokens trained on it,
/// and exported.
class EndToEnd : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    write_text(*folder_ / "tale.txt", some_text(400));
    Strings args = Strings{"train"} + small_run(run()) +
                   Strings{format("data.sources=[{{path=\"{}\"}}]", (*folder_ / "tale.txt").string()),
                           "data.document=line",
                           "data.validation_fraction=0.1",
                           "validation.freq=12",
                           "tokenizer.type=bpe",
                           "tokenizer.vocab_size=300",
                           "training.steps=12",
                           "checkpoint.interval=12"};
    training_ = run_program(args);
    export_ = run_program({"export", run().string(), exported().string()});
  }
  static void TearDownTestSuite() { delete folder_; }

  void SetUp() override {
    ASSERT_EQ(training_.exit_code, 0) << training_.err;
    ASSERT_EQ(export_.exit_code, 0) << export_.err;
  }

  static fs::path run() { return *folder_ / "run"; }
  static fs::path step() { return run() / "checkpoint" / "step-12"; }
  static fs::path exported() { return *folder_ / "exported"; }
  static fs::path file(const std::string& name) { return *folder_ / name; }

  inline static TempFolder* folder_ = nullptr;
  inline static ProgramResult training_;
  inline static ProgramResult export_;
};

Json last_validation(const fs::path& run) {
  std::ifstream lines(run / "metrics.jsonl");
  Json last;
  for (std::string line; std::getline(lines, line);) {
    Json json = Json::parse(line);
    if (json["kind"] == "validation") last = std::move(json);
  }
  return last;
}

TEST_F(EndToEnd, ExportIsAHuggingFaceFolder) {
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}) {
    EXPECT_TRUE(fs::exists(exported() / name)) << name;
  }
  const Json config = Json::parse(read_file(exported() / "config.json"));
  EXPECT_EQ(config["vocab_size"], 300);
  EXPECT_EQ(config["hidden_size"], 32);
}

TEST_F(EndToEnd, EvalOfTheCheckpointEqualsTheValidationOfTheRun) {
  const std::string text = output_of({"eval", run().string()});
  const Json validation = last_validation(run());
  EXPECT_NEAR(number_after(text, "loss"), validation["validation_metrics/global_avg_loss"].get<double>(),
              2e-6);
  EXPECT_NEAR(number_after(text, "bits per byte"),
              validation["validation_metrics/bits_per_byte"].get<double>(), 1e-4);
  EXPECT_EQ(output_of({"eval", step().string()}).substr(0, 40), text.substr(0, 40));
}

TEST_F(EndToEnd, EvalAndGenerateOfTheExportEqualThoseOfTheCheckpoint) {
  const auto loss_of = [&](const fs::path& model) {
    const std::string line =
        output_of({"eval", model.string(), "--data", file("tale.txt").string(), "--seq-len", "32"});
    return line.substr(0, line.find(" tok"));
  };
  const auto until_speed = [](const std::string& line) { return line.substr(0, line.rfind(',')); };
  EXPECT_EQ(until_speed(loss_of(exported())), until_speed(loss_of(step())));
  const Strings how = {"--prompt", "Line 3 of", "--max-tokens", "30", "--temperature", "0"};
  EXPECT_EQ(output_of(Strings{"generate", exported().string()} + how),
            output_of(Strings{"generate", step().string()} + how));
}

TEST_F(EndToEnd, EvalReadsSourcesAsTrainingDoes) {
  const auto loss_of = [&](const Strings& how) {
    const std::string line = output_of(Strings{"eval", exported().string(), "--seq-len", "32"} + how);
    return line.substr(0, line.rfind(','));
  };
  std::string records;
  std::istringstream lines(read_file(file("tale.txt")));
  for (std::string line; std::getline(lines, line);) records += Json{{"body", line}}.dump() + "\n";
  write_text(file("records.jsonl"), records);
  const std::string text = loss_of({"--data", file("tale.txt").string(), "--documents", "line"});
  EXPECT_EQ(loss_of({"--data", file("records.jsonl").string(), "--field", "body"}), text);
  const std::string entry = format("{{path=\"{}\", field=\"body\"}}", file("records.jsonl").string());
  EXPECT_EQ(loss_of({"--sources", "[" + entry + "]"}), text);
  EXPECT_CONTAINS(refusal_of({"eval", exported().string(), "--field", "body"}), "--data");
  EXPECT_CONTAINS(refusal_of({"eval", exported().string(), "--data", file("records.jsonl").string(),
                              "--format", "tales"}),
                  "format = \"tales\"");
}

TEST_F(EndToEnd, EvalReadsConversationsThroughTheTemplate) {
  write_text(file("chat.jinja"), "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  write_text(file("chat.jsonl"),
             R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}]})"
             "\n");
  const auto tokens_of = [&](const std::string& loss_on) {
    const std::string line = output_of({"eval", exported().string(), "--seq-len", "64", "--data",
                                        file("chat.jsonl").string(), "--format", "messages", "--loss-on",
                                        loss_on, "--chat-template", file("chat.jinja").string()});
    return number_after(line, "over");
  };
  EXPECT_GT(tokens_of("assistant"), 0);
  EXPECT_GT(tokens_of("all"), tokens_of("assistant"));
}

TEST_F(EndToEnd, AnImportIsTrainedWithTheDefaultsOfAFineTune) {
  output_of({"import", exported().string(), file("fine").string()});
  const std::string shown = output_of({"config", "show", (file("fine") / "config.toml").string()});
  const std::string from = output_of({"config", "show", "model.from=" + exported().string()});
  for (const std::string key : {"optimizer.lr", "lr_scheduler.warmup_steps"}) {
    const auto line_of = [&](const std::string& text) {
      const std::string name = "\n" + key.substr(key.find('.') + 1) + " = ";
      const size_t section = text.find("[" + key.substr(0, key.find('.')) + "]");
      const size_t at = text.find(name, section);
      return text.substr(at, text.find_first_of(" \n", at + name.size()) - at);
    };
    EXPECT_EQ(line_of(shown), line_of(from)) << key;
  }
}

/// What a process that was killed while it wrote `folder` left.
fs::path half_of(const fs::path& folder) {
  const fs::path half = folder.string() + ".stepforge-0123abcd";
  fs::create_directories(half / "checkpoint");
  write_text(half / "config.json", "{");
  return half;
}

TEST_F(EndToEnd, AKilledImportOrExportIsRepeatedWithTheSameCommand) {
  const fs::path half_run = half_of(file("killed-run"));
  output_of({"import", exported().string(), file("killed-run").string()});
  EXPECT_FALSE(fs::exists(half_run));
  EXPECT_TRUE(fs::exists(file("killed-run") / "config.toml"));
  EXPECT_TRUE(fs::exists(file("killed-run") / "checkpoint/step-0/manifest.json"));

  const fs::path half_model = half_of(file("killed-model"));
  output_of({"export", run().string(), file("killed-model").string()});
  EXPECT_FALSE(fs::exists(half_model));
  EXPECT_TRUE(fs::exists(file("killed-model") / "model.safetensors"));
}

TEST_F(EndToEnd, AFailedImportLeavesNothing) {
  fs::copy(exported(), file("damaged"), fs::copy_options::recursive);
  fs::resize_file(file("damaged") / "model.safetensors", 4096);
  EXPECT_NE(run_program({"import", file("damaged").string(), file("none of it")}).exit_code, 0);
  for (const auto& entry : fs::directory_iterator(*folder_ / ""))
    EXPECT_FALSE(entry.path().filename().string().starts_with("none of it")) << entry.path();
}

TEST_F(EndToEnd, OutputsKeepWhatTheUserHasBesideThem) {
  folder_->write("beside.tmp/mine", "x");
  output_of({"export", run().string(), file("beside").string()});
  EXPECT_TRUE(fs::exists(file("beside.tmp/mine")));
  write_text(file("picture.svg.tmp"), "x");
  output_of({"plot", run().string(), "--output", file("picture.svg").string()});
  EXPECT_EQ(read_file(file("picture.svg.tmp")), "x");
}

TEST_F(EndToEnd, ImportOfTheExportHasTheSameTensorBits) {
  output_of({"import", exported().string(), file("imported").string()});
  const SafetensorsFile before(step() / "model.safetensors");
  const SafetensorsFile after(file("imported") / "checkpoint" / "step-0" / "model.safetensors");
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  for (const auto& entry : before.tensors()) {
    const TensorEntry* other = after.find(entry.name);
    ASSERT_NE(other, nullptr) << entry.name;
    const auto left = before.bytes(entry);
    const auto right = after.bytes(*other);
    EXPECT_TRUE(std::equal(left.begin(), left.end(), right.begin(), right.end())) << entry.name;
  }
  // The import is a run: it generates text, also after its folder was moved, and another run can start from
  // it.
  fs::rename(file("imported"), file("moved"));
  const Strings how = {"--prompt", "Line", "--max-tokens", "8", "--temperature", "0"};
  EXPECT_EQ(output_of(Strings{"generate", file("moved").string()} + how),
            output_of(Strings{"generate", step().string()} + how));
  EXPECT_CONTAINS(refusal_of({"import", exported().string(), file("moved").string()}), "exists already");
  const Strings next =
      Strings{"train"} + small_run(file("next")) +
      Strings{format("checkpoint.initial_load_path={}", (file("moved") / "checkpoint" / "step-0").string()),
              "model.vocab_size=300", "training.steps=1"};
  const ProgramResult started = run_program(next);
  EXPECT_EQ(started.exit_code, 0);
  EXPECT_CONTAINS(started.err, "weights loaded from");
}

TEST_F(EndToEnd, AModelWithoutTokenizerIsExportedWithoutOne) {
  fs::copy(exported(), file("bare"));
  fs::remove(file("bare") / "tokenizer.json");
  output_of({"import", file("bare").string(), file("bare-run").string()});
  output_of({"export", file("bare-run").string(), file("bare-again").string()});
  EXPECT_FALSE(fs::exists(file("bare-again") / "tokenizer.json"));
  EXPECT_EQ(Json::parse(read_file(file("bare-again") / "config.json")).at("eos_token_id"),
            Json::parse(read_file(file("bare") / "config.json")).at("eos_token_id"));
  EXPECT_CONTAINS(refusal_of({"train", (file("bare-run") / "config.toml").string(), "training.steps=1",
                              format("data.sources=[{{path=\"{}\"}}]", file("tale.txt").string())}),
                  "tokenizer.path");
  EXPECT_CONTAINS(refusal_of({"generate", file("bare-run").string(), "--prompt", "a"}), "tokenizer.json");
}

TEST_F(EndToEnd, AnImportedFolderCanBeMovedAndTrainedInDirectly) {
  output_of({"import", exported().string(), file("hf-run").string()});
  fs::rename(file("hf-run"), file("hf-moved"));
  const ProgramResult trained = run_program(
      {"train", (file("hf-moved") / "config.toml").string(), "training.steps=1", "training.seq_len=32",
       "training.local_batch_size=2", format("data.sources=[{{path=\"{}\"}}]", file("tale.txt").string())});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_CONTAINS(trained.err, "weights loaded from") << trained.err;
  EXPECT_TRUE(fs::exists(file("hf-moved") / "checkpoint" / "step-1" / "manifest.json"));
  EXPECT_FALSE(fs::exists(file("hf-run")));
}

TEST_F(EndToEnd, GenerationSettingsOfAnImportAreInItsExport) {
  fs::copy(exported(), file("chat"));
  const Json settings = {{"bos_token_id", 3}, {"eos_token_id", {1, 2}}, {"temperature", 0.6}, {"top_p", 0.9}};
  write_text(file("chat") / "generation_config.json", settings.dump());
  output_of({"import", file("chat").string(), file("chat-run").string()});
  output_of({"export", file("chat-run").string(), file("chat-again").string()});
  EXPECT_EQ(Json::parse(read_file(file("chat-again") / "generation_config.json")), settings);
  EXPECT_EQ(Json::parse(read_file(file("chat-again") / "config.json"))["eos_token_id"],
            settings["eos_token_id"]);
}

TEST_F(EndToEnd, ARunFolderIsNotImportedAndTheErrorNamesModelFrom) {
  EXPECT_CONTAINS(refusal_of({"import", run().string(), file("run-again").string()}), "model.from");
  fs::create_directory(file("empty"));
  EXPECT_CONTAINS(refusal_of({"import", file("empty").string(), file("run-again").string()}),
                  "is not a model");
  EXPECT_FALSE(fs::exists(file("run-again")));
}

TEST_F(EndToEnd, InitialWeightsOfADifferentModelAreRefusedFieldByField) {
  for (const fs::path& source : {exported(), step()}) {
    const Strings args = Strings{"train"} + small_run(file("other")) +
                         Strings{format("checkpoint.initial_load_path={}", source.string()),
                                 "model.vocab_size=300", "training.steps=1"};
    const std::string message = refusal_of(args + Strings{"model.rope_theta=20000", "model.dim=48"});
    EXPECT_CONTAINS(message, "model.rope_theta: 10000.0 there, 20000.0 here") << message;
    EXPECT_CONTAINS(message, "model.dim: 32 there, 48 here") << message;
    EXPECT_CONTAINS(message, "checkpoint.allow_changed") << message;
    const ProgramResult accepted =
        run_program(args + Strings{"model.rope_theta=20000", "checkpoint.allow_changed=[\"model\"]"});
    EXPECT_EQ(accepted.exit_code, 0) << accepted.err;
    fs::remove_all(file("other"));
  }
}

TEST_F(EndToEnd, ARunIsEvaluatedFromItsFolderAlone) {
  fs::copy(run() / "tokenizer", file("given"));
  const Strings args =
      Strings{"train"} + small_run(file("by-path")) +
      Strings{format("data.sources=[{{path=\"{}\"}}]", file("tale.txt").string()), "tokenizer.type=hf",
              format("tokenizer.path={}", file("given").string()), "training.steps=1"};
  ASSERT_EQ(run_program(args).exit_code, 0);
  fs::remove_all(file("given"));
  EXPECT_EQ(
      output_of({"generate", file("by-path").string(), "--prompt", "Line", "--max-tokens", "4"}).substr(0, 4),
      "Line");
}

TEST_F(EndToEnd, GreedyGenerationIsDeterministicAndASeedFixesTheSamples) {
  const Strings how = {"generate", exported().string(), "--prompt", "Line", "--max-tokens", "24"};
  const std::string greedy = output_of(how + Strings{"--temperature", "0"});
  EXPECT_EQ(greedy.substr(0, 4), "Line");
  EXPECT_EQ(output_of(how + Strings{"--temperature", "0", "--seed", "9"}), greedy);
  const std::string first = output_of(how + Strings{"--temperature", "1.5", "--seed", "1"});
  EXPECT_EQ(output_of(how + Strings{"--temperature", "1.5", "--seed", "1"}), first);
  EXPECT_NE(output_of(how + Strings{"--temperature", "1.5", "--seed", "2"}), first);
  EXPECT_EQ(output_of(how + Strings{"--temperature", "1.5", "--top-k", "1"}), greedy);
}

TEST_F(EndToEnd, GenerateReadsPromptsFromAFile) {
  write_text(file("prompts.txt"), "Line 3 of\nLine 14 of\n");
  write_text(file("prompts.jsonl"), "{\"prompt\":\"Line 3 of\"}\n\"Line 14 of\"\n");
  const Strings how = {"--max-tokens", "10", "--temperature", "0"};
  const auto made = [&](const Strings& prompt) {
    return output_of(Strings{"generate", step().string()} + how + prompt);
  };
  const std::string lines = made({"--prompts", file("prompts.txt").string()});
  EXPECT_EQ(made({"--prompts", file("prompts.jsonl").string()}), lines);
  std::istringstream each(lines);
  for (const std::string prompt : {"Line 3 of", "Line 14 of"}) {
    std::string line;
    ASSERT_TRUE(std::getline(each, line));
    const Json json = Json::parse(line);
    EXPECT_EQ(json["prompt"], prompt);
    EXPECT_EQ(prompt + json["text"].get<std::string>() + "\n", made({"--prompt", prompt}));
  }
}

TEST_F(EndToEnd, GenerateSamplesAsTheModelSays) {
  fs::copy(exported(), file("sampled"), fs::copy_options::recursive);
  write_text(file("sampled") / "generation_config.json",
             R"({"do_sample": true, "temperature": 5.0, "top_k": 0})");
  const auto made = [&](const Strings& how) {
    return output_of(
        Strings{"generate", file("sampled").string(), "--prompt", "Line 3", "--max-tokens", "20"} + how);
  };
  EXPECT_EQ(made({}), made({"--temperature", "5", "--top-k", "0"}));
  EXPECT_NE(made({}), made({"--temperature", "0.8"}));
}

TEST_F(EndToEnd, ATokenizerLargerThanTheEmbeddingIsFoundAtTheStart) {
  fs::copy(exported(), file("grown"), fs::copy_options::recursive);
  Json tokenizer = Json::parse(read_file(file("grown") / "tokenizer.json"));
  tokenizer["added_tokens"].push_back({{"id", 300},
                                       {"content", "<new>"},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}});
  write_file_atomic(file("grown") / "tokenizer.json", tokenizer.dump());
  EXPECT_CONTAINS(refusal_of({"generate", file("grown").string(), "--prompt", "Line"}), "has 301 tokens");
}

TEST_F(EndToEnd, ARunWhoseTokenizerHasFewTokensIsOpenedAgain) {
  fs::create_directory(file("few"));
  write_text(file("few/tokenizer.json"), R"({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "the": 1}, "unk_token": "[UNK]"}})");
  output_of(Strings{"train"} + small_run(file("few-run")) +
            Strings{format("data.sources=[{{path=\"{}\"}}]", file("tale.txt").string()), "tokenizer.type=hf",
                    "tokenizer.path=" + file("few").string(), "training.steps=1"});
  output_of({"generate", file("few-run").string(), "--prompt", "the", "--max-tokens", "2"});
}

TEST_F(EndToEnd, ATokenizerThatChangedSinceTheCheckpointIsRefused) {
  fs::copy(run(), file("swapped"), fs::copy_options::recursive);
  const fs::path path = file("swapped") / "tokenizer/tokenizer.json";
  Json tokenizer = Json::parse(read_file(path));
  Json& vocabulary = tokenizer["model"]["vocab"];
  std::swap(vocabulary["a"], vocabulary["b"]);
  write_file_atomic(path, tokenizer.dump());
  for (const Strings& command :
       {Strings{"generate", file("swapped").string(), "--prompt", "L"},
        Strings{"eval", file("swapped").string(), "--data", file("tale.txt").string()},
        Strings{"export", file("swapped").string(), file("none").string()}})
    EXPECT_CONTAINS(refusal_of(command), "is not the one that", "step-12 was trained with", "restore");
}

TEST_F(EndToEnd, CommandsSayWhichStepTheyTake) {
  const ProgramResult result =
      run_program({"generate", run().string(), "--prompt", "L", "--max-tokens", "1"});
  EXPECT_CONTAINS(result.err, "step 12, the only checkpoint");
  EXPECT_CONTAINS(export_.err, "step-12 to ");
  EXPECT_CONTAINS(refusal_of({"export", (run() / "checkpoint/step-9").string(), file("none").string()}),
                  "available steps: 12");
}

TEST_F(EndToEnd, GenerationEndsBeforeAStopString) {
  const Strings how = {"generate", exported().string(), "--prompt", "Line", "--max-tokens",
                       "24",       "--temperature",     "0"};
  const std::string whole = output_of(how);
  const std::string written = whole.substr(4, whole.size() - 5);
  ASSERT_GE(written.size(), 4U);
  const std::string stop = written.substr(written.size() / 2, 2);
  EXPECT_EQ(output_of(how + Strings{"--stop", stop}), "Line" + written.substr(0, written.find(stop)) + "\n");
}

TEST_F(EndToEnd, EvalOfTokenIdsWritesLossesAndLogitsThatAgree) {
  constexpr int64_t rows = 2;
  constexpr int64_t length = 12;
  constexpr int64_t vocab = 300;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < rows * length; ++i) tokens.push_back(i * 37 % static_cast<int32_t>(vocab));
  {
    SafetensorsWriter writer(file("tokens.safetensors"), {{"tokens", DType::i32, {rows, length}}});
    writer.write("tokens", std::as_bytes(std::span(tokens)));
    writer.finish();
  }
  const std::string line =
      output_of({"eval", step().string(), "--tokens", file("tokens.safetensors").string(), "--output",
                 file("losses.safetensors").string(), "--logits"});
  const SafetensorsFile result(file("losses.safetensors"));
  const auto floats = [&](const char* name) {
    const auto bytes = result.bytes(*result.find(name));
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  const auto losses = floats("token_loss");
  const auto logits = floats("logits");
  ASSERT_EQ(losses.size(), static_cast<size_t>(rows * length));
  ASSERT_EQ(logits.size(), static_cast<size_t>(rows * length * vocab));
  double sum = 0.0;
  for (size_t i = 0; i < losses.size(); ++i) {
    if ((i + 1) % length == 0) {
      EXPECT_EQ(losses[i], 0.0F) << "a row's last token has no label";
      continue;
    }
    const std::span<const float> row(logits.data() + i * vocab, static_cast<size_t>(vocab));
    double total = 0.0;
    for (const float logit : row) total += std::exp(static_cast<double>(logit));
    const double expected = std::log(total) - row[static_cast<size_t>(tokens[i + 1])];
    EXPECT_NEAR(losses[i], expected, 1e-4) << i;
    sum += losses[i];
  }
  EXPECT_NEAR(number_after(line, "loss"), sum / (rows * (length - 1)), 1e-5);
}

/// Names and values of the tensors of a file.
std::map<std::string, std::vector<float>> float_tensors(const fs::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, std::vector<float>> tensors;
  for (const TensorEntry& entry : file.tensors()) {
    const auto bytes = file.bytes(entry);
    std::vector<float>& values = tensors[entry.name];
    values.resize(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return tensors;
}

TEST_F(EndToEnd, EvalWritesTheGradientsOfItsLossByHuggingFaceName) {
  constexpr int64_t rows = 3;
  constexpr int64_t length = 11;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < rows * length; ++i) tokens.push_back(i * 37 % 300);
  {
    SafetensorsWriter writer(file("tokens.safetensors"), {{"tokens", DType::i32, {rows, length}}});
    writer.write("tokens", std::as_bytes(std::span(tokens)));
    writer.finish();
  }
  const Strings args = {"--tokens", file("tokens.safetensors").string()};
  output_of(Strings{"eval", exported().string()} + args +
            Strings{"--gradients", file("gradients.safetensors").string()});
  const auto gradients = float_tensors(file("gradients.safetensors"));
  const auto weights = float_tensors(exported() / "model.safetensors");
  const SafetensorsFile model(exported() / "model.safetensors");
  ASSERT_EQ(gradients.size(), weights.size());

  fs::copy(exported(), file("changed"));
  /// The mean loss with all tensors, or only one, moved by `step` times their gradient.
  const auto loss_at = [&](double step, const std::string& only) {
    std::vector<TensorSpec> specs;
    for (const TensorEntry& entry : model.tensors()) specs.push_back({entry.name, DType::f32, entry.shape});
    SafetensorsWriter writer(file("changed") / "model.safetensors", specs);
    for (const TensorSpec& spec : specs) {
      std::vector<float> moved = weights.at(spec.name);
      const std::vector<float>& gradient = gradients.at(spec.name);
      EXPECT_EQ(gradient.size(), moved.size()) << spec.name;
      for (size_t i = 0; i < moved.size() && (only.empty() || only == spec.name); ++i)
        moved[i] += static_cast<float>(step * gradient[i]);
      writer.write(spec.name, std::as_bytes(std::span(moved)));
    }
    writer.finish();
    output_of(Strings{"eval", file("changed").string()} + args +
              Strings{"--output", file("losses.safetensors").string()});
    const auto losses = float_tensors(file("losses.safetensors"));
    double sum = 0.0;
    for (const float loss : losses.at("token_loss")) sum += loss;
    return sum / (rows * (length - 1));
  };
  for (const std::string only :
       {"", "model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight", "model.norm.weight"}) {
    double square = 0.0;
    for (const auto& [name, gradient] : gradients)
      for (const float value : gradient)
        if (only.empty() || only == name) square += static_cast<double>(value) * value;
    ASSERT_GT(square, 0.0) << only;
    const double step = 2e-3 / square;
    EXPECT_NEAR((loss_at(step, only) - loss_at(-step, only)) / (2 * step), square, 0.02 * square) << only;
  }
  EXPECT_CONTAINS(refusal_of({"eval", exported().string(), "--gradients", file("none").string()}),
                  "--gradients needs --tokens");
}

TEST_F(EndToEnd, EvalBeyondTheContextIsRefused) {
  const int64_t context = Json::parse(read_file(exported() / "config.json"))["max_position_embeddings"];
  const Strings args = {"eval", exported().string(), "--data", file("tale.txt").string(), "--seq-len"};
  const std::string message = refusal_of(args + Strings{format("{}", context + 1)});
  EXPECT_CONTAINS(message,
                  format("--seq-len: rows of {} tokens; the model's context holds {}", context + 1, context))
      << message;
}

TEST_F(EndToEnd, PromptBeyondTheContextIsRefusedBeforeItIsPrinted) {
  const std::string message = refusal_of({"generate", exported().string(), "--prompt", some_text(400)});
  EXPECT_CONTAINS(message, "the model's context holds") << message;
}

TEST_F(EndToEnd, PlotWritesAnSvg) {
  output_of({"plot", run().string(), "--output", file("plot.svg").string()});
  const std::string svg = read_file(file("plot.svg"));
  EXPECT_TRUE(svg.starts_with("<svg") || svg.starts_with("<?xml"));
  EXPECT_CONTAINS(svg, "</svg>");
  EXPECT_CONTAINS(svg, "loss");
}

TEST_F(EndToEnd, EveryCommandReadsNamesThatAWrapperChanged) {
  fs::copy(exported(), file("wrapped"), fs::copy_options::recursive);
  const SafetensorsFile weights(exported() / "model.safetensors");
  std::vector<TensorSpec> specs;
  for (const TensorEntry& entry : weights.tensors())
    specs.push_back({"_orig_mod." + entry.name, entry.dtype, entry.shape});
  {
    SafetensorsWriter writer(file("wrapped") / "model.safetensors", specs);
    for (const TensorEntry& entry : weights.tensors())
      writer.write("_orig_mod." + entry.name, weights.bytes(entry));
    writer.finish();
  }
  const auto generated = [&](const fs::path& model) {
    return run_program(
        {"generate", model.string(), "--prompt", "Line 3", "--max-tokens", "5", "--temperature", "0"});
  };
  const ProgramResult wrapped = generated(file("wrapped"));
  EXPECT_EQ(wrapped.out, generated(exported()).out);
  EXPECT_CONTAINS(wrapped.err, "\"_orig_mod.\" left out of the names");
  const ProgramResult trained = run_program(
      {"train", "model.from=" + file("wrapped").string(), "run_dir=" + file("from-wrapped").string(),
       format("data.sources=[{{path=\"{}\"}}]", file("tale.txt").string()), "training.steps=1",
       "training.seq_len=32"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_CONTAINS(trained.err, "\"_orig_mod.\" left out of the names");
}

TEST_F(EndToEnd, EveryCommandThatOpensAFolderNamesWhatItIs) {
  fs::copy(exported(), file("pointer"), fs::copy_options::recursive);
  write_text(file("pointer") / "model.safetensors",
             "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 10760\n");
  const std::string pointer = file("pointer").string();
  const std::string data = format("data.sources=[{{path=\"{}\"}}]", file("tale.txt").string());
  for (const Strings& command :
       {Strings{"eval", pointer, "--data", file("tale.txt").string()}, Strings{"generate", pointer},
        Strings{"export", pointer, file("none").string()}, Strings{"import", pointer, file("none").string()},
        Strings{"train", "model.from=" + pointer, "run_dir=" + file("none").string(), data,
                "training.steps=1"}}) {
    const ProgramResult result = run_program(command);
    EXPECT_NE(result.exit_code, 0) << command[0];
    EXPECT_CONTAINS(result.err, "git lfs pull") << command[0];
  }
  for (const Strings& command :
       {Strings{"eval", "Qwen/Qwen3-0.6B"}, Strings{"import", "Qwen/Qwen3-0.6B", file("none").string()},
        Strings{"train", "model.from=Qwen/Qwen3-0.6B", data, "training.steps=1"},
        Strings{"train", "preset=debug", "checkpoint.initial_load_path=Qwen/Qwen3-0.6B"}}) {
    EXPECT_CONTAINS(refusal_of(command), "hf download Qwen/Qwen3-0.6B") << command[0];
  }
  EXPECT_CONTAINS(refusal_of({"train", "preset=debug", "data.sources=[{path=\"tatsu-lab/alpaca\"}]"}),
                  "hf download --repo-type dataset tatsu-lab/alpaca");
}

TEST_F(EndToEnd, AFolderWithoutAModelIsRefused) {
  const std::string message = refusal_of({"generate", (*folder_ / "cache").string()});
  EXPECT_CONTAINS(message, "is not a model");
  EXPECT_CONTAINS(refusal_of({"export", "nowhere", file("out").string()}), "nowhere");
  EXPECT_CONTAINS(refusal_of({"plot", "nowhere"}), "nowhere");
}

TEST_F(EndToEnd, AnExportOverAnExistingFolderIsRefused) {
  EXPECT_CONTAINS(refusal_of({"export", run().string(), exported().string()}), "exported");
}

}  // namespace
}  // namespace stepforge::testing

// SPDX-License-Identifier: Apache-2.0
// The installed package, used by a project of its own: examples/ is built against it and run on one and two
// ranks.
#include <algorithm>
#include <cctype>
#include <map>
#include <regex>
#include <sstream>
#include <utility>
#include <vector>

#include "tests/app/program.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

/// Always the same folder, so that ccache finds earlier results.
fs::path package_folder() {
  return binary_dir() / "package-test";
}
fs::path prefix() {
  return package_folder() / "moved";
}
fs::path program() {
  return package_folder() / "build" / "custom_loop";
}

/// Runs with one thread, since ranks share the machine.
ProgramResult run(const fs::path& program, const Strings& args) {
  return Child(args, "", {"OMP_NUM_THREADS=1"}, program).wait();
}

Strings configure(const std::string& folder, const Strings& more = {}) {
  return Strings{"-S",
                 (source_dir() / "examples").string(),
                 "-B",
                 (package_folder() / folder).string(),
                 "-DCMAKE_PREFIX_PATH=" + prefix().string(),
                 "-DCMAKE_CXX_FLAGS=-O0"} +  // compiling takes longer than running
         more;
}

/// The package is installed and then moved: it must not depend on where it was installed.
class Package : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    fs::remove_all(package_folder());
    const Strings install{"--install", binary_dir().string(), "--prefix",
                          (package_folder() / "prefix").string()};
    const ProgramResult installed = run("cmake", install);
    ASSERT_EQ(installed.exit_code, 0) << installed.err;
    fs::rename(package_folder() / "prefix", prefix());
    const bool has_ccache = run("ccache", {"--version"}).exit_code == 0;
    const ProgramResult configured =
        run("cmake",
            configure("build", has_ccache ? Strings{"-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"} : Strings{}));
    ASSERT_EQ(configured.exit_code, 0) << configured.err;
    const ProgramResult built = run("cmake", {"--build", (package_folder() / "build").string()});
    ASSERT_EQ(built.exit_code, 0) << built.out << built.err;
  }
};

/// The step and the norm of each "step 20  norm 0.1234".
std::vector<std::pair<int, double>> norms_in(const std::string& text) {
  static const std::regex line("step (\\d+)  norm ([0-9.]+)");
  std::vector<std::pair<int, double>> norms;
  for (std::sregex_iterator found(text.begin(), text.end(), line), end; found != end; ++found) {
    norms.emplace_back(std::stoi((*found)[1]), std::stod((*found)[2]));
  }
  return norms;
}

TEST_F(Package, ItsProgramFindsItsLibraries) {
  const ProgramResult result = run(prefix() / "bin" / "stepforge", {"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_CONTAINS(result.out, (prefix() / "lib" / "libstepforge_torch.so").string()) << result.out;
}

TEST_F(Package, ACustomLoopTrainsTheSameOnOneAndTwoRanks) {
  const ProgramResult one = run(program(), {});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const std::vector<std::pair<int, double>> norms_of_one = norms_in(one.out);
  const std::map<int, double> expected(norms_of_one.begin(), norms_of_one.end());
  ASSERT_EQ(expected.size(), 3U) << one.out;
  EXPECT_TRUE(contains(one.out, "rank 0 of 1 has 14 whole tensors")) << one.out;
  const fs::path agent = torchrun();
  std::vector<ProgramResult> results = {
      run(prefix() / "bin" / "stepforge", {"launch", "--nproc", "2", "--ranks", "all", "--log-dir",
                                           (package_folder() / "logs").string(), program()})};
  if (!agent.empty())
    results.push_back(run(agent, {"--no-python", "--standalone", "--nproc-per-node", "2", program()}));
  for (const ProgramResult& two : results) {
    EXPECT_EQ(two.exit_code, 0) << two.err;
    EXPECT_TRUE(contains(two.out, "rank 0 of 2 has 14 whole tensors")) << two.out;
    EXPECT_TRUE(contains(two.out, "rank 1 of 2 has 0 whole tensors")) << two.out;
    std::map<int, int> ranks_of_step;
    for (const auto& [step, norm] : norms_in(two.out)) {
      ++ranks_of_step[step];
      EXPECT_NEAR(norm, expected.at(step), 1e-3) << "step " << step;
    }
    EXPECT_EQ(ranks_of_step, (std::map<int, int>{{20, 2}, {40, 2}, {60, 2}})) << two.out;
  }
}

TEST_F(Package, DividedLayersTrainTheSameOnOneTwoAndFourRanks) {
  const fs::path divided = package_folder() / "build" / "tensor_parallel";
  const ProgramResult one = run(divided, {});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const std::vector<std::pair<int, double>> expected = norms_in(one.out);
  ASSERT_EQ(expected.size(), 3U) << one.out;
  for (const char* ranks : {"2", "4"}) {
    const ProgramResult several =
        run(prefix() / "bin" / "stepforge",
            {"launch", "--nproc", ranks, "--log-dir", (package_folder() / "logs").string(), divided});
    EXPECT_EQ(several.exit_code, 0) << several.err;
    EXPECT_CONTAINS(several.out,
                    std::string("rank 0 of ") + ranks + ", with 1/2 of each layer, has 8 whole tensors");
    const std::vector<std::pair<int, double>> found = norms_in(several.out);
    ASSERT_EQ(found.size(), expected.size()) << several.out;
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i].second, expected[i].second, 1e-3) << "step " << found[i].first;
  }
}

/// The number after "lowest loss " that custom_trainer prints.
double lowest_loss_in(const std::string& text) {
  const std::regex line("lowest loss ([0-9.]+) in 30 steps");
  std::smatch found;
  EXPECT_TRUE(std::regex_search(text, found, line)) << text;
  return found.empty() ? 0.0 : std::stod(found[1]);
}

TEST_F(Package, ATrainerWithCustomDataAndCallbackTrainsTheSameOnOneAndTwoRanks) {
  const TempFolder folder;
  const fs::path trainer = package_folder() / "build" / "custom_trainer";
  const auto arguments = [&](const std::string& name) {
    return small_run(folder / name) + Strings{"training.steps=30", "optimizer.lr=1e-2"};
  };
  const ProgramResult one = run(trainer, arguments("one"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const ProgramResult two =
      run(prefix() / "bin" / "stepforge",
          Strings{"launch", "--nproc", "2", "--log-dir", (folder / "logs").string(), trainer.string()} +
              arguments("two") + Strings{"training.local_batch_size=1"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  // The text uses 14 of 256 bytes: ln 14 = 2.6, while an untrained model has ln 256 = 5.5.
  EXPECT_LT(lowest_loss_in(one.out), 3.0);
  EXPECT_NEAR(lowest_loss_in(two.out), lowest_loss_in(one.out), 1e-3);
}

fs::path plugin(const std::string& name) {
  return package_folder() / "build" / (name + ".so");
}

ProgramResult run_with(const Strings& plugins, const Strings& args) {
  Strings arguments;
  for (const std::string& name : plugins) arguments = arguments + Strings{"--plugin", plugin(name).string()};
  return run(prefix() / "bin" / "stepforge", arguments + args);
}

TEST_F(Package, ExamplePluginsAddACallbackADecayASinkAndDataToARunThatResumes) {
  const TempFolder folder;
  const Strings settings = {"data.sources=[{kind = \"counting\"}]",
                            "lr_scheduler.decay_type=staircase",
                            "lr_scheduler.warmup_steps=0",
                            "staircase.stairs=2",
                            "metrics.log_freq=1",
                            "data.validation_fraction=0.01",
                            "checkpoint.interval=4",
                            "csv.file=" + (folder / "loss.csv").string()};
  const ProgramResult first = run_with({"lr_decay", "callback", "sink", "data_source"},
                                       Strings{"train"} + small_run(folder / "run") + settings);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_CONTAINS(first.err, "lowest loss",
                  "saved in " + (folder / "run" / "checkpoint" / "step-4").string());
  const std::string metrics = read_file(folder / "run" / "metrics.jsonl");
  EXPECT_CONTAINS(metrics, "\"lowest_loss\"", "\"lr\":0.0004") << "two stairs";
  EXPECT_CONTAINS(read_file(folder / "loss.csv"), "\n8,");
  // The configuration of the run names its plug-ins; the callback's state is in the checkpoint.
  const ProgramResult resumed = run(prefix() / "bin" / "stepforge",
                                    {"train", (folder / "run" / "config.toml").string(), "training.steps=9"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_CONTAINS(resumed.err, "resumed from", "plug-ins: " + plugin("lr_decay").string());
  // The weights can be used without the plug-ins.
  const ProgramResult generated =
      run(prefix() / "bin" / "stepforge", {"generate", (folder / "run").string(), "--max-tokens", "2"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  const ProgramResult unknown = run(prefix() / "bin" / "stepforge", {"eval", (folder / "run").string()});
  EXPECT_CONTAINS(unknown.err, "no data source \"counting\"; is a plug-in missing?");
  const ProgramResult evaluated = run_with({"data_source"}, {"eval", (folder / "run").string()});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
}

TEST_F(Package, AnExamplePluginAddsAModelFamilyThatIsTrainedExportedAndImported) {
  const TempFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const auto succeed = [&](const Strings& arguments) {
    const ProgramResult result = run_with({"family"}, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const Strings settings = small_run(path("run")) + Strings{"model.family=seed_oss", "model.head_dim=16"};
  EXPECT_CONTAINS(succeed(Strings{"plan", "--layout"} + settings), "attention.qkv_bias");
  succeed(Strings{"launch", "--nproc", "2", "train"} + settings +
          Strings{"parallelism.tensor_parallel_degree=2", "model.n_kv_heads=2"});
  succeed({"export", path("run"), path("exported")});
  const std::string config = read_file(folder / "exported" / "config.json");
  EXPECT_CONTAINS(config, "\"model_type\": \"seed_oss\"", "SeedOssForCausalLM", "\"attention_bias\": true");
  succeed({"import", path("exported"), path("imported")});
  succeed({"export", path("imported"), path("again")});
  EXPECT_EQ(read_file(folder / "again" / "config.json"), config);
  EXPECT_EQ(read_file(folder / "again" / "model.safetensors"),
            read_file(folder / "exported" / "model.safetensors"));
  write_text(folder / "text.txt", "A few words to evaluate the model on.\n");
  const Strings text = {"--data", path("text.txt"), "--seq-len", "16"};
  const auto loss_of = [&](const char* model) {
    const std::string line = succeed(Strings{"eval", path(model)} + text);
    return line.substr(0, line.find(" over"));
  };
  EXPECT_CONTAINS(loss_of("run"), "loss ");
  EXPECT_EQ(loss_of("imported"), loss_of("run"));
  succeed(Strings{"train"} + small_run(path("tuned")) +
          Strings{"model.from=" + path("exported"), "model.n_kv_heads=2"});

  // Without the plug-in each of them says what is missing.
  for (const char* model : {"run", "imported"})
    EXPECT_CONTAINS(run_with({}, {"generate", path(model)}).err,
                    "model.family = \"seed_oss\": there is no such model family; is a plug-in missing?");
  EXPECT_CONTAINS(run_with({}, {"eval", path("exported")}).err, "model_type", "is a plug-in missing?");
  EXPECT_CONTAINS(
      run_with({}, Strings{"train"} + small_run(path("x")) + Strings{"model.from=" + path("run")}).err,
      "model.from", "there is no such model family");
}

TEST_F(Package, AnExamplePluginAddsAPipelineScheduleThatTwoRanksTrainWith) {
  const TempFolder folder;
  const Strings pipeline = {"parallelism.pipeline_parallel_degree=2",
                            "parallelism.pipeline_parallel_schedule=NewestFirst", "newest_first.group=2"};
  const ProgramResult planned = run_with(
      {"schedule"}, Strings{"plan", "--compare", "--world-size", "2"} + small_run(folder / "run") + pipeline);
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_CONTAINS(planned.out, "NewestFirst", "1F1B");
  const ProgramResult trained = run_with(
      {"schedule"}, Strings{"launch", "--nproc", "2", "train"} + small_run(folder / "run") + pipeline);
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
}

/// The tensors of a checkpoint that two ranks have written: the bytes of its files, by name.
std::map<std::string, std::string> tensor_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files[entry.path().filename()] = read_file(entry.path());
  return files;
}

TEST_F(Package, AnExamplePluginAddsAParallelPlanThatTwoRanksTrainWith) {
  const TempFolder folder;
  // One key-value head cannot be divided.
  const Strings divided = {"parallelism.tensor_parallel_degree=2"};
  const Strings planned = divided + Strings{"parallelism.plan=whole_attention"};
  const auto plan = [&](const Strings& settings) {
    return run_with({"parallel_plan"},
                    Strings{"plan", "--layout", "--world-size", "4"} + small_run(folder / "run") + settings);
  };
  EXPECT_CONTAINS(plan(divided).err, "model.n_kv_heads = 1: the degree must divide it");
  EXPECT_EQ(plan(planned).exit_code, 0) << plan(planned).err;
  const ProgramResult trained = run_with(
      {"parallel_plan"}, Strings{"launch", "--nproc", "2", "train"} + small_run(folder / "run") + planned);
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  const Strings user = {
      "parallelism.tensor_parallel_plan=[{pattern = \"attention\", style = \"replicate\"}]"};
  const ProgramResult by_user =
      run_with({}, Strings{"launch", "--nproc", "2", "train"} + small_run(folder / "user") + divided + user);
  EXPECT_EQ(by_user.exit_code, 0) << by_user.err;
  EXPECT_EQ(tensor_files(folder / "run" / "checkpoint" / "step-8"),
            tensor_files(folder / "user" / "checkpoint" / "step-8"));
}

TEST_F(Package, AnExamplePluginAddsAnOptimizerThatTwoRanksResumeExactly) {
  const TempFolder folder;
  const auto train = [&](const Strings& plugins, const std::string& name, int steps) {
    return run_with(plugins,
                    Strings{"launch", "--nproc", "2", "train"} + small_run(folder / name) +
                        Strings{"optimizer.name=adagrad", "adagrad.initial=0.01", "optimizer.lr=1e-2",
                                "lr_scheduler.total_steps=6", "checkpoint.interval=3",
                                "training.local_batch_size=1", "training.steps=" + std::to_string(steps)});
  };
  for (const auto& [name, steps] : {std::pair("one", 6), std::pair("two", 3), std::pair("two", 6)}) {
    const ProgramResult result = train({"optimizer"}, name, steps);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  const auto whole = tensor_files(folder / "one" / "checkpoint" / "step-6");
  EXPECT_EQ(tensor_files(folder / "two" / "checkpoint" / "step-6"), whole);
  const bool has_slot = std::ranges::any_of(
      whole, [](const auto& file) { return contains(file.second, "optim.state.model.norm.weight.sum"); });
  EXPECT_TRUE(has_slot);
  EXPECT_CONTAINS(train({}, "two", 7).err, "optimizer.name = \"adagrad\"");
  // Another optimizer refuses the state.
  const ProgramResult other =
      run(prefix() / "bin" / "stepforge",
          Strings{"train"} + small_run(folder / "two") + Strings{"training.steps=7", "optimizer.name=adamw"});
  EXPECT_CONTAINS(other.err, "its state is sum, but optimizer.name needs exp_avg, exp_avg_sq");
}

TEST_F(Package, AnExamplePluginAddsALoss) {
  const TempFolder folder;
  const auto first_loss = [&](const std::string& name, const Strings& launch, const Strings& more) {
    const ProgramResult result =
        run_with({"loss"}, launch + Strings{"train"} + small_run(folder / name) +
                               Strings{"metrics.log_freq=1", "model.n_kv_heads=2"} + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string metrics = read_file(folder / name / "metrics.jsonl");
    std::smatch found;
    EXPECT_TRUE(std::regex_search(metrics, found, std::regex("global_avg_loss\":([0-9.]+)"))) << metrics;
    return std::stod(found[1]);
  };
  const Strings focal = {"training.loss=focal", "focal.gamma=2"};
  const double one = first_loss("one", {}, focal);
  // (1 - p)^2 of a p near 1/256.
  EXPECT_NEAR(one / first_loss("plain", {}, {}), 1.0 - 2.0 / 256, 2e-3);
  const Strings two = {"launch", "--nproc", "2"};
  EXPECT_NEAR(first_loss("two", two, focal + Strings{"training.local_batch_size=1"}), one, 1e-5);
  EXPECT_NEAR(first_loss("tensor", two,
                         focal + Strings{"parallelism.tensor_parallel_degree=2",
                                         "parallelism.disable_loss_parallel=true"}),
              one, 1e-5);
}

TEST_F(Package, AnExamplePluginAddsAPassThatChangesTimesAndNoNumber) {
  const TempFolder folder;
  const auto final_weights = [&](const std::string& name, const Strings& plugins) {
    const ProgramResult result =
        run_with(plugins, Strings{"launch", "--nproc", "2", "train"} + small_run(folder / name) +
                              Strings{"training.local_batch_size=1"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return tensor_files(folder / name / "checkpoint" / "step-8");
  };
  const auto plain = final_weights("plain", {});
  EXPECT_FALSE(plain.empty());
  EXPECT_EQ(final_weights("serial", {"pass"}), plain);
}

TEST_F(Package, AnExamplePluginAddsASubCommand) {
  const TempFolder folder;
  write_text(folder / "run.toml", "[training]\nseq_len = 16\nglobal_batch_size = 24\n");
  EXPECT_CONTAINS(run_with({"sub_command"}, {"--help"}).out, "tokens-of-step");
  EXPECT_EQ(run_with({"sub_command"}, {"tokens-of-step", (folder / "run.toml").string()}).out, "384\n");
}

TEST(PluginGuide, HasEveryExampleInFewerThanFortyLines) {
  const std::string guide = read_file(source_dir() / "docs" / "extending.md");
  for (const auto& entry : fs::directory_iterator(source_dir() / "examples" / "plugins")) {
    std::istringstream example(read_file(entry.path()));
    std::string indented;
    int count = 0;
    for (std::string line; std::getline(example, line); ++count)
      indented += (line.empty() ? "" : "    " + line) + "\n";
    EXPECT_LT(count, 40) << entry.path();
    EXPECT_TRUE(contains(guide, indented)) << "copy " << entry.path() << " into docs/extending.md";
  }
}

TEST_F(Package, WithoutItsLibtorchNamesTheVersionItNeeds) {
  const ProgramResult result = run("cmake", configure("without", {"-DSTEPFORGE_TORCH=/nowhere"}));
  EXPECT_NE(result.exit_code, 0);
  for (const char* part : {"/nowhere", "Stepforge was built with", "libtorch 2.11", "set STEPFORGE_TORCH"}) {
    // CMake wraps lines.
    std::string text;
    for (const char letter : result.err)
      text += std::isspace(static_cast<unsigned char>(letter)) ? ' ' : letter;
    for (size_t at = 0; (at = text.find("  ", at)) != std::string::npos;) text.erase(at, 1);
    EXPECT_CONTAINS(text, part) << result.err;
  }
}

TEST_F(Package, RefusesAnIncompatibleVersion) {
  const TempFolder folder;
  write_text(folder / "CMakeLists.txt",
             "cmake_minimum_required(VERSION 3.25)\nproject(x CXX)\nfind_package(Stepforge 99 REQUIRED)\n");
  const ProgramResult result = run("cmake", {"-S", folder.path().string(), "-B", (folder / "build").string(),
                                             "-DCMAKE_PREFIX_PATH=" + prefix().string()});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_CONTAINS(result.err, "compatible with requested version \"99\"") << result.err;
}

}  // namespace
}  // namespace stepforge::testing

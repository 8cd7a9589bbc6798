// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, started by `stepforge launch` or torchrun.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <map>
#include <random>
#include <span>
#include <sstream>
#include <thread>

#include "stepforge/base/json.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/tensorfile/tensor_folder.h"
#include "tests/app/program.h"
#include "tests/app/run_state.h"
#include "tests/launch/listener.h"

namespace stepforge::testing {
namespace {

/// Eight rows a step in ordered mode: the same bits on any power of two of ranks.
Strings job(const fs::path& run) {
  return Strings{"train"} + small_run(run) +
         Strings{"training.local_batch_size=1", "training.global_batch_size=8",
                 "training.reduction=ordered",  "training.steps=6",
                 "checkpoint.interval=2",       "checkpoint.keep_latest_k=0"};
}

Strings launched(const TempFolder& folder, int ranks, const Strings& command) {
  return Strings{"launch", "--nproc", std::to_string(ranks), "--log-dir", (folder / "logs").string()} +
         command;
}

/// Step, loss and norm of each line of metrics.jsonl.
std::vector<std::string> numbers(const fs::path& run) {
  std::vector<std::string> all;
  std::ifstream lines(run / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    if (json["kind"] != "train") continue;
    all.push_back(format("{} {} {}", json["step"].get<int64_t>(), json["loss_metrics/global_avg_loss"].dump(),
                         json["grad_norm"].dump()));
  }
  return all;
}

/// Names and hashes of weights and moments, independent of how files hold them.
Strings tensors(const fs::path& run, int step = 6) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(run / "checkpoint" / format("step-{}", step))) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  const TensorFolder folder(files);
  Strings all;
  for (const std::string& name : folder.names()) {
    const TensorSlice whole = whole_slice(folder.find(name)->shape);
    std::vector<float> values(static_cast<size_t>(whole.elements()));
    folder.read(name, whole, std::as_writable_bytes(std::span(values)));
    all.push_back(name + " " + content_hash(std::as_bytes(std::span(values))));
  }
  return all;
}

TEST(Launch, TwoAndFourProcessesTrainToTheBitsOfOne) {
  const TempFolder folder;
  ASSERT_EQ(run_program(job(folder / "one")).exit_code, 0);
  ASSERT_EQ(numbers(folder / "one").size(), 6U);
  for (const int ranks : {2, 4}) {
    const fs::path run = folder / format("of-{}", ranks);
    const ProgramResult result = run_program(launched(folder, ranks, job(run)));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(numbers(run), numbers(folder / "one")) << ranks;
    EXPECT_EQ(tensors(run), tensors(folder / "one")) << ranks;
  }
}

TEST(Launch, RunsOfAllAxesValidateSampleAndAreExportedLikeThatOfOneRank) {
  const TempFolder folder;
  const auto command = [&](const char* name) {
    return Strings{"train"} + small_run(folder / name) +
           Strings{"model.n_heads=4",
                   "model.n_kv_heads=2",
                   "data.validation_fraction=0.2",
                   "validation.freq=4",
                   "sampling.freq=4",
                   "sampling.temperature=0",
                   "sampling.max_tokens=4",
                   "checkpoint.last_save_in_hf=true"};
  };
  const ProgramResult one = run_program(command("one"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto losses = [&](const char* name) {
    std::vector<double> all;
    std::ifstream lines(folder / name / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line);
      const bool trained = json["kind"] == "train";
      all.push_back(json[trained ? "loss_metrics/global_avg_loss" : "validation_metrics/global_avg_loss"]
                        .get<double>());
    }
    return all;
  };
  const auto samples = [](const ProgramResult& result) {
    Strings all;
    std::istringstream lines(result.err + result.out);
    for (std::string line; std::getline(lines, line);)
      if (const size_t at = line.find("sample at step"); at != std::string::npos)
        all.push_back(line.substr(at));
    return all;
  };
  const auto shapes = [&](const char* name) {
    const TensorFolder weights({folder / name / "hf" / "step-8" / "model.safetensors"});
    Strings all;
    for (const std::string& tensor : weights.names())
      all.push_back(tensor + " " + slice_text(whole_slice(weights.find(tensor)->shape)));
    return all;
  };
  EXPECT_EQ(samples(one).size(), 2U);
  const auto compare = [&](const char* name, const std::string& mesh, const Strings& degrees) {
    const ProgramResult many = run_program(launched(folder, 4, command(name) + degrees));
    ASSERT_EQ(many.exit_code, 0) << many.err;
    EXPECT_CONTAINS(many.err + many.out, mesh);
    ASSERT_EQ(losses(name).size(), losses("one").size());
    for (size_t i = 0; i < losses("one").size(); ++i)
      EXPECT_NEAR(losses(name)[i], losses("one")[i], 1e-5) << name << " " << i;
    EXPECT_EQ(samples(many), samples(one));
    EXPECT_EQ(shapes(name), shapes("one"));
    EXPECT_EQ(tensors(folder / name, 8).size(), tensors(folder / "one", 8).size());
  };
  const Strings tensor{"parallelism.tensor_parallel_degree=2"};
  compare("two", "ranks: 4 (dp_shard 2 x tp 2), shared memory", tensor);
  compare("both", "ranks: 4 (cp 2 x tp 2), shared memory",
          tensor + Strings{"parallelism.context_parallel_degree=2"});
}

TEST(Launch, ALayoutIsProvedOnItsOwnAndBeforeTraining) {
  const TempFolder folder;
  const Strings degrees{"parallelism.tensor_parallel_degree=2", "parallelism.context_parallel_degree=2",
                        "model.n_kv_heads=2"};
  const ProgramResult proved =
      run_program(Strings{"prove", "--world-size", "16"} + small_run(folder / "run") + degrees +
                  Strings{"training.global_batch_size=8"});
  EXPECT_EQ(proved.exit_code, 0) << proved.err;
  EXPECT_CONTAINS(proved.out, "equal: 4 steps on 8 ranks (dp_shard 2 x cp 2 x tp 2): losses");
  EXPECT_CONTAINS(proved.out, "tensors of weights and moments are those of one rank");
  const ProgramResult trained =
      run_program(launched(folder, 2,
                           Strings{"train"} + small_run(folder / "run") +
                               Strings{"parallelism.context_parallel_degree=2", "debug.prove_layout=true"}));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_CONTAINS(trained.err + trained.out, "proved: 4 steps on 2 ranks");
  EXPECT_EQ((trained.err + trained.out).find("threads"), std::string::npos) << trained.err;
  EXPECT_EQ(
      run_program(Strings{"prove", "--world-size", "3"} + small_run(folder / "run") + degrees).exit_code, 2);
}

TEST(Launch, ADegreeThatDoesNotFitTheModelIsRefusedBeforeItStarts) {
  const TempFolder folder;
  const ProgramResult result = run_program(launched(
      folder, 2,
      Strings{"train"} + small_run(folder / "run") + Strings{"parallelism.tensor_parallel_degree=2"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_CONTAINS(result.err, "parallelism.tensor_parallel_degree = 2, but model.n_kv_heads = 1");
}

TEST(Launch, DifferentThreadsOfTheRanksAreAWarningInOrderedMode) {
  const TempFolder folder;
  const std::string command = "OMP_NUM_THREADS=$((RANK+1)) exec " +
                              shell_command(job(folder / "run") + Strings{"training.threads=0"});
  const ProgramResult result = run_program(launched(folder, 2, {"/bin/sh", "-c", command}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_CONTAINS(result.err, "rank 0 has 1 thread on ", "rank 1 has 2 threads on ");
}

TEST(Launch, GlooTrainsToTheBitsOfOneRank) {
  const TempFolder folder;
  ASSERT_EQ(run_program(job(folder / "one")).exit_code, 0);
  const ProgramResult result =
      run_program(launched(folder, 2, job(folder / "gloo") + Strings{"comm.backend=gloo"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(numbers(folder / "gloo"), numbers(folder / "one"));
  EXPECT_EQ(tensors(folder / "gloo"), tensors(folder / "one"));
}

TEST(Launch, TwoLaunchersTrainToTheBitsOfOneRank) {
  const TempFolder folder;
  ASSERT_EQ(run_program(job(folder / "one")).exit_code, 0);
  const std::string rendezvous = format("127.0.0.1:{}", free_port());
  const auto node = [&](int number) {
    return Strings{"launch",
                   "--nproc",
                   "1",
                   "--nnodes",
                   "2",
                   "--node-rank",
                   std::to_string(number),
                   "--rendezvous",
                   rendezvous,
                   "--log-dir",
                   (folder / format("logs-{}", number)).string()} +
           job(folder / "two");
  };
  Child first(node(0));
  Child second(node(1));
  const ProgramResult of_first = first.wait();
  const ProgramResult of_second = second.wait();
  EXPECT_EQ(of_first.exit_code, 0) << of_first.err;
  EXPECT_EQ(of_second.exit_code, 0) << of_second.err;
  EXPECT_EQ(numbers(folder / "two"), numbers(folder / "one"));
  EXPECT_EQ(tensors(folder / "two"), tensors(folder / "one"));
}

/// Two simulated hosts: network namespaces joined by a veth pair, each with its own /dev/shm. Not available
/// on every system.
class TwoHosts {
 public:
  TwoHosts() {
    is_available_ = shell(
        "ip netns add {0}-a && ip netns add {0}-b && ip link add {0}a type veth peer name {0}b && "
        "ip link set {0}a netns {0}-a && ip link set {0}b netns {0}-b && "
        "ip -n {0}-a addr add 10.77.0.1/24 dev {0}a && ip -n {0}-b addr add 10.77.0.2/24 dev {0}b && "
        "ip -n {0}-a link set {0}a up && ip -n {0}-b link set {0}b up && "
        "ip -n {0}-a link set lo up && ip -n {0}-b link set lo up");
  }
  ~TwoHosts() { shell("ip netns del {0}-a; ip netns del {0}-b"); }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  bool is_available() const { return is_available_; }
  /// The command line that runs the program on host 0 or 1.
  Strings on(int host, const Strings& args) const {
    return Strings{"netns",
                   "exec",
                   format("{}-{}", name_, host == 0 ? "a" : "b"),
                   "sh",
                   "-c",
                   "mount -t tmpfs none /dev/shm && exec \"$@\"",
                   "host",
                   program_path().string()} +
           args;
  }

 private:
  bool shell(std::string command) const {
    for (size_t at = command.find("{0}"); at != std::string::npos; at = command.find("{0}")) {
      command.replace(at, 3, name_);
    }
    return std::system(format("({}) >/dev/null 2>&1", command).c_str()) == 0;
  }

  std::string name_ = format("sf{}", getpid() % 100000);
  bool is_available_;
};

TEST(Launch, HostsWithSeparateMemoryAndNetworkTrainToTheBitsOfOneRank) {
  const TwoHosts hosts;
  if (!hosts.is_available()) GTEST_SKIP() << "cannot create network namespaces here";
  const TempFolder folder;
  ASSERT_EQ(run_program(job(folder / "one")).exit_code, 0);
  // Shards within a host, over shared memory; replicas across the hosts, over the network.
  const Strings job_of_both = job(folder / "four") + Strings{"parallelism.data_parallel_replicate_degree=2"};
  const auto node = [&](int number) {
    const Strings launch = {"launch", "--nproc", "2", "--nnodes", "2", "--rendezvous", "10.77.0.1:29400"};
    const Strings own = {"--node-rank", std::to_string(number), "--log-dir",
                         (folder / format("logs-{}", number)).string()};
    return hosts.on(number, launch + own + job_of_both);
  };
  Child first(node(0), "", {}, "ip");
  Child second(node(1), "", {}, "ip");
  const ProgramResult of_first = first.wait();
  const ProgramResult of_second = second.wait();
  EXPECT_EQ(of_first.exit_code, 0) << of_first.err;
  EXPECT_EQ(of_second.exit_code, 0) << of_second.err;
  EXPECT_EQ(numbers(folder / "four"), numbers(folder / "one"));
}

TEST(Launch, AReplicatedRunIsEvaluatedAndContinuedOnOneRank) {
  const TempFolder folder;
  const Strings replicated{"parallelism.data_parallel_replicate_degree=2"};
  ASSERT_EQ(run_program(job(folder / "one")).exit_code, 0);
  const Strings command = job(folder / "run");
  ASSERT_EQ(run_program(launched(folder, 2, command + replicated + Strings{"training.steps=4"})).exit_code,
            0);
  write_text(folder / "tale.txt", some_text(20));
  output_of({"eval", (folder / "run").string(), "--data", (folder / "tale.txt").string()});
  const ProgramResult rest = run_program(command);
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_CONTAINS(rest.err, "resumed from") << rest.err;
}

TEST(Launch, ATraceShowsTheMeasuredAndThePredictedStep) {
  const TempFolder folder;
  const fs::path trace = folder / "trace.json";
  const ProgramResult result =
      run_program(launched(folder, 2, job(folder / "run") + Strings{"--trace", trace.string()}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_CONTAINS(result.err, "step 3 traced to") << result.err;
  const Json json = Json::parse(read_file(trace));
  std::map<int, int> operations;  // of each process
  std::map<int, std::string> names;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] == "X") ++operations[event["pid"].get<int>()];
    if (event["name"] == "process_name") names[event["pid"].get<int>()] = event["args"]["name"];
  }
  EXPECT_EQ(names.size(), 2U);
  EXPECT_TRUE(names[0].starts_with("rank 0, predicted with rates of step 3: ")) << names[0];
  EXPECT_EQ(names[1], "rank 0, ran");
  EXPECT_GT(operations[0], 0);
  EXPECT_EQ(operations[0], operations[1]);
}

TEST(Launch, ADryRunRunsOneStepPrintsNoLossAndWritesNothing) {
  const TempFolder folder;
  const Strings many = job(folder / "run") + Strings{"training.global_batch_size=64", "--dry-run", "64"};
  const ProgramResult result = run_program(many);
  const std::string& text = result.out;
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(contains(result.err, "loss")) << result.err;  // computed from placeholders
  EXPECT_CONTAINS(text, "rank 0 of 64") << text;
  EXPECT_CONTAINS(text, "gather from rank 0") << text;
  EXPECT_CONTAINS(text, "reduce_scatter") << text;
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Launch, ReadsTheVariablesOfTorchrun) {
  const TempFolder folder;
  ASSERT_EQ(run_program(job(folder / "one")).exit_code, 0);
  const auto environment = [&](int rank) {
    return Strings{format("RANK={}", rank),
                   "WORLD_SIZE=2",
                   format("LOCAL_RANK={}", rank),
                   "LOCAL_WORLD_SIZE=2",
                   "MASTER_ADDR=127.0.0.1",
                   "MASTER_PORT=29500",
                   format("TORCHELASTIC_RUN_ID=test-{}", getpid()),
                   "TORCHELASTIC_RESTART_COUNT=0"};
  };
  Child first(job(folder / "two"), "", environment(0));
  Child second(job(folder / "two"), "", environment(1));
  const ProgramResult of_first = first.wait();
  const ProgramResult of_second = second.wait();
  EXPECT_EQ(of_first.exit_code, 0) << of_first.err;
  EXPECT_EQ(of_second.exit_code, 0) << of_second.err;
  EXPECT_EQ(of_second.err, "");
  EXPECT_EQ(numbers(folder / "two"), numbers(folder / "one"));
}

TEST(Launch, ARestartAfterAKilledRankTrainsToTheSameWeights) {
  const TempFolder folder;
  const Strings longer{"training.steps=200", "checkpoint.interval=20"};
  ASSERT_EQ(run_program(job(folder / "one") + longer).exit_code, 0);
  Strings command = job(folder / "killed") + longer;
  command.insert(command.begin(),
                 {"launch", "--nproc", "2", "--max-restarts", "1", "--log-dir", (folder / "logs").string()});
  Child child(command);
  ASSERT_TRUE(child.wait_until([&] { return fs::exists(folder / "killed" / "checkpoint" / "step-20"); }));
  const std::vector<pid_t> ranks = children_of(child.pid());
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks.back(), SIGKILL);
  const ProgramResult result = child.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(folder / "logs" / "rank-0.restart-1.log"));
  EXPECT_EQ(tensors(folder / "killed", 200), tensors(folder / "one", 200));
}

TEST(Launch, RanksKilledWhileSavingLeaveOnlyCompleteCheckpoints) {
  const TempFolder folder;
  const Strings steps{"training.steps=300", "checkpoint.interval=300"};
  ASSERT_EQ(run_program(job(folder / "one") + steps).exit_code, 0);
  const fs::path run = folder / "killed";
  const Strings command =
      launched(folder, 2, job(run) + steps + Strings{"checkpoint.interval=1", "checkpoint.keep_latest_k=3"});
  std::mt19937 random(20240517);
  for (int killed = 0; killed < 5; ++killed) {
    const int64_t goal = newest_step(run) + 1 + static_cast<int64_t>(random() % 3);
    Child child(command);
    ASSERT_TRUE(child.wait_until([&] { return newest_step(run) >= goal; })) << child.err();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10'000));
    const std::vector<pid_t> ranks = children_of(child.pid());
    ASSERT_EQ(ranks.size(), 2U);
    kill(ranks[random() % 2], SIGKILL);
    EXPECT_NE(child.wait().exit_code, 0);
    for (const CheckpointFolder& step : list_checkpoints(run / "checkpoint")) {
      EXPECT_NO_THROW(verify_folder(step.path));
    }
  }
  const ProgramResult last = run_program(command);
  EXPECT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(tensors(run, 300), tensors(folder / "one", 300));
}

TEST(Launch, AShardedCheckpointIsExportedByOneProcess) {
  const TempFolder folder;
  ASSERT_EQ(run_program(job(folder / "one")).exit_code, 0);
  const ProgramResult result = run_program(launched(folder, 4, job(folder / "many")));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* run : {"one", "many"}) {
    output_of({"export", (folder / run).string(), (folder / (std::string(run) + "-hf")).string()});
  }
  for (const char* file : {"model.safetensors", "config.json", "tokenizer.json"}) {
    EXPECT_TRUE(read_file(folder / "many-hf" / file) == read_file(folder / "one-hf" / file)) << file;
  }
}

const Strings kShards{};
const Strings kStages{"parallelism.pipeline_parallel_degree=2"};

TEST(Launch, AKilledRankIsNamedAndTheJobFails) {
  for (const Strings& layout : {kShards, kStages}) {
    const TempFolder folder;
    const Strings endless = job(folder / "killed") + layout + Strings{"training.steps=1000000"};
    Child child(launched(folder, 2, endless));
    ASSERT_TRUE(child.wait_until([&] { return fs::exists(folder / "killed" / "checkpoint" / "step-4"); }));
    const std::vector<pid_t> ranks = children_of(child.pid());
    ASSERT_EQ(ranks.size(), 2U);
    kill(ranks.back(), SIGKILL);
    const ProgramResult result = child.wait();
    EXPECT_NE(result.exit_code, 0);
    EXPECT_CONTAINS(result.err, "rank 1 ") << result.err;
  }
}

/// Stops a process until go_on() or the end of the scope.
class StoppedProcess {
 public:
  explicit StoppedProcess(pid_t process) : process_(process) { kill(process_, SIGSTOP); }
  ~StoppedProcess() { go_on(); }
  StoppedProcess(const StoppedProcess&) = delete;
  StoppedProcess& operator=(const StoppedProcess&) = delete;

  void go_on() {
    if (std::exchange(process_, 0) != 0) kill(process_, SIGCONT);
  }

 private:
  pid_t process_;
};

TEST(Launch, AStoppedRankIsNamedAtTheDeadlineWithItsLastCall) {
  for (const auto& [backend, layout] : std::vector<std::pair<std::string, Strings>>{
           {"shared_memory", kShards}, {"gloo", kShards}, {"shared_memory", kStages}, {"gloo", kStages}}) {
    const TempFolder folder;
    const Strings endless =
        job(folder / "stopped") + layout +
        Strings{"training.steps=1000000", "comm.train_timeout=1", "comm.backend=" + backend};
    Child child(launched(folder, 2, endless));
    ASSERT_TRUE(child.wait_until([&] { return fs::exists(folder / "stopped" / "checkpoint" / "step-4"); }));
    const std::vector<pid_t> ranks = children_of(child.pid());
    ASSERT_EQ(ranks.size(), 2U);
    StoppedProcess stopped(ranks.back());
    ASSERT_TRUE(child.wait_until([&] { return contains(child.err(), "no answer within"); }));
    stopped.go_on();  // so that SIGTERM ends it
    const ProgramResult result = child.wait();
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_CONTAINS(result.err, "no answer within 1 s: rank 0 waits in ") << result.err;
    // Messages between stages are not counted.
    EXPECT_CONTAINS(result.err, layout == kStages ? " for rank 1" : " for rank 1 (last reached ")
        << result.err;
  }
}

TEST(Launch, NcclWithoutAGpuIsRefused) {
  const TempFolder folder;
  const ProgramResult result = run_program(job(folder / "run") + Strings{"comm.backend=nccl"});
  if (fs::exists("/dev/nvidiactl")) GTEST_SKIP() << "this host has a GPU";
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_CONTAINS(result.err, "comm.backend = nccl carries traffic between GPUs") << result.err;
}

Strings under_torchrun(const Strings& command) {
  return Strings{"--no-python", "--nproc-per-node", "2", "--standalone", program_path().string()} + command;
}

TEST(Torchrun, StartsRanksThatUseItsStore) {
  const fs::path agent = torchrun();
  if (agent.empty()) GTEST_SKIP() << "no torchrun: tools/oracle/oracle.sh installs one";
  const TempFolder folder;
  ASSERT_EQ(run_program(job(folder / "one")).exit_code, 0);
  Child child(under_torchrun(job(folder / "two") + Strings{"comm.backend=gloo"}), "", {}, agent);
  const ProgramResult result = child.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(numbers(folder / "two"), numbers(folder / "one"));
}

TEST(Torchrun, ShowsTheMessageOfTheRankThatFailed) {
  const fs::path agent = torchrun();
  if (agent.empty()) GTEST_SKIP() << "no torchrun: tools/oracle/oracle.sh installs one";
  const TempFolder folder;
  Child child(under_torchrun(job(folder / "run") + Strings{"training.global_batch_size=7"}), "", {}, agent);
  const ProgramResult result = child.wait();
  EXPECT_NE(result.exit_code, 0);
  EXPECT_CONTAINS(result.err, "error_file") << result.err;
  const size_t table = result.err.find("Root Cause");
  ASSERT_NE(table, std::string::npos) << result.err;
  EXPECT_CONTAINS(result.err.substr(table), "global_batch_size") << result.err;
}

TEST(ErrorFile, HoldsTheMessageInTheFormatOfTorchrun) {
  const TempFolder folder;
  const fs::path file = folder / "error.json";
  const ProgramResult result = run_program(job(folder / "run") + Strings{"training.steps=ten"}, "",
                                           {format("TORCHELASTIC_ERROR_FILE={}", file.string())});
  EXPECT_EQ(result.exit_code, 2);
  const Json content = Json::parse(read_file(file));
  EXPECT_CONTAINS(content["message"]["message"].get<std::string>(), "training.steps");
  EXPECT_GT(std::stoll(content["message"]["extraInfo"]["timestamp"].get<std::string>()), 1700000000);
}

TEST(Launch, InterruptSavesOnAllRanksAndExits130) {
  const TempFolder folder;
  const Strings endless =
      job(folder / "run") + Strings{"training.steps=1000000", "checkpoint.interval=1000000"};
  Child child(launched(folder, 2, endless));
  ASSERT_TRUE(child.wait_until([&] { return numbers(folder / "run").size() >= 3; }));
  child.signal(SIGINT);
  const ProgramResult result = child.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  bool saved = false;
  for (const auto& entry : fs::directory_iterator(folder / "run" / "checkpoint")) {
    saved = saved || fs::exists(entry.path() / "manifest.json");
  }
  EXPECT_TRUE(saved);
}

TEST(Launch, StartsAProgramGivenByItsPath) {
  const TempFolder folder;
  Strings command = launched(folder, 2, {"/bin/sh", "-c", "echo I am $RANK of $WORLD_SIZE"});
  command.insert(command.begin() + 1, {"--ranks", "all"});
  const ProgramResult result = run_program(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_CONTAINS(result.out, "[rank 0] I am 0 of 2") << result.out;
  EXPECT_CONTAINS(result.out, "[rank 1] I am 1 of 2") << result.out;
}

TEST(Launch, ACommandThatIsNeitherTrainNorAPathIsRefused) {
  for (const std::string command : {"trian", "sh"}) {
    const std::string message = refusal_of({"launch", "--nproc", "2", command, "run.toml"});
    EXPECT_CONTAINS(message, format("not \"{}\"", command)) << message;
    EXPECT_CONTAINS(message, "./loop") << message;
  }
}

size_t count_of(const std::string& part, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Launch, AnUnknownKeyIsRefusedOnceBeforeRanksStart) {
  const TempFolder folder;
  const ProgramResult result =
      run_program(Strings{"launch", "--nproc", "2"} + job(folder / "run") + Strings{"training.step=7"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(count_of("error: ", result.err), 1U) << result.err;
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Launch, WritesTheLogsOfTrainIntoTheRunFolder) {
  const TempFolder folder;
  const ProgramResult result = run_program(Strings{"launch", "--nproc", "2"} + job(folder / "run"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* log : {"rank-0.log", "rank-1.log"}) {
    EXPECT_TRUE(fs::exists(folder / "run" / "logs" / "launch" / log)) << log;
  }
}

TEST(Launch, TheLogNamesRanksMeshAndTransport) {
  const TempFolder folder;
  for (const auto& [backend, transport] :
       std::map<std::string, std::string>{{"auto", "shared memory"}, {"gloo", "Gloo"}}) {
    const Strings settings{format("comm.backend={}", backend), "training.steps=1"};
    const ProgramResult result = run_program(launched(folder, 2, job(folder / backend) + settings));
    EXPECT_CONTAINS(result.err, format("ranks: 2 (dp_shard 2), {}\n", transport)) << result.err;
  }
}

TEST(Launch, AUsageErrorThatAllRanksShareIsPrintedOnceAndEndsTheJobWithExitCode2) {
  const TempFolder folder;
  const ProgramResult result =
      run_program(launched(folder, 2, job(folder / "run") + Strings{"training.global_batch_size=7"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_CONTAINS(result.err, "global_batch_size") << result.err;
  EXPECT_EQ(count_of("error: ", result.err), 1U) << result.err;
}

TEST(Launch, ASignalThatReachesLauncherAndRanksTogetherCountsOnce) {
  const TempFolder folder;
  const Strings endless =
      job(folder / "run") + Strings{"training.steps=1000000", "checkpoint.interval=1000000"};
  Child child(launched(folder, 2, endless));
  ASSERT_TRUE(child.wait_until([&] { return numbers(folder / "run").size() >= 3; }));
  for (const pid_t rank : children_of(child.pid())) kill(rank, SIGTERM);
  child.signal(SIGTERM);
  const ProgramResult result = child.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_GT(newest_step(folder / "run"), 0) << "it ended at once, without saving: " << result.err;
}

/// To the launcher as from `scancel --signal`, to everything as from `#SBATCH --signal`, or to one rank.
TEST(Launch, ANoticeOfTheEndSavesOnAllRanksWhereverItArrives) {
  for (const std::string target : {"launcher", "all", "one rank"}) {
    SCOPED_TRACE(target);
    const TempFolder folder;
    const Strings endless =
        job(folder / "run") + Strings{"training.steps=1000000", "checkpoint.interval=1000000"};
    Child child(launched(folder, 2, endless));
    ASSERT_TRUE(child.wait_until([&] { return numbers(folder / "run").size() >= 3; }));
    const std::vector<pid_t> ranks = children_of(child.pid());
    if (target == "one rank") kill(ranks.back(), SIGUSR1);
    if (target == "all") {
      for (const pid_t rank : ranks) kill(rank, SIGUSR1);
    }
    if (target != "one rank") child.signal(SIGUSR1);
    const ProgramResult result = child.wait();
    EXPECT_EQ(result.exit_code, 130) << result.err;
    EXPECT_GT(newest_step(folder / "run"), 0) << result.err;
  }
}

TEST(Launch, AnInterruptOfAllProcessesAtAnyTimeEndsTheJob) {
  std::mt19937 random(20240518);
  for (int i = 0; i < 8; ++i) {
    const TempFolder folder;
    Child child(launched(folder, 2, job(folder / "run") + Strings{"training.steps=1000000"}));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 400));
    for (const pid_t rank : children_of(child.pid())) kill(rank, SIGINT);
    child.signal(SIGINT);
    EXPECT_NE(child.wait().exit_code, 0);
  }
}

}  // namespace
}  // namespace stepforge::testing

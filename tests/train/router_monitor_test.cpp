// SPDX-License-Identifier: Apache-2.0
// What runs log of the balance of their experts.
#include <cmath>
#include <map>

#include <ATen/ops/special_entr.h>

#include "stepforge/metrics/jsonl.h"
#include "tests/catalog/all_families.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kMonitored = 8;
/// Two layers with experts; weights stay nearly as they are, so that all layouts route alike.
Strings monitored_run(const std::filesystem::path& run_dir, const std::string& family, const Strings& more) {
  const Strings one_group{"model.n_expert_groups=1", "model.groups_per_token=1"};
  return trainer_run(run_dir) + Strings{"model.family=" + family, "model.norm_eps=1e-6"} +
         setting_overrides(family) +
         (has_setting(find_family(family), "n_expert_groups") ? one_group : Strings{}) +
         Strings{format("model.n_experts={}", kMonitored),
                 "model.experts_per_token=2",
                 "training.global_batch_size=8",
                 "optimizer.lr=1e-30",
                 "checkpoint.enable=false",
                 "metrics.router=experts"} +
         more;
}

std::vector<MetricsRecord> train_records(const std::filesystem::path& run_dir) {
  std::vector<MetricsRecord> records = read_jsonl(run_dir / "metrics.jsonl");
  std::erase_if(records, [](const MetricsRecord& record) { return record.kind != "train"; });
  return records;
}

/// The values about routers of a record, and its lists.
std::map<std::string, std::vector<double>> router_values(const MetricsRecord& record) {
  std::map<std::string, std::vector<double>> found(record.lists.begin(), record.lists.end());
  for (const auto& [name, value] : record.values)
    if (name.starts_with("router/")) found[name] = {value};
  return found;
}

/// Reports of the routers, beside what the trainer does with them.
void watch_reports(Trainer& trainer, std::map<int64_t, at::Tensor>& tokens,
                   std::map<int64_t, at::Tensor>& probabilities) {
  auto& hook = trainer.train_step->on_router_report;
  hook = [&tokens, &probabilities, earlier = hook](const RouterReport& report) {
    earlier(report);
    const auto add = [](at::Tensor& sum, const at::Tensor& part) {
      sum = sum.defined() ? sum + part : part.clone();
    };
    add(tokens[report.layer], report.tokens_per_expert.to(at::kDouble));
    add(probabilities[report.layer], report.row_sums.narrow(1, kMonitored, kMonitored).sum(0));
  };
}

double entropy_of(const at::Tensor& values) {
  const at::Tensor shares = values / values.sum();
  return at::special_entr(shares).sum().item<double>() / std::log(kMonitored);
}

TEST(RouterMonitor, FiguresAreThoseOfTheTokensSinceTheLastRecord) {
  const TempFolder folder;
  TestRun run(monitored_run(folder / "run", "deepseek_v3",
                            {"metrics.log_freq=2", "training.steps=4", "model.n_expert_groups=1",
                             "model.groups_per_token=1", "model.router_bias_update_speed=0.01"}));
  std::map<int64_t, at::Tensor> tokens;
  std::map<int64_t, at::Tensor> probabilities;
  watch_reports(run.build(), tokens, probabilities);
  run.trainer().add_callback(std::make_unique<CallAt>([&](Trainer& trainer) {
    if (trainer.state.step != 2) return;
    tokens.clear();
    probabilities.clear();
  }));
  run.trainer().run();
  const MetricsRecord last = train_records(folder / "run").back();
  ASSERT_EQ(last.step, 4);
  ASSERT_EQ(tokens.size(), 2U);
  double mean_of_layers = 0.0;
  for (auto& [layer, counts] : tokens) {
    const auto logged = [&, layer = layer](const char* figure) {
      return last.find(metric::router(layer, figure)).value_or(-1.0);
    };
    const double mean = counts.mean().item<double>();
    mean_of_layers += counts.max().item<double>() / mean / 2.0;
    EXPECT_EQ(logged("max_load"), counts.max().item<double>() / mean);
    EXPECT_EQ(logged("min_load"), counts.min().item<double>() / mean);
    EXPECT_EQ(logged("unused_experts"), counts.eq(0).sum().item<double>() / kMonitored);
    EXPECT_NEAR(logged("excess_load"),
                (counts - mean).clamp_min(0).sum().item<double>() / counts.sum().item<double>(), 1e-12);
    EXPECT_NEAR(logged("load_entropy"), entropy_of(counts), 1e-12);
    EXPECT_NEAR(logged("entropy"), entropy_of(probabilities[layer]), 1e-12);
    EXPECT_NE(logged("entropy"), logged("load_entropy"));
    const at::Tensor correction =
        run.trainer().store->parameter(format("layers.{}.mlp.correction", layer)).value();
    EXPECT_GT(logged("correction_norm"), 0.0);
    EXPECT_NEAR(logged("correction_norm"), correction.norm().item<double>(), 1e-9);
    const std::vector<double> listed = router_values(last).at(metric::router(layer, "tokens"));
    for (int64_t e = 0; e < kMonitored; ++e) EXPECT_EQ(listed.at(e), counts[e].item<double>());
  }
  EXPECT_NEAR(last.find(metric::router("max_load")).value_or(0.0), mean_of_layers, 1e-12);
}

struct MonitoredLayout {
  std::string name;
  int ranks = 1;
  std::string family;
  Strings more;
  Strings both = {};  ///< of the whole run too
};

class RouterMonitorOf : public ::testing::TestWithParam<MonitoredLayout> {};

// Finds what went wrong in Megatron-LM#7452 (a sum in place over ranks changes counts that are read later), torchtitan#4154.
/// Finds tokens that recomputation counts again, and sums over ranks that compute the same tokens.
TEST_P(RouterMonitorOf, ARunInAnyLayoutHasTheTokensOfAWholeOne) {
  const TempFolder folder;
  const auto& [name, ranks, family, more, both] = GetParam();
  const auto logged = [&](const std::string& run, int count, const Strings& layout) {
    RankThreads(count).run(
        monitored_run(folder / run, family, Strings{"metrics.log_freq=3", "training.steps=3"} + layout));
    return train_records(folder / run);
  };
  const std::vector<MetricsRecord> expected =
      logged("whole", 1, both + Strings{"training.local_batch_size=8"});
  const std::vector<MetricsRecord> actual = logged("divided", ranks, both + more);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto whole = router_values(expected[i]);
    auto divided = router_values(actual[i]);
    for (const auto& [key, values] : whole) {
      ASSERT_EQ(divided[key].size(), values.size()) << key;
      for (size_t j = 0; j < values.size(); ++j) EXPECT_NEAR(divided[key][j], values[j], 1e-6) << key;
      divided.erase(key);
    }
    for (const auto& [key, values] : divided) EXPECT_TRUE(key.ends_with("max_rank_load")) << key;
  }
}

const std::string kTwoStages = "parallelism.pipeline_parallel_degree=2";
const std::string kTwoSpread = "parallelism.expert_parallel_degree=2";

INSTANTIATE_TEST_SUITE_P(
    Layouts, RouterMonitorOf,
    ::testing::Values(
        MonitoredLayout{"accumulated", 1, "qwen3_moe", {"training.local_batch_size=1"}},
        MonitoredLayout{"recomputed", 1, "qwen3_moe", {"activation_checkpoint.mode=full"}},
        MonitoredLayout{"regions",
                        1,
                        "qwen3_moe",
                        {"activation_checkpoint.mode=regions", "activation_checkpoint.regions=[\"mlp\"]"}},
        MonitoredLayout{"shards", 2, "deepseek_v3", {}, {"model.router_bias_update_speed=0.001"}},
        MonitoredLayout{"replicas", 2, "qwen3_moe", {"parallelism.data_parallel_replicate_degree=2"}},
        MonitoredLayout{"spread", 4, "qwen3_moe", {kTwoSpread}},
        MonitoredLayout{"stages", 4, "deepseek_v3", {kTwoStages, kTwoSpread}},
        MonitoredLayout{"v_stages",
                        2,
                        "deepseek_v3",
                        {kTwoStages, "parallelism.pipeline_parallel_schedule=ZBVZeroBubble"},
                        {"model.n_layers=4"}},
        MonitoredLayout{
            "tensor",
            2,
            "qwen3_moe",
            {"parallelism.tensor_parallel_degree=2", "parallelism.enable_sequence_parallel=false"},
            {"model.n_kv_heads=2"}},
        MonitoredLayout{
            "slices", 2, "qwen3_moe", {"parallelism.tensor_parallel_degree=2"}, {"model.n_kv_heads=2"}},
        MonitoredLayout{"spread_slices_in_stages",
                        4,
                        "deepseek_v3",
                        {kTwoStages, kTwoSpread, "parallelism.tensor_parallel_degree=2",
                         "parallelism.tensor_parallel_plan=[{pattern=\"attention\",style=\"replicate\"}]"},
                        {"model.router_bias_update_speed=0.001"}},
        MonitoredLayout{"context", 2, "qwen3_moe", {"parallelism.context_parallel_degree=2"}}),
    [](const auto& info) { return info.param.name; });

TEST(RouterMonitor, ValidationDoesNotCount) {
  const TempFolder folder;
  const auto logged = [&](const std::string& name, const Strings& more) {
    TestRun(monitored_run(
                folder / name, "qwen3_moe",
                Strings{"data.validation_fraction=0.2", "metrics.log_freq=3", "training.steps=3"} + more))
        .run();
    return router_values(train_records(folder / name).back());
  };
  EXPECT_EQ(logged("with", {"validation.freq=1", "validation.steps=2"}), logged("without", {}));
}

TEST(RouterMonitor, LogsWhatIsAskedFor) {
  const TempFolder folder;
  const auto logged = [&](const std::string& choice) {
    TestRun(monitored_run(folder / choice, "qwen3_moe", {"training.steps=1", "metrics.router=" + choice}))
        .run();
    return train_records(folder / choice).back();
  };
  EXPECT_TRUE(router_values(logged("off")).empty());
  const MetricsRecord summary = logged("summary");
  EXPECT_FALSE(router_values(summary).empty());
  EXPECT_TRUE(summary.lists.empty());
}

TEST(RouterMonitor, TokensOfExpertsOfAModelWithoutAreRefused) {
  const TempFolder folder;
  TestRun run(trainer_run(folder / "run") + Strings{"metrics.router=experts"});
  EXPECT_CONTAINS(message_of<UsageError>([&] { run.build(); }), "metrics.router = \"experts\"", "no experts");
}

}  // namespace
}  // namespace stepforge::testing

// SPDX-License-Identifier: Apache-2.0
// The stage "models": tokens per second, MFU, and memory and time against their plan.
#include "stepforge/app/torch/gpu_check/models.h"

#include <algorithm>
#include <chrono>

#include <c10/core/CachingDeviceAllocator.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/families.h"
#include "stepforge/config/load.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/known_model.h"
#include "stepforge/step/simulate.h"

namespace stepforge::gpu_check {

namespace {

constexpr int64_t kWarmUpSteps = 3;

/// Dense peaks of data sheets, bf16, by a part of the GPU's name.
struct Peak {
  const char* name;
  double tflops;
};
constexpr Peak kPeaks[] = {{"H100 PCIe", 756}, {"H100 NVL", 835}, {"H100", 989}, {"H200", 989},
                           {"H800", 989},      {"A100", 312},     {"B200", 2250}};

std::optional<double> peak_flops(const std::string& name) {
  for (const Peak& peak : kPeaks)
    if (name.find(peak.name) != std::string::npos) return peak.tflops * 1e12;
  return std::nullopt;
}

/// What a run measured, over its steps after the first ones.
struct Measured {
  double seconds = 0;
  int64_t steps = 0;
  double tokens_per_step = 0;
  double full_flops = 0;    ///< of a step: attention without the causal mask, as torchtitan counts
  double strict_flops = 0;  ///< with half of the attention
  double peak_bytes = 0;
  double planned_bytes = 0;
  double predicted_seconds = 0;  ///< of a step; 0: no rates were measured

  double step_seconds() const { return seconds / static_cast<double>(steps); }
};

Measured run_model(const Check& check, const BenchModel& model) {
  using Clock = std::chrono::steady_clock;
  Measured measured;
  Clock::time_point began;
  Recipe recipe{.name = "model", .on = On::device, .options = model.options};
  recipe.began = [&](Trainer&) { began = Clock::now(); };
  recipe.stepped = [&](Trainer& trainer) {  // the host has read the numbers of the step, so that it is over
    if (trainer.state.step <= kWarmUpSteps) return;
    measured.seconds += std::chrono::duration<double>(Clock::now() - began).count();
    ++measured.steps;
    measured.peak_bytes =
        std::max(measured.peak_bytes, static_cast<double>(trainer.device.backend->memory().peak_bytes));
    const auto tokens = static_cast<double>(trainer.last_step.tokens);
    const double products = tokens * trainer.job.whole.flops_per_token(0);
    measured.tokens_per_step = tokens;
    measured.full_flops = trainer.last_flops;
    measured.strict_flops = products + (trainer.last_flops - products) / 2;
  };
  recipe.finished = [&](Trainer& trainer) {
    measured.planned_bytes = static_cast<double>(trainer.predicted_memory.peak_bytes);
    if (check.machine)
      measured.predicted_seconds = step_seconds(simulate(trainer.train_program, *check.machine));
  };
  train(check, recipe);
  forget(check, recipe.name);
  return measured;
}

/// So that what runs next, perhaps in another process, finds the memory free.
void give_back_cached_memory(const Check& check) {
  auto* cached = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(check.compute.device.type()));
  if (cached != nullptr) cached->emptyCache();
}

Json row_of(const Check& check, const BenchModel& model, const Measured& measured,
            std::optional<double> peak) {
  const double rate = measured.strict_flops / measured.step_seconds();
  Json row = {{"model", model.name},
              {"tokens_per_second", measured.tokens_per_step / measured.step_seconds()},
              {"step_seconds", measured.step_seconds()},
              {"strict_flops_per_second", rate},
              {"full_flops_per_second", measured.full_flops / measured.step_seconds()},
              {"peak_bytes", measured.peak_bytes},
              {"planned_bytes", measured.planned_bytes}};
  if (!model.note.empty()) row["note"] = model.note;
  if (peak) {
    row["strict_mfu"] = rate / *peak;
    row["full_mfu"] = measured.full_flops / measured.step_seconds() / *peak;
  }
  if (check.machine) {
    row["share_of_product_rate"] = rate / check.machine->flops_per_second;
    row["predicted_step_seconds"] = measured.predicted_seconds;
  }
  return row;
}

std::string line_of(const Json& row) {
  const auto percent = [&](const char* name) -> std::string {
    return row.contains(name) ? format("{:.1f} %", 100 * row[name].get<double>()) : "unknown";
  };
  const auto bytes = [&](const char* name) {
    return human_bytes(static_cast<int64_t>(row[name].get<double>()));
  };
  std::string line = format(
      "{}: {:.0f} tokens/s, MFU {} strict, {} full, {} of the rate of products; peak {}, planned {} for the CPU's kernels",
      row["model"].get<std::string>(), row["tokens_per_second"].get<double>(), percent("strict_mfu"),
      percent("full_mfu"), percent("share_of_product_rate"), bytes("peak_bytes"), bytes("planned_bytes"));
  if (row.contains("predicted_step_seconds"))
    line += format("; a step takes {:.4g} s, predicted {:.4g} s", row["step_seconds"].get<double>(),
                   row["predicted_step_seconds"].get<double>());
  return line + (row.contains("note") ? "; " + row["note"].get<std::string>() : "");
}

}  // namespace

std::vector<BenchModel> bench_models(bool small) {
  const auto model = [](std::string name, std::string note, Strings options) {
    for (const char* more : {"data.sources=[{format=\"synthetic\"}]", "tokenizer.type=bytes",
                             "checkpoint.enable=false", "lr_scheduler.warmup_steps=0", "metrics.log_freq=1"})
      options.emplace_back(more);
    const bool with_peer = name == "1B" || name == "tiny";
    return BenchModel{std::move(name), std::move(note), std::move(options), with_peer};
  };
  if (small)
    return {
        model("tiny", "a size for tests", {"preset=debug", "training.steps=5", "precision.compute=bf16"})};
  const auto of_preset = [&](const char* name, const char* preset, const char* note, int64_t rows,
                             Strings more) {
    Strings options = {format("preset={}", preset), "training.seq_len=4096", "training.steps=10",
                       "training.local_batch_size=1", format("training.global_batch_size={}", rows)};
    options.insert(options.end(), more.begin(), more.end());
    return model(name, note, std::move(options));
  };
  return {of_preset("0.5B", "qwen2.5-0.5b", "", 8, {}), of_preset("1B", "llama3.2-1b", "", 8, {}),
          of_preset("3B", "llama3.2-3b", "", 4, {"activation_checkpoint.mode=full"}),
          of_preset("8B", "llama3.1-8b", "8 of 32 layers: the states of all do not fit into 80 GB", 4,
                    {"model.n_layers=8", "activation_checkpoint.mode=full"})};
}

Json sizes_of(const BenchModel& model) {
  const Config config =
      load_config(std::nullopt, model.options, ConfigUse::inspect, settings_from_model).config;
  const ModelConfig& sizes = config.model;
  const int64_t micro = config.training.local_batch_size;
  const int64_t rows = config.training.global_batch_size > 0 ? config.training.global_batch_size : micro;
  return {{"name", model.name},
          {"dim", sizes.dim},
          {"n_layers", sizes.n_layers},
          {"n_heads", sizes.n_heads},
          {"n_kv_heads", sizes.n_kv_heads},
          {"head_dim", head_size(sizes)},
          {"ffn_dim", sizes.ffn_dim},
          {"vocab_size", planned_vocabulary(config)},
          {"norm_eps", sizes.norm_eps},
          {"rope_theta", sizes.rope_theta},
          {"tie_embeddings", sizes.tie_embeddings},
          {"qkv_bias", family_of(sizes).traits.qkv_bias},
          {"recompute", config.activation_checkpoint.mode == RecomputeMode::full},
          {"seq_len", config.training.seq_len},
          {"rows_per_micro_batch", micro},
          {"micro_batches", std::max<int64_t>(1, rows / micro)},
          {"steps", config.training.steps},
          {"warm_up_steps", kWarmUpSteps}};
}

void check_models(Check& check, Findings& found) {
  const std::string gpu = gpu_name();
  const std::optional<double> peak = check.compute.device.is_cpu() ? std::nullopt : peak_flops(gpu);
  found.figure("gpu", gpu.empty() ? "unknown" : gpu);
  if (peak) found.figure("peak_flops", *peak);
  if (!peak) found.left_out("MFU: the peak of this device is not known");
  if (!check.machine) found.left_out("predicted times: the stage rates did not run");
  Json rows = Json::array();
  for (const BenchModel& model : bench_models(check.small)) {
    try {
      const Measured measured = run_model(check, model);
      if (measured.steps == 0) throw Error("no step was measured");
      rows.push_back(row_of(check, model, measured, peak));
      found.note("{}", line_of(rows.back()));
    } catch (const std::exception& failure) {
      found.fail("{}: {}", model.name, reason_of(failure));
      forget(check, "model");
    }
    give_back_cached_memory(check);
  }
  found.figure("models", rows);
}

}  // namespace stepforge::gpu_check

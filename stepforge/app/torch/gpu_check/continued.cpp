// SPDX-License-Identifier: Apache-2.0
// The stages "resume" and "text": checkpoints on the device, and between it and the CPU.
#include <span>

#include "stepforge/app/torch/gpu_check/trained.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/train/generation.h"

namespace stepforge::gpu_check {

namespace {

constexpr int64_t kTextSteps = 20;
constexpr int64_t kHalf = 3;  // of the steps of a run that is resumed
constexpr double kTolerance = 1e-5;

/// A small run of six steps with a checkpoint in the middle.
Recipe resumed_run(const std::string& name, On on, std::optional<int64_t> last_step = {}) {
  Recipe recipe{.name = name, .on = on, .options = small_model(), .last_step = last_step, .hashed = true};
  recipe.options.insert(recipe.options.end(),
                        {"training.steps=6", "checkpoint.enable=true", "checkpoint.interval=3"});
  return recipe;
}

const char* name_of(On place) {
  return place == On::cpu ? "the CPU" : "the device";
}

/// A run that begins in one place and goes on in another, against one in a single place.
void check_move(const Check& check, Findings& found, On from, On to, const Trained& whole) {
  const std::string what = format("a run that begins on {} and goes on on {}", name_of(from), name_of(to));
  const Trained begin = train(check, resumed_run("moved", from, kHalf));
  const Trained read = train(check, resumed_run("moved", to, kHalf));
  const bool same = read.weights == begin.weights;
  if (!same) found.fail("{}: a checkpoint of {} gives other weights on {}", what, name_of(from), name_of(to));
  const Trained rest = train(check, resumed_run("moved", to));
  const std::vector<double> expected(whole.losses.begin() + kHalf, whole.losses.end());
  const double difference = compare(check, found, what, rest.losses, expected, kTolerance);
  found.note("{}: {} weights; largest difference of losses {:.2g}", what, same ? "the same" : "other",
             difference);
  forget(check, "moved");
}

/// The ids that follow a prompt, each the most likely one.
std::vector<int32_t> greedy_ids(Trainer& trainer) {
  const int64_t capacity = trainer.config.training.seq_len;  // what the model's rotary tables cover
  Generator generator(trainer.job.part, plan_samples(trainer.job, capacity), trainer.model, *trainer.store,
                      trainer.config.precision.compute, capacity);
  SamplingParams greedy;
  greedy.temperature = 0;
  greedy.max_tokens = capacity;
  constexpr int32_t kPrompt[] = {5, 17, 3, 9};
  return generator.generate(kPrompt, greedy, {});
}

}  // namespace

void check_resume(Check& check, Findings& found) {
  const Trained on_device = train(check, resumed_run("whole", On::device));
  train(check, resumed_run("parts", On::device, kHalf));
  const Trained rest = train(check, resumed_run("parts", On::device));
  const std::vector<double> second_half(on_device.losses.begin() + kHalf, on_device.losses.end());
  if (rest.losses != second_half || rest.weights != on_device.weights)
    found.fail("a resumed run differs from one that was not interrupted: its last loss is {}, not {}",
               rest.losses.empty() ? 0 : rest.losses.back(), second_half.back());
  else
    found.note("a run that is resumed on the device has the same bits as one that was not interrupted");
  const Trained on_cpu = train(check, resumed_run("cpu", On::cpu));
  check_move(check, found, On::cpu, On::device, on_cpu);
  check_move(check, found, On::device, On::cpu, on_cpu);
  for (const char* name : {"whole", "parts", "cpu"}) forget(check, name);
}

void check_text(Check& check, Findings& found) {
  const auto recipe = [](On place) {
    Recipe all{.name = "text", .on = place, .options = small_model()};
    all.options.insert(all.options.end(), {"checkpoint.enable=true", "checkpoint.interval=20"});
    all.last_step = kTextSteps;
    return all;
  };
  train(check, recipe(On::cpu));
  std::vector<int32_t> ids[2];
  for (const On place : {On::cpu, On::device}) {
    Recipe reading = recipe(place);
    reading.finished = [&](Trainer& trainer) { ids[static_cast<size_t>(place)] = greedy_ids(trainer); };
    train(check, reading);
  }
  forget(check, "text");
  size_t same = 0;
  while (same < std::min(ids[0].size(), ids[1].size()) && ids[0][same] == ids[1][same]) ++same;
  found.figure("tokens", ids[0].size());
  if (ids[0].empty() || ids[0] != ids[1])
    found.fail("greedy text differs from the CPU's after {} of {} tokens", same, ids[0].size());
  else
    found.note("{} tokens, the same as on the CPU", ids[0].size());
}

}  // namespace stepforge::gpu_check

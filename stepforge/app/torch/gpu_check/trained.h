// SPDX-License-Identifier: Apache-2.0
// Training runs of the stages, in this process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/app/torch/gpu_check/stage.h"
#include "stepforge/train/trainer.h"

namespace stepforge::gpu_check {

using Strings = std::vector<std::string>;

enum class On { cpu, device };

/// What a run is made of.
struct Recipe {
  std::string name;  ///< of its folder in Check::scratch; a run with an earlier one's continues it
  On on = On::cpu;
  Strings options;                              ///< overrides; they win over those of Check
  std::optional<int64_t> last_step = {};        ///< stops there, but plans for all steps
  bool hashed = false;                          ///< sets Trained::weights
  std::function<void(Trainer&)> began = {};     ///< before each step
  std::function<void(Trainer&)> stepped = {};   ///< after each step
  std::function<void(Trainer&)> finished = {};  ///< at the end, with the trainer's memory and kernels
};

/// Of each step that ran.
struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  std::string
      weights;  ///< hashes of the weights and the optimizer's state at the end; "" unless Recipe::hashed
};

/// The arguments of a small run: 2 layers of width 32, rows of 32 made-up tokens.
Strings small_model();

/// The overrides of a run, complete.
Strings overrides_of(const Check& check, const Recipe& recipe);

/// Throws what training throws.
Trained train(const Check& check, const Recipe& recipe);

/// Removes the folder of a run.
void forget(const Check& check, const std::string& name);

/// The largest difference of two series, relative to the second; infinity if they differ in length or one of a pair is not finite.
double largest_difference(const std::vector<double>& actual, const std::vector<double>& expected);

/// A failure if the series differ by more than `tolerance`, or at all if Check::exact(). Returns the difference.
double compare(const Check& check, Findings& found, const std::string& what,
               const std::vector<double>& actual, const std::vector<double>& expected, double tolerance);

}  // namespace stepforge::gpu_check

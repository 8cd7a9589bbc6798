// SPDX-License-Identifier: Apache-2.0
// A sub-command: `stepforge --plugin sub_command.so tokens-of-step run.toml` prints the tokens of a step.
#include <cstdio>

#include <stepforge/base/plugin.h>
#include <stepforge/config/load.h>

using namespace stepforge;

static int tokens_of_step(const std::vector<std::string>& arguments,
                          const std::shared_ptr<Registry>& registry) {
  if (arguments.empty()) throw UsageError("tokens-of-step needs a configuration file");
  const std::vector<std::string> settings(arguments.begin() + 1, arguments.end());
  const Config config = load_config(arguments[0], settings, ConfigUse::inspect, {}, registry).config;
  const TrainingConfig& training = config.training;
  std::printf("%lld\n", static_cast<long long>(training.global_batch_size * training.seq_len));
  return 0;
}

STEPFORGE_PLUGIN(registry) {
  registry.add(SubCommand{"tokens-of-step", "Print the tokens of a step of a configuration", tokens_of_step});
}

// SPDX-License-Identifier: Apache-2.0
// The device of other trainers' configurations.
#include "tests/config/converting.h"

namespace stepforge::testing {
namespace {

TEST(ConvertConfig, TheDeviceIsTheCpuOnlyIfTheFileAsksForIt) {
  const auto device_of = [](const std::string& setting) {
    const std::string text =
        R"({"output_dir": "out", "per_device_train_batch_size": 4, "learning_rate": 2e-5, "max_steps": 5)";
    return converted(text + setting + "}", "args.json", "Hugging Face TrainingArguments").training.device;
  };
  EXPECT_EQ(device_of(""), "auto");
  for (const std::string name : {"use_cpu", "no_cuda"}) {
    EXPECT_EQ(device_of(", \"" + name + "\": true"), "cpu") << name;
    EXPECT_EQ(device_of(", \"" + name + "\": false"), "auto") << name;
  }
  const auto of_nanogpt = [](const std::string& device) {
    return converted(
               "dataset = 'a'\nblock_size = 64\nn_layer = 2\nn_head = 2\nn_embd = 64\nbatch_size = 4\ndevice = '" +
                   device + "'\n",
               "train.py", "nanoGPT")
        .training.device;
  };
  EXPECT_EQ(of_nanogpt("cpu"), "cpu");
  EXPECT_EQ(of_nanogpt("cuda"), "auto");
}

TEST(ConvertConfig, TheDeviceOfALlamaFactoryFileIsTranslatedToo) {
  const std::string text =
      "stage: pt\ndo_train: true\nmodel_name_or_path: m\ndataset: d\nfinetuning_type: full\noutput_dir: out\nuse_cpu: true\n";
  const ConvertedConfig result = convert_config(text, "train.yaml", {});
  EXPECT_NE(result.toml.find("device = \"cpu\""), std::string::npos) << result.toml;
}

}  // namespace
}  // namespace stepforge::testing

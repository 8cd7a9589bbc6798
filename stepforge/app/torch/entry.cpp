// SPDX-License-Identifier: Apache-2.0
// The function that the program looks up in this library.
#include "stepforge/app/torch/commands.h"
#include "stepforge/app/torch_library.h"

extern "C" int stepforge_torch_entry(const stepforge::TorchRequest& request,
                                     const stepforge::CommandContext& context);

int stepforge_torch_entry(const stepforge::TorchRequest& request, const stepforge::CommandContext& context) {
  return std::visit([&](const auto& options) { return stepforge::run(options, context); }, request);
}

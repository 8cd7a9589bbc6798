// SPDX-License-Identifier: Apache-2.0
// The one function that the program finds in this library.
#include "stepforge/app/torch/commands.h"
#include "stepforge/app/torch_library.h"

extern "C" int stepforge_torch_entry(const stepforge::TorchCommand& command);

int stepforge_torch_entry(const stepforge::TorchCommand& command) {
  using Kind = stepforge::TorchCommand::Kind;
  switch (command.kind) {
    case Kind::check:
      return 0;
    case Kind::train:
      return stepforge::run_train(command);
    case Kind::evaluate:
      return stepforge::run_eval(command);
    case Kind::generate:
      return stepforge::run_generate(command);
    case Kind::export_model:
      return stepforge::run_export(command);
    case Kind::import_model:
      return stepforge::run_import(command);
  }
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/plan_command.h"

#include <ostream>

#include "stepforge/base/files.h"
#include "stepforge/step/draw.h"
#include "stepforge/step/simulate.h"

namespace stepforge {

int print_plan(const ModelSpec& model, const StepProgram& program, const PlanText& text,
               const std::filesystem::path& trace, std::ostream& out) {
  out << render_plan(model, program, text);
  if (!trace.empty()) {
    const TracedRun predicted{"predicted with " + machine_text(text.machine),
                              simulate(program, text.machine)};
    write_file_atomic(trace, trace_json(program, {predicted}));
    out << "\nTrace of the predicted step: " << trace.string() << " (open it in ui.perfetto.dev)\n";
  }
  return 0;
}

}  // namespace stepforge

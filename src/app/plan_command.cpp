#include "app/plan_command.h"

#include <ostream>

#include "base/files.h"
#include "step/checker.h"
#include "step/simulate.h"

namespace stepforge {

int plan_command(const PlanOptions& options, std::ostream& out) {
  const StepProgram program = build_step(options.model, options.step);
  check_programs({&program, 1});
  out << render_plan(options.model, program, options.text);
  if (!options.trace.empty()) {
    write_file_atomic(options.trace, trace_json(program, simulate(program, MachineModel{})));
    out << "\nTrace of the predicted step: " << options.trace.string() << " (open it in ui.perfetto.dev)\n";
  }
  return 0;
}

}  // namespace stepforge

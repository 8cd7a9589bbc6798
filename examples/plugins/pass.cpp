// SPDX-License-Identifier: Apache-2.0
// A pass over the step program: no operation runs beside another, which shows what overlap is worth.
#include <stepforge/base/plugin.h>
#include <stepforge/plan/pass_kind.h>

using namespace stepforge;

static void one_at_a_time(StepProgram& program, const Config&) {
  for (int i = 1; i < std::ssize(program.operations); ++i)
    element(program.operations, i).needs.push_back(i - 1);
}

STEPFORGE_PLUGIN(registry) {
  registry.add(PassKind{.name = "one_at_a_time", .run = one_at_a_time});
}

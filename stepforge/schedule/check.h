// SPDX-License-Identifier: Apache-2.0
// Whether a schedule is complete and can be computed at all.
#pragma once

#include "stepforge/schedule/schedule.h"

namespace stepforge {

/// Every stage and micro-batch has exactly one F, and one B or else one I and one W, on the rank of its
/// stage; F comes before B or I, I before W; L is listed for the last stage only, between F and B or I; and no
/// actions wait for each other in a cycle. Messages, which wait for their receiver, are checked by step/ on
/// operations.
///
/// Throws UsageError, which names rank, position (from 0) and action; a cycle lists its actions.
void check_schedule(const Schedule& schedule);

}  // namespace stepforge

// SPDX-License-Identifier: Apache-2.0
// A schedule as a picture, in the way papers draw it.
#pragma once

#include <string>

#include "stepforge/schedule/schedule.h"
#include "stepforge/schedule/timeline.h"

namespace stepforge {

/// An SVG document: time to the right, one row per rank, a box per action with the number of its micro-batch.
/// Forwards are blue, input gradients teal, weight gradients green, whole backwards blue-green, the loss
/// violet; the more stages of its rank are before a stage, the darker. Below are a legend and, beside each
/// row, the rank's bubble share and peak of live activations. The same arguments give the same bytes.
///
/// `timeline` is simulate(schedule, ...). Actions that take no time are left out. Throws Error if it has
/// another shape, or its makespan is not above 0.
std::string schedule_svg(const Schedule& schedule, const Timeline& timeline, const std::string& title);

}  // namespace stepforge

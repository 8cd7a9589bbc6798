// SPDX-License-Identifier: Apache-2.0
// Training curves as a picture.
#pragma once

#include <string>
#include <vector>

#include "stepforge/metrics/run_series.h"

namespace stepforge {

/// One SVG with four panels (loss with validation, gradient norm, learning rate, tokens per second) and a
/// table of the runs with their last values. It has no scripts and no outside references. Rare peaks of the
/// gradient norm are cut; the panel then gives the highest value.
std::string plot_svg(const std::vector<RunSeries>& runs);

}  // namespace stepforge

// Training curves as a picture.
#pragma once

#include <string>
#include <vector>

#include "stepforge/metrics/run_series.h"

namespace stepforge {

/// One SVG with four panels (loss with validation, gradient norm, learning rate, tokens per second) and a
/// table of the runs with their last values. No scripts, no outside references. A gradient norm's rare peaks
/// are cut, and the panel says so.
std::string plot_svg(const std::vector<RunSeries>& runs);

}  // namespace stepforge

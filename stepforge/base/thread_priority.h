// SPDX-License-Identifier: Apache-2.0
// Threads that give way to others.
#pragma once

namespace stepforge {

/// From now on this thread, and those that it starts, get a tenth of a core that other threads of this program
/// want too, and all of one that is idle. For work in the background of a computation whose threads wait for each
/// other: the slowest sets their pace. Does nothing where the system does not allow it.
void lower_thread_priority();

}  // namespace stepforge

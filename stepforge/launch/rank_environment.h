// SPDX-License-Identifier: Apache-2.0
// Which rank this process is, according to its launcher's environment variables.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

enum class Launcher { none, stepforge, torchrun, slurm, open_mpi };

/// "torchrun", "Slurm"; "none"
std::string_view launcher_name(Launcher launcher);

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< among the ranks of this host
  int local_world_size = 1;  ///< ranks on this host
  Launcher launcher = Launcher::none;
  /// Equal on all ranks of one start and different in every other start, also in a restart. "" without a
  /// launcher.
  std::string run_id;
  /// The same in all restarts of one launch; "" if the launcher does not restart or has no name of its own.
  std::string launch_id;
  /// How often the launcher has restarted the ranks.
  int restarts = 0;
  /// Where rank 0's process (or the launcher) holds the store through which ranks of several hosts meet. ""
  /// and 0: unknown.
  std::string master_address;
  int master_port = 0;
  /// The launcher holds the store; all ranks connect to it.
  bool launcher_holds_store = false;
  /// Rank 0: a socket on master_port that the launcher opened, on which to hold the store.
  std::optional<int> store_listener;
};

/// The value of an environment variable; nullopt if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Looks into this process's environment.
EnvironmentLookup process_environment();

/// Reads the variables of
///   `stepforge launch`, torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, TORCHELASTIC_RUN_ID, ...
///   Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
///   Slurm's srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_ID, ...
/// and without any of them is a single rank. MASTER_ADDR and MASTER_PORT are where ranks meet, whatever started them;
/// Slurm's default is the first host of the step and a port made of the job's number. Slurm's variables
/// without SLURM_STEP_ID are those of a batch script, not of a task. TORCHELASTIC_RUN_ID is set by an agent,
/// which may itself be a task of Slurm or MPI: then theirs are not read.
///
/// Throws UsageError naming the variables if one is malformed or missing, if numbers contradict each other,
/// or are absurdly large, or if two launchers disagree about rank or world size.
RankEnvironment discover_ranks(const EnvironmentLookup& lookup);

}  // namespace stepforge

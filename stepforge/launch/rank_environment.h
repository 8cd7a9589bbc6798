// SPDX-License-Identifier: Apache-2.0
// Which rank this process is, from the environment variables that its launcher set.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

/// The most ranks that a job may have.
inline constexpr int kMaxRanks = 1 << 20;

enum class Launcher { none, stepforge, torchrun, slurm, open_mpi };

/// "stepforge launch", "torchrun", "Slurm", "Open MPI" or "none".
std::string_view launcher_name(Launcher launcher);

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< among the ranks of this host
  int local_world_size = 1;  ///< ranks on this host
  Launcher launcher = Launcher::none;
  /// Identifies one start of a job: the same on all its ranks, another after a restart. "" without a
  /// launcher.
  std::string run_id;
  /// The same in all restarts of one launch; "" if the launcher does not restart or has no name of its own.
  std::string launch_id;
  /// How often the launcher has restarted the ranks.
  int restarts = 0;
  /// Address and port of the store through which ranks of several hosts find each other; rank 0 or the
  /// launcher holds it. "" and 0: unknown.
  std::string master_address;
  int master_port = 0;
  /// The launcher holds the store; all ranks connect to it.
  bool launcher_holds_store = false;
  /// On rank 0: a socket for the store, which the launcher opened on master_port.
  std::optional<int> store_listener;
};

/// The value of an environment variable; nullopt if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Looks up variables of this process.
EnvironmentLookup process_environment();

/// Reads the variables of
///   `stepforge launch`, torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, TORCHELASTIC_RUN_ID, ...
///   Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
///   Slurm's srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_ID, ...
/// Without any of them the process is a single rank. MASTER_ADDR and MASTER_PORT are read for every launcher;
/// for Slurm they default to the first host of the step and a port computed from the job's number. Slurm's
/// variables without SLURM_STEP_ID are those of a batch script, not of a task, and are ignored.
/// TORCHELASTIC_RUN_ID is set by an agent, which may itself be a task of Slurm or MPI: then their variables
/// are ignored.
///
/// Throws UsageError naming the variables if one is malformed or missing, if numbers contradict each other or
/// exceed the limits, or if two launchers disagree about rank or world size.
RankEnvironment discover_ranks(const EnvironmentLookup& lookup);

}  // namespace stepforge

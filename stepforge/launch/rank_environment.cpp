// SPDX-License-Identifier: Apache-2.0
#include "stepforge/launch/rank_environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr int kMaxLocalRanks = 1 << 12;

/// A non-negative integer; nullopt if the text is anything else.
std::optional<int> parse_number(const std::string& text) {
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// Typed access to environment variables.
class Variables {
 public:
  explicit Variables(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  bool has(const std::string& name) const { return lookup_(name).has_value(); }
  std::string text(const std::string& name) const { return lookup_(name).value_or(""); }

  int required(const std::string& name, const std::string& beside) const {
    const std::optional<int> value = optional(name);
    if (!value) {
      throw UsageError(
          format("{} is set, but {} is not: set both, or neither for a single rank", beside, name));
    }
    return *value;
  }

  std::optional<int> optional(const std::string& name) const {
    const std::optional<std::string> text = lookup_(name);
    if (!text) return std::nullopt;
    const std::optional<int> value = parse_number(*text);
    if (!value) throw UsageError(format("{} = \"{}\" is not a non-negative integer", name, *text));
    return value;
  }

  /// The first of these that is set.
  std::string first_of(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      if (has(name)) return name;
    }
    return names.front();
  }

 private:
  const EnvironmentLookup& lookup_;
};

void check(const RankEnvironment& found) {
  const auto refuse = [&](const std::string& reason) {
    throw UsageError(format("{} says rank {} of {}, local rank {} of {}: {}", launcher_name(found.launcher),
                            found.rank, found.world_size, found.local_rank, found.local_world_size, reason));
  };
  if (found.world_size < 1) refuse("a world has at least one rank");
  if (found.world_size > kMaxRanks) refuse(format("a world has at most {} ranks", with_thousands(kMaxRanks)));
  if (found.local_world_size > kMaxLocalRanks) {
    refuse(format("a host has at most {} ranks", with_thousands(kMaxLocalRanks)));
  }
  if (found.rank >= found.world_size) refuse("the rank is outside the world");
  if (found.local_world_size > found.world_size) refuse("a host cannot have more ranks than the world");
  if (found.local_rank >= found.local_world_size) refuse("the local rank is outside its host");
}

/// torchrun, `stepforge launch`, or a user who sets the same variables.
std::optional<RankEnvironment> from_torchrun(const Variables& variables) {
  if (!variables.has("RANK") && !variables.has("WORLD_SIZE")) return std::nullopt;
  RankEnvironment found;
  found.rank = variables.required("RANK", "WORLD_SIZE");
  found.world_size = variables.required("WORLD_SIZE", "RANK");
  found.local_rank = variables.optional("LOCAL_RANK").value_or(0);
  found.local_world_size = variables.optional("LOCAL_WORLD_SIZE").value_or(1);
  found.launcher = variables.has("STEPFORGE_LAUNCH_ID") ? Launcher::stepforge : Launcher::torchrun;
  const std::string launch_id = variables.text("TORCHELASTIC_RUN_ID");
  if (launch_id != "none")
    found.launch_id = launch_id;  // torchrun's name for all launches that were given none
  found.restarts = variables.optional("TORCHELASTIC_RESTART_COUNT").value_or(0);
  found.run_id = format("torchrun {} {} {}:{} attempt {}", variables.text("STEPFORGE_LAUNCH_ID"),
                        variables.text("TORCHELASTIC_RUN_ID"), variables.text("MASTER_ADDR"),
                        variables.text("MASTER_PORT"), variables.text("TORCHELASTIC_RESTART_COUNT"));
  return found;
}

std::optional<RankEnvironment> from_open_mpi(const Variables& variables) {
  if (!variables.has("OMPI_COMM_WORLD_RANK")) return std::nullopt;
  const std::string beside = "OMPI_COMM_WORLD_RANK";
  RankEnvironment found;
  found.rank = variables.required(beside, beside);
  found.world_size = variables.required("OMPI_COMM_WORLD_SIZE", beside);
  found.local_rank = variables.required("OMPI_COMM_WORLD_LOCAL_RANK", beside);
  found.local_world_size = variables.required("OMPI_COMM_WORLD_LOCAL_SIZE", beside);
  found.launcher = Launcher::open_mpi;
  // Versions 5 and 4 name a start of mpirun by different variables.
  found.run_id = format("mpi {} {} {}", variables.text("PMIX_NAMESPACE"),
                        variables.text("OMPI_MCA_ess_base_jobid"), variables.text("OMPI_MCA_orte_hnp_uri"));
  return found;
}

/// The tasks on node `node` from Slurm's list of counts, such as "4(x2),3"; nullopt if the list is malformed.
std::optional<int> tasks_on_node(const std::string& list, int node) {
  int first = 0;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string entry = list.substr(begin, end - begin);
    const std::size_t times = entry.find("(x");
    const std::optional<int> tasks = parse_number(entry.substr(0, times));
    std::optional<int> nodes = 1;
    if (times != std::string::npos) {
      if (entry.back() != ')') return std::nullopt;
      nodes = parse_number(entry.substr(times + 2, entry.size() - times - 3));
    }
    if (!tasks || !nodes) return std::nullopt;
    if (node - first < *nodes) return tasks;
    first += *nodes;
    begin = end + 1;
  }
  return std::nullopt;
}

/// The first host of Slurm's list, such as "node[03-07,12],login1"; "" if the list is malformed.
std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find_first_of("[,");
  std::string name = list.substr(0, bracket);
  if (bracket == std::string::npos || list[bracket] == ',') return name;
  const std::size_t end = list.find_first_of("-,]", bracket);
  if (end == std::string::npos) return "";
  return name + list.substr(bracket + 1, end - bracket - 1);
}

/// 0 for batch and interactive steps: their numbers do not fit an int, and they are usually a single rank.
int64_t step_number(const std::string& step) {
  return parse_number(step).value_or(0) % 16;
}

std::optional<RankEnvironment> from_slurm(const Variables& variables) {
  const std::string step = variables.first_of({"SLURM_STEP_ID", "SLURM_STEPID"});
  if (!variables.has("SLURM_PROCID") || !variables.has(step)) return std::nullopt;
  RankEnvironment found;
  found.rank = variables.required("SLURM_PROCID", step);
  found.world_size = variables.required(
      variables.first_of({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}), "SLURM_PROCID");
  found.local_rank = variables.required("SLURM_LOCALID", "SLURM_PROCID");
  const std::string list = variables.first_of({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const int node = variables.optional("SLURM_NODEID").value_or(0);
  const std::optional<int> tasks = tasks_on_node(variables.text(list), node);
  if (!tasks) {
    throw UsageError(
        format("{} = \"{}\" does not say how many tasks run on node {}", list, variables.text(list), node));
  }
  found.local_world_size = *tasks;
  found.master_address = first_host(
      variables.text(variables.first_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})));
  // Several steps of a job may run at once, and several jobs on one host.
  const int64_t job = variables.optional("SLURM_JOB_ID").value_or(0);
  const int64_t number = step_number(variables.text(step));
  found.master_port = static_cast<int>(20000 + (job * 16 + number) % 10000);
  found.launcher = Launcher::slurm;
  found.run_id = format("slurm {}.{} attempt {}", variables.text("SLURM_JOB_ID"), variables.text(step),
                        variables.text("SLURM_RESTART_COUNT"));
  return found;
}

/// Reads where the ranks' store is.
void read_rendezvous(const Variables& variables, RankEnvironment& found) {
  if (variables.has("MASTER_ADDR")) found.master_address = variables.text("MASTER_ADDR");
  if (const std::optional<int> port = variables.optional("MASTER_PORT")) {
    if (*port < 1 || *port > 65535)
      throw UsageError(format("MASTER_PORT = {} is not a port between 1 and 65535", *port));
    found.master_port = *port;
  }
  found.launcher_holds_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (found.rank == 0) found.store_listener = variables.optional("STEPFORGE_STORE_LISTENER");
}

}  // namespace

std::string_view launcher_name(Launcher launcher) {
  switch (launcher) {
    case Launcher::none:
      return "none";
    case Launcher::stepforge:
      return "stepforge launch";
    case Launcher::torchrun:
      return "torchrun";
    case Launcher::slurm:
      return "Slurm";
    case Launcher::open_mpi:
      return "Open MPI";
  }
  return "none";
}

EnvironmentLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

RankEnvironment discover_ranks(const EnvironmentLookup& lookup) {
  const Variables variables(lookup);
  std::optional<RankEnvironment> result;
  const bool has_agent = variables.has("TORCHELASTIC_RUN_ID");
  for (const auto& read : {from_torchrun, from_open_mpi, from_slurm}) {
    if (has_agent && result) break;
    const std::optional<RankEnvironment> found = read(variables);
    if (!found) continue;
    check(*found);
    if (result && (result->rank != found->rank || result->world_size != found->world_size)) {
      throw UsageError(
          format("this process is rank {} of {} by the variables of {}, but rank {} of {} by those of {}: "
                 "unset those that do not apply",
                 result->rank, result->world_size, launcher_name(result->launcher), found->rank,
                 found->world_size, launcher_name(found->launcher)));
    }
    if (!result) result = found;
  }
  if (!result) return {};
  read_rendezvous(variables, *result);
  return *result;
}

}  // namespace stepforge

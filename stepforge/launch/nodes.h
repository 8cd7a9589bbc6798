// The launchers of a job's nodes, one on each host: node 0's leads, the others follow. They agree on when
// ranks start, tell each other the first failure and interruptions, and end together. A launcher runs only
// what its own command line says; what comes over the network are numbers and texts.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>

namespace stepforge {

struct NodesOptions {
  int nodes = 1;
  int node = 0;
  int processes = 1;       ///< ranks of this node
  int max_restarts = 0;    ///< the same on all nodes
  std::string rendezvous;  ///< HOST:PORT where node 0's launcher listens; with one node unused
  double init_seconds = 300;
  /// After so long without a sign of life another launcher counts as gone.
  double silence_seconds = 20;
  /// How long the ranks of other nodes may take to end after a failure.
  double end_seconds = 60;
};

/// What a node's ranks of one attempt are told.
struct NodeStart {
  int first_rank = 0;
  int world_size = 1;
  std::string launch_id;
  std::string master_address;
  int master_port = 0;
};

/// Why an attempt ended.
struct NodeFailure {
  int exit_code = 1;
  std::string text;
  bool node_is_lost = false;  ///< then no further attempt can start
};

/// News from other nodes.
struct NodeNews {
  bool has_failed = false;  ///< the attempt, on any node
  int signal = 0;
  int signal_count = 0;  ///< how many the launcher has received that tells of this one
};

class Nodes {
 public:
  /// True once the caller wants to wait no longer.
  using Stop = std::function<bool()>;

  Nodes() = default;
  virtual ~Nodes() = default;
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  /// Waits until all nodes begin attempt number `attempt`; nullopt if `stop` ended that. `master_port`, on
  /// node 0: where rank 0 will listen. Throws PeerError naming the nodes that did not come, UsageError if
  /// node 0 refuses this one.
  virtual std::optional<NodeStart> begin(int attempt, int master_port, const Stop& stop) = 0;
  /// Adds the descriptors that have news.
  virtual void add_polled(std::vector<pollfd>& polled) const = 0;
  /// Whether the attempt has failed, and the signals that came since the last call.
  virtual NodeNews news() = 0;
  /// A rank of this node failed; counts if no other failed before.
  virtual void tell_failure(const NodeFailure& failure) = 0;
  /// This launcher has received signal `number`, its `count`-th one.
  virtual void tell_signal(int number, int count) = 0;
  /// This node's ranks have ended: waits until those of all nodes have, calling `look` now and then. The
  /// attempt's first failure.
  virtual std::optional<NodeFailure> finish(const std::function<void()>& look) = 0;
};

/// Throws UsageError if the port is in use. `report` gets lines about who was refused.
std::unique_ptr<Nodes> meet_nodes(const NodesOptions& options, std::ostream& report);

}  // namespace stepforge

#include "stepforge/launch/nodes.h"

#include <ostream>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/launch/node_roles.h"

namespace stepforge {

namespace {

/// A job of one node: nobody to talk to.
class OneNode : public Nodes {
 public:
  explicit OneNode(const NodesOptions& options) : processes_(options.processes) {}

  std::optional<NodeStart> begin(int /*attempt*/, int master_port, const Stop& /*stop*/) override {
    failure_.reset();
    return NodeStart{0, processes_, launch_id_, "127.0.0.1", master_port};
  }
  void add_polled(std::vector<pollfd>& /*polled*/) const override {}
  NodeNews news() override { return {}; }
  void tell_failure(const NodeFailure& failure) override {
    if (!failure_) failure_ = failure;
  }
  void tell_signal(int /*number*/, int /*count*/) override {}
  std::optional<NodeFailure> finish(const std::function<void()>& /*look*/) override { return failure_; }

 private:
  int processes_;
  std::string launch_id_ = new_launch_id();
  std::optional<NodeFailure> failure_;
};

}  // namespace

std::unique_ptr<Nodes> meet_nodes(const NodesOptions& options, std::ostream& report) {
  if (options.nodes < 1 || options.nodes > most_nodes) {
    throw UsageError(format("--nnodes {}: 1 to {}", options.nodes, most_nodes));
  }
  if (options.node < 0 || options.node >= options.nodes) {
    throw UsageError(format("--node-rank {}: below --nnodes {}", options.node, options.nodes));
  }
  if (options.nodes == 1) return std::make_unique<OneNode>(options);
  if (options.rendezvous.empty()) {
    throw UsageError(
        "--nnodes needs --rendezvous HOST:PORT, the same on all nodes: where node 0's launcher listens");
  }
  if (options.node == 0) return lead_nodes(options, report);
  return follow_nodes(options);
}

}  // namespace stepforge

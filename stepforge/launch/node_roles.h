// What the launchers of several nodes say to each other, and the two roles they have.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <poll.h>

#include "stepforge/base/json.h"
#include "stepforge/launch/nodes.h"

namespace stepforge {

constexpr int most_nodes = 1 << 16;
constexpr int most_processes = 1 << 12;

/// Node 0's launcher; that of another node.
std::unique_ptr<Nodes> lead_nodes(const NodesOptions& options, std::ostream& report);
std::unique_ptr<Nodes> follow_nodes(const NodesOptions& options);

/// "start" of {"kind": "start", ...}; "" if it has none.
std::string kind_of(const Json& message);
/// A number from somebody else. Throws FormatError unless it is one in that range.
int number_in(const Json& message, const char* name, int least, int most);
/// Throws FormatError unless there is such a text.
std::string text_in(const Json& message, const char* name);
/// Throws FormatError unless the message is a failure.
NodeFailure failure_in(const Json& message);

Json to_json(const NodeFailure& failure);
Json to_json(const NodeStart& start, int attempt);

std::string new_launch_id();

/// Waits until a descriptor has news or it is time to look at silence and deadlines.
void wait_for_news(std::vector<pollfd> descriptors);
double seconds_since(std::chrono::steady_clock::time_point start);

}  // namespace stepforge

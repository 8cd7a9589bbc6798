// SPDX-License-Identifier: Apache-2.0
#include "stepforge/layout/parallel_dims.h"

#include <array>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// One factor of the world size.
struct Degree {
  std::string_view name;
  int64_t* value;
};

std::array<Degree, 5> world_factors(ParallelDims& dims) {
  return {Degree{"dp_replicate", &dims.dp_replicate}, Degree{"dp_shard", &dims.dp_shard},
          Degree{"cp", &dims.cp}, Degree{"tp", &dims.tp}, Degree{"pp", &dims.pp}};
}

[[noreturn]] void refuse(const ParallelDims& dims, int world_size, const std::string& reason) {
  throw UsageError(format("parallel degrees {} for {} ranks: {}", dims_text(dims), world_size, reason));
}

/// The product, or 0 if it is larger than any number of ranks.
int64_t bounded_product(int64_t left, int64_t right) {
  constexpr int64_t kMaxProduct = int64_t{1} << 31;
  return left == 0 || right > kMaxProduct / left ? 0 : left * right;
}

}  // namespace

std::string dims_text(const ParallelDims& dims) {
  return format("dp_replicate {} x dp_shard {} x cp {} x tp {} x pp {}, ep {}", dims.dp_replicate,
                dims.dp_shard, dims.cp, dims.tp, dims.pp, dims.ep);
}

std::string mesh_text(const ParallelDims& dims) {
  ParallelDims copy = dims;
  std::vector<std::string> axes;
  for (const Degree& degree : world_factors(copy))
    if (*degree.value > 1) axes.push_back(format("{} {}", degree.name, *degree.value));
  if (axes.empty()) return "1 rank";
  return join(axes, " x ") + (dims.ep > 1 ? format(", ep {}", dims.ep) : "") +
         (dims.etp > 1 ? format(", etp {}", dims.etp) : "");
}

ParallelDims resolve_dims(ParallelDims dims, int world_size) {
  if (world_size < 1)
    throw UsageError(format("the number of ranks is {}, but must be at least 1", world_size));
  const ParallelDims asked = dims;
  int64_t* open = nullptr;
  int64_t product = 1;
  for (const Degree& degree : world_factors(dims)) {
    if (*degree.value == -1) {
      if (open != nullptr) refuse(asked, world_size, "only one degree can be -1 (the rest)");
      open = degree.value;
      continue;
    }
    if (*degree.value < 1) {
      refuse(asked, world_size,
             format("{} = {} must be positive, or -1 (the rest)", degree.name, *degree.value));
    }
    product = bounded_product(product, *degree.value);
  }
  if (dims.ep < 1) refuse(asked, world_size, format("ep = {} must be positive", dims.ep));
  if (open != nullptr) {
    if (product == 0 || world_size % product != 0) {
      refuse(asked, world_size,
             "the product of the other degrees does not divide the number of ranks; change a degree or start "
             "a different number of ranks");
    }
    *open = world_size / product;
    product = world_size;
  }
  if (product != world_size) {
    refuse(
        asked, world_size,
        "dp_replicate x dp_shard x cp x tp x pp must be the number of ranks; change a degree (dp_shard = -1 "
        "takes the rest) or start a different number of ranks");
  }
  if (dims.etp != 1 && dims.etp != dims.tp) {
    refuse(asked, world_size,
           format("etp = {} must be 1, or tp = {}: the parts of an expert are on the ranks of one group of "
                  "tensor parallelism",
                  dims.etp, dims.tp));
  }
  const int64_t expert_ranks = dims.dp_shard * dims.cp * dims.tp;
  if (dims.etp > 1 && expert_ranks / dims.etp % dims.ep != 0) {
    refuse(asked, world_size,
           format("with etp = {}, ep = {} does not divide dp_shard x cp = {}, the ranks that experts "
                  "are spread over",
                  dims.etp, dims.ep, expert_ranks / dims.etp));
  }
  if (expert_ranks % dims.ep != 0) {
    refuse(asked, world_size,
           format("ep = {} does not divide dp_shard x cp x tp = {}, the ranks that experts are spread over",
                  dims.ep, expert_ranks));
  }
  if (dims.cp_heads < 1 || dims.cp % dims.cp_heads != 0)
    refuse(asked, world_size, format("cp_heads = {} does not divide cp = {}", dims.cp_heads, dims.cp));
  return dims;
}

Mesh::Mesh(ParallelDims resolved, int world_size)
    : dims_(resolve_dims(resolved, world_size)), world_size_(world_size) {}

Mesh::Axis Mesh::axis(std::string_view name) const {
  // All degrees divide the world size, so they fit an int.
  const int replicate = static_cast<int>(dims_.dp_replicate);
  const int shard = static_cast<int>(dims_.dp_shard);
  const int cp = static_cast<int>(dims_.cp);
  const int tp = static_cast<int>(dims_.tp);
  const int pp = static_cast<int>(dims_.pp);
  const int ep = static_cast<int>(dims_.ep * dims_.etp);
  const int heads = static_cast<int>(dims_.cp_heads);
  if (name == "pp") return {pp, world_size_ / pp};
  if (name == "dp_replicate") return {replicate, shard * cp * tp};
  if (name == "dp_shard") return {shard, cp * tp};
  if (name == "cp") return {cp, tp};
  if (name == "cp_heads") return {heads, tp};
  if (name == "cp_ring") return {cp / heads, tp * heads};
  if (name == "tp") return {tp, 1};
  if (name == "dp" || name == "batch") return {replicate * shard, cp * tp};
  if (name == "loss") return {replicate * shard * cp, tp};
  if (name == "fsdp") return {shard * cp, tp};
  if (name == "fsdp_tp") return {shard * cp * tp, 1};
  if (name == "ep") return {ep, 1};
  if (name == "efsdp") return {shard * cp * tp / ep, ep};
  if (name == "stage") return {world_size_ / pp, 1};
  if (name == "world") return {world_size_, 1};
  throw Error(format("unknown axis of ranks: \"{}\"", name));
}

void Mesh::check_rank(int rank) const {
  if (rank < 0 || rank >= world_size_) {
    throw Error(format("rank {} is outside a world of {} ranks", rank, world_size_));
  }
}

std::vector<int> Mesh::group(std::string_view axis, int rank) const {
  const auto [size, stride] = this->axis(axis);
  const int first = this->first(axis, rank);
  std::vector<int> ranks;
  ranks.reserve(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

int Mesh::first(std::string_view axis, int rank) const {
  return rank - coordinate(axis, rank) * this->axis(axis).stride;
}

int Mesh::size(std::string_view axis) const {
  return this->axis(axis).size;
}

int Mesh::coordinate(std::string_view axis, int rank) const {
  check_rank(rank);
  const auto [size, stride] = this->axis(axis);
  return rank / stride % size;
}

}  // namespace stepforge

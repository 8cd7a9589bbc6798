// SPDX-License-Identifier: Apache-2.0
// Dtypes, the meta device and what a forward may take and return, under fully_shard.
#include <gtest/gtest.h>

#include "tests/fsdp/sharded_models.h"

namespace stepforge::testing {
namespace {

/// Records the dtypes in its forward.
struct DtypesImpl : torch::nn::Module {
  DtypesImpl() {
    weight = register_parameter("weight", integers({5, 4}, 1));
    table = register_buffer("table", integers({4}, 2));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& index) {
    seen = {x.scalar_type(), weight.scalar_type(), table.scalar_type(), index.scalar_type()};
    return at::matmul(x.to(weight.scalar_type()), weight) *
           table.index_select(0, index).to(weight.scalar_type());
  }
  at::Tensor weight;
  at::Tensor table;
  std::vector<at::ScalarType> seen;
};

TEST(FullyShardPrecision, ParametersInputsAndOutputsHaveThePolicysDtypes) {
  for (const int ranks : {1, 2}) {
    expect_on_ranks(ranks, {ranks}, [](const auto& mesh, CountingWorld& world) -> std::string {
      const at::Tensor index = at::arange(4, at::kLong);
      for (const bool cast : {true, false}) {
        Sharded<DtypesImpl> model;
        fully_shard(model, mesh,
                    {.mixed_precision = {.param_dtype = at::kBFloat16,
                                         .reduce_dtype = at::kBFloat16,
                                         .output_dtype = at::kFloat,
                                         .cast_forward_inputs = cast}});
        world.log.clear();
        const at::Tensor out = model(rows_of(mesh->rank(), 0), index);
        const std::vector<at::ScalarType> expected = {cast ? at::kBFloat16 : at::kFloat, at::kBFloat16,
                                                      at::kFloat, at::kLong};
        if (model->seen != expected) return "dtypes in forward";
        if (out.scalar_type() != at::kFloat) return "dtype of the output";
        out.sum().backward();
        for (const CollectiveCall& call : world.log.calls()) {
          if (call.kind == CollectiveKind::reduce_scatter && call.dtype != DType::bf16) return "reduce dtype";
        }
        const at::Tensor local = model.parameters()[0];
        if (local.scalar_type() != at::kFloat || local.grad().scalar_type() != at::kFloat)
          return "dtype of the shard";
      }
      return "";
    });
  }
}

TEST(FullyShardPrecision, GradientsAreReducedInFp32ByDefault) {
  expect_on_ranks(2, {2}, [](const auto& mesh, CountingWorld& world) -> std::string {
    Model model;
    shard_all(model, mesh, {.mixed_precision = {.param_dtype = at::kBFloat16}});
    plain_step(model, mesh->rank(), 0);
    int64_t reductions = 0;
    for (const CollectiveCall& call : world.log.calls()) {
      if (call.kind != CollectiveKind::reduce_scatter) continue;
      ++reductions;
      if (call.dtype != DType::f32) return "different dtype";
    }
    return reductions == 3 ? "" : "wrong number of reductions";
  });
}

TEST(FullyShardPrecision, MicroStepsInLowPrecisionAreAccumulatedInFp32) {
  // One gradient of 1, then 256 of 2^-9: a bf16 sum would stay 1.
  struct ScaleImpl : torch::nn::Module {
    ScaleImpl() { weight = register_parameter("weight", at::ones({3})); }
    at::Tensor forward(const at::Tensor& x) { return weight * x; }
    at::Tensor weight;
  };
  for (const at::ScalarType reduce : {at::kFloat, at::kBFloat16}) {
    for (const bool sync_each : {false, true}) {
      expect_on_ranks(2, {2}, [&](const auto& mesh, auto&) -> std::string {
        Sharded<ScaleImpl> model;
        fully_shard(model, mesh, {.mixed_precision = {.param_dtype = at::kBFloat16, .reduce_dtype = reduce}});
        for (int micro = 0; micro <= 256; ++micro) {
          model.set_requires_gradient_sync(sync_each || micro == 256);
          model(at::full({3}, micro == 0 ? 1.0 : 1.0 / 512)).sum().backward();
        }
        const at::Tensor grad = model.parameters()[0].grad();
        return grad.eq(1.5).all().template item<bool>() ? "" : "lost";
      });
    }
  }
}

TEST(FullyShardPrecision, Bf16ModulesKeepTheirDtypeAndHaveFp32Masters) {
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) -> std::string {
    Model model;
    model->to(at::kBFloat16);
    shard_all(model, mesh);
    model.unshard();
    if (model->scale.scalar_type() != at::kBFloat16) return "gathered in a different dtype";
    if (!at::equal(model->scale.detach().to(at::kFloat), integers({3}, 5))) return "different values";
    for (const at::Tensor& local : model.parameters()) {
      if (local.scalar_type() != at::kFloat) return "a master that is not fp32";
    }
    return "";
  });
}

TEST(FullyShardPrecision, HalfPrecisionSumsDoNotOverflow) {
  expect_on_ranks(4, {4}, [](const auto& mesh, auto&) -> std::string {
    Sharded<LayerImpl> model(1, 1, 0);
    fully_shard(model, mesh, {.mixed_precision = {.reduce_dtype = at::kHalf}});
    model(at::full({1, 1}, 40000.0)).sum().backward();
    for (const auto& [name, local] : model.named_parameters()) {
      if (name == "weight" && local.numel() > 0 && local.grad().template item<float>() != 40000.0F)
        return "overflow";
    }
    return "";
  });
}

/// A parameter and a buffer on the meta device.
struct MetaImpl : torch::nn::Module {
  MetaImpl() {
    weight = register_parameter("weight", at::empty({5, 3}, at::TensorOptions(at::kMeta)));
    table = register_buffer("table", at::empty({3}, at::TensorOptions(at::kMeta)));
  }
  at::Tensor forward(const at::Tensor& x) { return at::matmul(x, weight) + table; }
  at::Tensor weight;
  at::Tensor table;
};

TEST(FullyShardPrecision, ModulesOnTheMetaDeviceAreInitializedWhenSharded) {
  for (const int ranks : {1, 3}) {
    expect_on_ranks(ranks, {ranks}, [](const auto& mesh, auto&) -> std::string {
      Sharded<MetaImpl> model;
      std::vector<std::string> names;
      fully_shard(model, mesh, {.initialize = [&](const std::string& name, at::Tensor value) {
                    names.push_back(name);
                    value.copy_(integers(value.sizes(), name == "weight" ? 1 : 2));
                  }});
      if (names != std::vector<std::string>{"weight", "table"}) return "different names";
      const at::Tensor expected = at::matmul(rows_of(0, 0), integers({5, 3}, 1)) + integers({3}, 2);
      const at::Tensor found = model(rows_of(0, 0));
      found.sum().backward();
      if (!model.parameters()[0].grad().defined()) return "no gradient";
      return at::equal(found.detach(), expected) ? "" : "different values";
    });
  }
}

TEST(FullyShardPrecision, AForwardWithoutValuesIsRefused) {
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) -> std::string {
    Sharded<MetaImpl> model;
    fully_shard(model, mesh);
    try {
      model(rows_of(0, 0));
      return "accepted";
    } catch (const Error& refusal) {
      const std::string text = refusal.what();
      return text.find("no values for weight, table") != std::string::npos ? "" : text;
    }
  });
}

/// A user-defined result.
struct Pieces {
  at::Tensor sum;
  std::vector<at::Tensor> rows;
  int count = 0;
  template <typename V>
  void visit_tensors(V&& visit) {
    visit(sum);
    visit(rows);
  }
};

struct ManyImpl : torch::nn::Module {
  ManyImpl() { weight = register_parameter("weight", integers({5, 3}, 1)); }
  Pieces forward(const std::vector<at::Tensor>& xs, std::optional<at::Tensor> bias,
                 const std::map<std::string, at::Tensor>& named, int& calls) {
    ++calls;
    Pieces pieces;
    for (const at::Tensor& x : xs) pieces.rows.push_back(at::matmul(x, weight));
    pieces.sum = pieces.rows[0] + named.at("more");
    if (bias) pieces.sum = pieces.sum + *bias;
    pieces.count = static_cast<int>(xs.size());
    return pieces;
  }
  at::Tensor weight;
};

TEST(FullyShardPrecision, ForwardMayTakeAndReturnContainersStructsAndReferences) {
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) -> std::string {
    const auto run = [&](bool shard) {
      Sharded<ManyImpl> model;
      if (shard) fully_shard(model, mesh);
      at::Tensor more = integers({3, 3}, 4).requires_grad_();
      int calls = 0;
      const Pieces pieces = model(std::vector<at::Tensor>{rows_of(0, 0), rows_of(0, 1)},
                                  std::optional<at::Tensor>(integers({3}, 2)),
                                  std::map<std::string, at::Tensor>{{"more", more}}, calls);
      (pieces.sum.sum() + pieces.rows[1].sum()).backward();
      return std::tuple(pieces.sum.detach(), more.grad(), calls, pieces.count);
    };
    const auto [sum, gradient, calls, count] = run(false);
    const auto [sum2, gradient2, calls2, count2] = run(true);
    return at::equal(sum, sum2) && at::equal(gradient, gradient2) && calls2 == 1 && count2 == 2 ? ""
                                                                                                : "differs";
  });
}

TEST(FullyShardPrecision, ResultsMayBeChangedInPlace) {
  const auto expected = one_rank(2, 2, [](Model& model, int rank, int step) {
    at::Tensor out = model->first(rows_of(rank, step));
    out.mul_(2).add_(1);
    model->second(out).sum().backward();
  });
  expect_on_ranks(2, {2}, [&](const auto& mesh, auto&) -> std::string {
    Model model;
    shard_all(model, mesh);
    model.set_reduce_op(ReduceOp::sum, true);
    for (int step = 0; step < 2; ++step) {
      at::Tensor out = model->first(rows_of(mesh->rank(), step));
      out.mul_(2).add_(1);
      model->second(out).sum().backward();
      snap_update(model.parameters());
      model.zero_grad();
    }
    return difference(values_of(model), expected);
  });
}

TEST(FullyShardPrecision, OddSizesAndFewerElementsThanRanksAreSharded) {
  struct OddImpl : torch::nn::Module {
    OddImpl() {
      for (const int64_t size : {1, 3, 5, 7, 17}) {
        parameters_of.push_back(register_parameter(format("p{}", size), integers({size, size, 1}, size)));
      }
    }
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor sum = x;
      for (const at::Tensor& parameter : parameters_of) sum = sum + (parameter * parameter).sum();
      return sum;
    }
    std::vector<at::Tensor> parameters_of;
  };
  Sharded<OddImpl> plain;
  for (int rank = 0; rank < 8; ++rank) plain(integers({2}, rank)).sum().backward();
  snap_update(plain->parameters());
  plain->zero_grad();
  const auto expected = values_of(plain);
  using Kind = PartitionKind;
  for (const Partition& partition :
       {Partition{Kind::flat}, Partition{Kind::by_tensor}, Partition{Kind::by_dim, 1}}) {
    expect_on_ranks(
        8, {8},
        [&](const auto& mesh, auto&) -> std::string {
          Sharded<OddImpl> model;
          fully_shard(model, mesh, {.partition = partition});
          model.set_reduce_op(ReduceOp::sum);
          model(integers({2}, mesh->rank())).sum().backward();
          snap_update(model.parameters());
          return difference(values_of(model), expected);
        },
        partition_text(partition));
  }
}

}  // namespace
}  // namespace stepforge::testing

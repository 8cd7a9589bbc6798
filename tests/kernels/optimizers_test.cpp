// SPDX-License-Identifier: Apache-2.0
// Lion, SGD and Muon against their definitions in fp64, and against libtorch where it has them.
#include <cmath>

#include <ATen/ops/linalg_svd.h>
#include <torch/optim/sgd.h>

#include "stepforge/kernels/kernel_list.h"
#include "stepforge/kernels/lion.h"
#include "stepforge/kernels/muon.h"
#include "stepforge/kernels/sgd.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

UpdateScalars some_scalars(double finite = 1) {
  return {
      .finite = scalar(finite), .number = scalar(7), .lr_factor = scalar(0.5), .grad_scale = scalar(0.25)};
}

struct State {
  at::Tensor p, g, m;
};

State make_state(at::IntArrayRef shape, at::ScalarType type) {
  return {random_tensor(shape, 1).to(type), random_tensor(shape, 2).to(type),
          random_tensor(shape, 3).to(type) * 0.1};
}

constexpr LionOptions kLion = {.lr = 6e-3, .beta1 = 0.9, .beta2 = 0.97, .weight_decay = 0.1};

TEST(Lion, AgreesWithItsDefinition) {
  const State fast = make_state({5000}, at::kFloat);
  const State before = make_state({5000}, at::kDouble);
  lion_update(fast.p, fast.g, fast.m, kLion, some_scalars());
  const at::Tensor g = before.g * 0.25;
  const at::Tensor p = before.p * (1 - 0.003 * 0.1) - 0.003 * (0.9 * before.m + 0.1 * g).sign();
  expect_close(fast.p, p, 4 * kEps32, "parameter");
  expect_close(fast.m, 0.97 * before.m + 0.03 * g, 4 * kEps32, "momentum");
  const State reference = make_state({5000}, at::kDouble);
  reference::lion_update(reference.p, reference.g, reference.m, kLion, some_scalars());
  expect_close(reference.p, p, 1e-14, "reference");
}

TEST(Sgd, AgreesWithLibtorch) {
  for (const bool nesterov : {false, true}) {
    for (const double momentum : {0.0, 0.9}) {
      if (nesterov && momentum == 0.0) continue;
      const State ours = make_state({300}, at::kDouble);
      ours.m.zero_();
      at::Tensor theirs = make_state({300}, at::kDouble).p.requires_grad_(true);
      torch::optim::SGD sgd(
          {theirs}, torch::optim::SGDOptions(0.003).momentum(momentum).nesterov(nesterov).weight_decay(0.1));
      for (int step = 0; step < 5; ++step) {
        const at::Tensor gradient = random_tensor({300}, 10 + static_cast<uint64_t>(step)).to(at::kDouble);
        theirs.mutable_grad() = gradient * 0.25;
        sgd.step();
        sgd_update(ours.p, gradient, momentum > 0 ? ours.m : at::Tensor(),
                   {.lr = 6e-3, .momentum = momentum, .weight_decay = 0.1, .nesterov = nesterov},
                   some_scalars());
      }
      expect_close(ours.p, theirs.detach(), 1e-14, "parameter");
    }
  }
}

TEST(Muon, OrthogonalizeBringsSingularValuesNearOne) {
  for (const auto& shape :
       {std::vector<int64_t>{40, 24}, std::vector<int64_t>{24, 40}, std::vector<int64_t>{32, 32}}) {
    const at::Tensor values = std::get<1>(at::linalg_svd(
        orthogonalize(random_tensor(shape, 5).to(at::kDouble), 5, at::kDouble), /*full_matrices=*/false));
    EXPECT_GT(values.min().item<double>(), 0.3);
    EXPECT_LT(values.max().item<double>(), 1.3);
  }
}

TEST(Muon, AgreesWithItsDefinition) {
  for (const bool nesterov : {false, true}) {
    for (const bool as_adamw : {false, true}) {
      const State fast = make_state({40, 24}, at::kFloat);
      const State before = make_state({40, 24}, at::kDouble);
      const MuonOptions options{.lr = 0.04,
                                .momentum = 0.9,
                                .weight_decay = 0.1,
                                .nesterov = nesterov,
                                .as_adamw = as_adamw,
                                .compute = at::kFloat};
      muon_update(fast.p, fast.g, fast.m, options, some_scalars());
      const at::Tensor g = before.g * 0.25;
      const at::Tensor m = 0.9 * before.m + 0.1 * g;
      const at::Tensor u = orthogonalize(nesterov ? 0.9 * m + 0.1 * g : m, 5, at::kDouble);
      const double scale = as_adamw ? 0.2 * std::sqrt(40.0) : std::sqrt(40.0 / 24.0);
      expect_close(fast.m, m, 4 * kEps32, "momentum");
      EXPECT_LE((fast.p.to(at::kDouble) - (before.p * (1 - 0.02 * 0.1) - 0.02 * scale * u))
                    .abs()
                    .max()
                    .item<double>(),
                1e-5);
    }
  }
}

TEST(Optimizers, AnUpdateWhoseFlagIsDownChangesNoBit) {
  const State before = make_state({40, 24}, at::kFloat);
  const auto expect_same = [&](const char* name, auto update) {
    const State state = make_state({40, 24}, at::kFloat);
    state.g.fill_(std::nan(""));
    update(state);
    EXPECT_TRUE(at::equal(state.p, before.p)) << name;
    EXPECT_TRUE(at::equal(state.m, before.m)) << name;
  };
  expect_same("lion", [](const State& s) {
    lion_update(s.p.view(-1), s.g.view(-1), s.m.view(-1), kLion, some_scalars(0));
  });
  expect_same("sgd", [](const State& s) {
    sgd_update(s.p.view(-1), s.g.view(-1), s.m.view(-1), {.momentum = 0.9}, some_scalars(0));
  });
  expect_same("muon", [](const State& s) { muon_update(s.p, s.g, s.m, {}, some_scalars(0)); });
}

}  // namespace
}  // namespace stepforge::testing

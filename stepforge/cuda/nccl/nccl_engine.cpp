// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/nccl/nccl_engine.h"

#include <utility>

#include "stepforge/cuda/nccl/nccl_communicator.h"

namespace stepforge::cuda_nccl {

namespace {

class NcclEngine : public DeviceEngine {
 public:
  NcclEngine(std::shared_ptr<const Gpu> gpu, double seconds) : gpu_(std::move(gpu)), seconds_(seconds) {}

  std::string name() const override { return "NCCL"; }
  std::unique_ptr<Communicator> group(DeviceGroup group) override {
    auto communicator = std::make_unique<NcclCommunicator>(std::move(group), gpu_, seconds_);
    communicator->connect();
    return communicator;
  }

 private:
  std::shared_ptr<const Gpu> gpu_;
  double seconds_;
};

}  // namespace

std::shared_ptr<DeviceEngine> nccl_engine(std::shared_ptr<const Gpu> gpu, double seconds) {
  return std::make_shared<NcclEngine>(std::move(gpu), seconds);
}

}  // namespace stepforge::cuda_nccl

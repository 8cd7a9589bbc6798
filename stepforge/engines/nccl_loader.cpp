// SPDX-License-Identifier: Apache-2.0
// Loads the plug-in with NCCL.
#include <filesystem>
#include <functional>
#include <utility>

#include <dlfcn.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/installation.h"
#include "stepforge/engines/nccl/plugin.h"

namespace stepforge {

namespace {

/// The world of the plug-in, which owns its control world.
class OwningWorld : public World {
 public:
  OwningWorld(std::unique_ptr<World> control, std::unique_ptr<World> world)
      : control_(std::move(control)), world_(std::move(world)) {}
  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  std::string transport() const override { return world_->transport(); }
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    return world_->group(name, ranks);
  }
  void abort(const std::string& reason) override { world_->abort(reason); }

 private:
  std::unique_ptr<World> control_;
  std::unique_ptr<World> world_;
};

NcclEntry load() {
  const std::filesystem::path library = library_folder() / "libstepforge_nccl.so";
  if (!std::filesystem::exists(library)) {
    throw UsageError(
        format("comm.backend = nccl: this build has no plug-in {}; it is built if nvcc and nccl.h are "
               "found. Set comm.backend to auto or gloo",
               library.string()));
  }
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = handle != nullptr ? dlsym(handle, kNcclEntryName) : nullptr;
  if (symbol == nullptr)
    throw UsageError(format("comm.backend = nccl: cannot load its plug-in: {}", dlerror()));
  return reinterpret_cast<NcclEntry>(symbol);
}

}  // namespace

std::unique_ptr<World> nccl_world(const std::function<std::unique_ptr<World>()>& make_control, int device,
                                  double train_seconds) {
  const NcclEntry entry = load();
  // Checks the GPU first: without one, waiting for other ranks is useless.
  NcclRequest request{nullptr, device, train_seconds};
  entry(request);
  std::unique_ptr<World> control = make_control();
  request.control = control.get();
  std::unique_ptr<World> world = entry(request);
  return std::make_unique<OwningWorld>(std::move(control), std::move(world));
}

}  // namespace stepforge

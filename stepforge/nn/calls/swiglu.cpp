// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/swiglu.h"

#include "stepforge/kernels/swiglu.h"
#include "stepforge/nn/calls/entries.h"

namespace stepforge::calls {

void swiglu(const CallRun& run) {
  swiglu_forward(run.operands[0], run.written[0], attributes_of<SwigluAttributes>(run.call).activation);
}

void swiglu_backward(const CallRun& run) {
  stepforge::swiglu_backward(run.gradients[0], run.operands[0], run.written[0],
                             attributes_of<SwigluAttributes>(run.call).activation);
}

}  // namespace stepforge::calls

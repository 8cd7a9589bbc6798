// SPDX-License-Identifier: Apache-2.0
// What the labels of a sample weigh in the loss.
#pragma once

#include "stepforge/base/choices.h"
#include "stepforge/data/batch.h"

namespace stepforge {

/// Sets the weights of a batch of whole rows; `token` leaves it as it is. A sample is a document, or the part of
/// it that a row holds.
void weigh_labels(LabelWeights weights, Batch& batch);

/// The sum of batch.weights. Each row's share is rounded to a multiple of 2^-24, so that the sum over a step does
/// not depend on how its rows are divided.
double sum_of_weights(const Batch& batch);

}  // namespace stepforge

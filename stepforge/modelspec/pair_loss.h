// SPDX-License-Identifier: Apache-2.0
// The loss of a pair of answers, of which the first is the better one, or of an answer that is judged alone.
//
//   x_i = log-probability of answer i, divided by its tokens if normalized, less that of the reference if there is one
//   u = x_1 - x_2, or the difference of their log odds log(p / (1 - p)); answer 1 is the better one
//   sigmoid:  -(1 - s) log sigmoid(beta u - margin) - s log sigmoid(margin - beta u)
//   hinge:    max(0, 1 - beta u)
//   square:   (u - 1 / (2 beta))^2
//   loss = weight x this, and sft_weight x the mean cross-entropy of the better answers of the step
//
// Of answers that are judged alone, with v = beta (x_1 - z), or beta (z - x_2) if the only answer is undesirable, and the weight of such
// answers:
//   sigmoid:  weight (1 - sigmoid(v))
//   hinge:    weight max(0, 1 - v)
//   z = 0, or with a baseline the mean over the step of the x of mismatched answers (RowSource::read_mismatched), at least 0. It has
//   no gradient.
//
// Of a reward model x_i is the score at the last token of answer i, and center_weight (x_1 + x_2)^2 is added to the loss.
//
// Each row names its paper in config/section_preference.cpp; the forms are those of TRL.
#pragma once

#include <cstdint>

namespace stepforge {

enum class PairForm : uint8_t { sigmoid, hinge, square };

struct PairLoss {
  PairForm form = PairForm::sigmoid;
  bool judged = false;  ///< of answers that are judged alone
  /// Compares with another model: that at the start of the run, or preference.reference.
  bool has_reference = false;
  bool normalized = false;
  bool log_odds = false;
  bool scores = false;  ///< compares scores at the last tokens of the answers, and not log-probabilities
  double beta = 0.1;
  double margin = 0.0;
  double smoothing = 0.0;
  double weight = 1.0;
  double sft_weight = 0.0;
  double center_weight = 0.0;
  bool has_baseline = false;  ///< of judged answers
  double desirable_weight = 1.0;
  double undesirable_weight = 1.0;
};

}  // namespace stepforge

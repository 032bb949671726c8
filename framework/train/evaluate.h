// Validation: loss and bits per byte on a fixed set of sequences, and recall by distance for the
// embedded corpus. Sums are reduced over ranks, so the result does not depend on their number.
#pragma once

#include <cstdint>
#include <optional>

#include "framework/comm/communicator.h"
#include "framework/data/dataset.h"
#include "framework/data/recall.h"
#include "framework/model/gpt.h"

namespace heddle {

struct Evaluation {
  double loss = 0;           // nats per token
  double bits_per_byte = 0;  // nats / (ln 2 * bytes of text predicted); 0: bytes unknown
  int64_t tokens = 0;
  double seconds = 0;
};

// The first `tokens` / T validation sequences (at least one, at most all).
Evaluation evaluate_loss(Gpt& model, const Dataset& dataset, Communicator& comm, int64_t tokens);

// At least `per_bucket` recalls of every distance; nullopt unless the data is the recall corpus.
std::optional<RecallTable> evaluate_recall(Gpt& model, const Dataset& dataset, Communicator& comm,
                                           int64_t per_bucket);

}  // namespace heddle

// Between a running trainer and a checkpoint: which tensors are saved, where a run stood, and
// putting both back. Position is counted in sequences and steps, never in ranks.
#pragma once

#include <cstdint>
#include <string>

#include "framework/checkpoint/checkpoint.h"
#include "framework/config/config.h"
#include "framework/data/dataset.h"
#include "framework/model/gpt.h"
#include "framework/optim/optimizer.h"

namespace heddle {

// Where a run stands between two steps.
struct Position {
  int64_t step = 0;       // optimizer steps done
  int64_t sequences = 0;  // training sequences read by all ranks
  int64_t tokens = 0;
  double train_seconds = 0;
};

// What this rank writes; tensors point into the model and the optimizer. `writes_state`: false on
// ranks whose optimizer state another rank has as well.
CheckpointContents make_snapshot(const Gpt& model, Optimizer& optimizer, const Dataset& dataset,
                                 const Config& config, const Position& position, bool writes_state);

// Puts a checkpoint back, of whatever number of ranks: each rank reads what its optimizer keeps.
// Throws heddle::Error (config) when it holds another model, other data or another optimizer than
// the configuration asks for, naming what differs.
Position restore_snapshot(const Checkpoint& checkpoint, const Dataset& dataset, Gpt& model,
                          Optimizer& optimizer);

// Weights only, from train.init_from or for evaluation and generation.
void load_model_weights(const TensorSet& weights, Gpt& model);

}  // namespace heddle

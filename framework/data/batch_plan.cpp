#include "framework/data/batch_plan.h"

#include <algorithm>

#include "framework/data/dataset.h"

namespace heddle {

BatchPlan plan_batch(const TrainConfig& train, int64_t sequence_len, int rank, int world_size) {
  BatchPlan plan;
  plan.global_sequences = train.total_batch_size / sequence_len;
  const Share share = rank_share(plan.global_sequences, rank, world_size);
  plan.first = share.begin;
  plan.count = share.count;
  const int64_t most = train.reproducible ? 1 : train.device_batch_size;
  plan.micro_batch = std::min(most, std::max<int64_t>(share.count, 1));
  return plan;
}

}  // namespace heddle

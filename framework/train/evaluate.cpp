#include "framework/train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <span>
#include <vector>

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Evaluation evaluate_loss(Gpt& model, const Dataset& dataset, Communicator& comm, int64_t tokens) {
  const auto started = Clock::now();
  const int64_t len = model.seq_len();
  const int64_t wanted = std::clamp<int64_t>(tokens / len, 1, dataset.val_sequences());
  const Share share = rank_share(wanted, comm.rank(), comm.world_size());
  const auto batch_tokens = static_cast<size_t>(model.max_batch() * len);
  std::vector<int32_t> ids(batch_tokens), targets(batch_tokens);

  double nats = 0, bytes = 0, count = 0;
  for (int64_t done = 0; done < share.count;) {
    const int64_t batch = std::min(model.max_batch(), share.count - done);
    for (int64_t b = 0; b < batch; ++b) {
      dataset.val_sequence(share.begin + done + b, ids.data() + b * len, targets.data() + b * len);
    }
    const LossSum sum = model.evaluate(ids.data(), targets.data(), batch);
    nats += sum.nats;
    count += static_cast<double>(sum.tokens);
    for (int64_t i = 0; i < batch * len; ++i) {
      const int32_t target = targets[static_cast<size_t>(i)];
      if (target >= 0) bytes += dataset.tokenizer().token_bytes(target);
    }
    done += batch;
  }

  double sums[] = {nats, bytes, count};
  comm.all_reduce_sum(std::span<double>(sums));
  Evaluation result;
  result.tokens = static_cast<int64_t>(sums[2]);
  result.loss = sums[0] / std::max(sums[2], 1.0);
  result.bits_per_byte = sums[1] > 0 ? sums[0] / (std::numbers::ln2 * sums[1]) : 0.0;
  result.seconds = std::chrono::duration<double>(Clock::now() - started).count();
  return result;
}

std::optional<RecallTable> evaluate_recall(Gpt& model, const Dataset& dataset, Communicator& comm,
                                           int64_t per_bucket) {
  const RecallCorpus* corpus = dataset.recall();
  if (corpus == nullptr) return std::nullopt;
  const int64_t len = corpus->sequence_len();
  const std::vector<int64_t> stories = recall_eval_stories(*corpus, per_bucket);
  const Share share =
      rank_share(static_cast<int64_t>(stories.size()), comm.rank(), comm.world_size());

  RecallTable table(len);
  std::vector<int32_t> story(static_cast<size_t>(len) + 1);
  std::vector<int32_t> ids, targets, argmax;
  std::vector<std::vector<Recall>> recalls;
  for (int64_t done = 0; done < share.count;) {
    const int64_t batch = std::min(model.max_batch(), share.count - done);
    ids.clear();
    recalls.assign(static_cast<size_t>(batch), {});
    for (int64_t b = 0; b < batch; ++b) {
      corpus->story(Split::kVal, stories[static_cast<size_t>(share.begin + done + b)], story.data(),
                    &recalls[static_cast<size_t>(b)]);
      ids.insert(ids.end(), story.begin(), story.end() - 1);
    }
    targets.assign(ids.size(), -1);
    argmax.assign(ids.size(), 0);
    model.evaluate(ids.data(), targets.data(), batch, nullptr, argmax.data());
    for (int64_t b = 0; b < batch; ++b) {
      for (const Recall& r : recalls[static_cast<size_t>(b)]) {
        table.add(r.distance, argmax[static_cast<size_t>(b * len + r.position)] == r.value_token);
      }
    }
    done += batch;
  }

  const std::vector<int64_t> own = table.counts();
  std::vector<double> sums(own.begin(), own.end());
  comm.all_reduce_sum(std::span<double>(sums));
  const std::vector<int64_t> all(sums.begin(), sums.end());
  table.set_counts(all);
  return table;
}

}  // namespace heddle

#include "framework/optim/plan.h"

#include <algorithm>
#include <cmath>

#include "framework/core/error.h"
#include "framework/optim/muon.h"
#include "framework/optim/schedules.h"

namespace heddle {
namespace {

constexpr int64_t kAlign = 16;  // elements: every tensor begins on a cache line

int64_t take(int64_t* size, int64_t elements) {
  const int64_t offset = *size;
  *size += (elements + kAlign - 1) / kAlign * kAlign;
  return offset;
}

// Block matrices and lm_head of nanochat's depth 12 (width 768, 6 heads, this vocabulary): 12 C^2
// a block, and a value gate of 12 inputs per head in every other one.
int64_t depth12_scaling_params(int64_t padded_vocab) {
  constexpr int64_t kLayers = 12, kWidth = 768, kHeads = 6;
  return kLayers * 12 * kWidth * kWidth + kLayers / 2 * kHeads * kValueGateChannels +
         padded_vocab * kWidth;
}

BatchScaling scaling(const OptimConfig& config, const ParamLayout& layout,
                     int64_t total_batch_size) {
  if (!config.batch_scaling) return {};
  const ParamCounts counts = count_params(layout);
  const int64_t padded_vocab = layout.at("lm_head.weight").rows;
  return batch_scaling(total_batch_size, counts.transformer_matrices + counts.lm_head,
                       depth12_scaling_params(padded_vocab));
}

// nanochat's AdamW groups (nanochat/gpt.py setup_optimizer); embeddings and head scale with
// (C/768)^-1/2, all but the smear and backout rates with the batch.
AdamWGroup nanochat_group(const OptimConfig& config, ParamKind kind, double width_scale,
                          double batch_scale) {
  const double embedding = config.embedding_lr * width_scale * batch_scale;
  const double scalar = config.scalar_lr * batch_scale;
  switch (kind) {
    case ParamKind::kLmHead:
      return {config.unembedding_lr * width_scale * batch_scale, 0.8, 0.96, 1e-10, 0.01};
    case ParamKind::kWte:
      return {embedding, 0.8, 0.995, 1e-10, 0.001};
    case ParamKind::kValueEmbed:
      return {0.5 * embedding, 0.8, 0.995, 1e-10, 0.01};
    case ParamKind::kResid:
      return {0.01 * scalar, 0.8, 0.95, 1e-10, 0.05};
    case ParamKind::kX0:
      return {scalar, 0.96, 0.95, 1e-10, 0.0};
    case ParamKind::kSmearGate:
    case ParamKind::kSmearLambda:
    case ParamKind::kBackoutLambda:
      return {0.2, 0.8, 0.95, 1e-10, 0.0};
    case ParamKind::kMatrix:
      break;
  }
  check_failed(__FILE__, __LINE__, "kind", "matrices have no AdamW group under Muon");
}

bool decays(ParamKind kind) {
  return kind == ParamKind::kLmHead || kind == ParamKind::kWte || kind == ParamKind::kValueEmbed ||
         kind == ParamKind::kMatrix;
}

AdamWGroup plain_group(const OptimConfig& config, ParamKind kind, const BatchScaling& scale) {
  return {config.adamw_lr * scale.lr, config.adamw_beta1, config.adamw_beta2, config.adamw_eps,
          decays(kind) ? config.weight_decay * scale.weight_decay : 0.0};
}

void add_muon(const ParamInfo& p, double lr, int64_t grad, OptimPlan* plan) {
  MuonTask task;
  task.param = p;
  task.lr = lr * std::sqrt(std::max(1.0, static_cast<double>(p.rows) / p.cols));
  task.grad = grad;
  task.momentum = take(&plan->momentum_size, p.size());
  task.second = take(&plan->second_size, task.second_size());
  plan->muon.push_back(task);

  int64_t matrix = 0, gram = 0;
  const int64_t side = std::min(p.rows, p.cols);
  take(&matrix, p.size());
  take(&gram, side * side);
  plan->matrix_scratch = std::max(plan->matrix_scratch, matrix);
  plan->gram_scratch = std::max(plan->gram_scratch, gram);
}

// Tasks for these pieces of the layout; offset(piece, flat) is where a piece's gradient begins.
template <class Offset>
OptimPlan make_plan(const OptimConfig& config, const ParamLayout& layout, int64_t total_batch_size,
                    const std::vector<Piece>& pieces, Offset&& offset) {
  const BatchScaling scale = scaling(config, layout, total_batch_size);
  const bool muon = config.kind == "muon";
  const double width = static_cast<double>(layout.at("transformer.wte.weight").cols);
  const double width_scale = 1.0 / std::sqrt(width / 768.0);
  OptimPlan plan;
  plan.weight_decay_scale = scale.weight_decay;
  for (const Piece& piece : pieces) {
    const ParamInfo& p = layout.params()[static_cast<size_t>(piece.param)];
    const int64_t grad = offset(piece, p.offset + piece.begin);
    if (muon && p.kind == ParamKind::kMatrix) {
      add_muon(p, config.matrix_lr * scale.lr, grad, &plan);
      continue;
    }
    const AdamWGroup group = muon ? nanochat_group(config, p.kind, width_scale, scale.lr)
                                  : plain_group(config, p.kind, scale);
    plan.adamw.push_back(
        {p, group, piece.begin, piece.count, grad, take(&plan.adamw_size, piece.count)});
  }
  std::stable_sort(plan.muon.begin(), plan.muon.end(),
                   [](const MuonTask& a, const MuonTask& b) { return a.cost() > b.cost(); });
  return plan;
}

}  // namespace

double polar_cost(int64_t rows, int64_t cols) {
  const double m = static_cast<double>(rows), n = static_cast<double>(cols);
  const double side = std::min(m, n);
  return kPolarSteps * (2.0 * m * n * side + side * side * side);
}

int64_t OptimPlan::state_bytes() const {
  return static_cast<int64_t>(sizeof(float)) * (2 * adamw_size + momentum_size + second_size);
}

int64_t OptimPlan::scratch_bytes(int workers) const {
  return static_cast<int64_t>(sizeof(float)) * workers * 2 * (matrix_scratch + gram_scratch);
}

OptimPlan plan_optimizer(const OptimConfig& config, const ParamLayout& layout,
                         int64_t total_batch_size) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < layout.params().size(); ++i) {
    pieces.push_back({static_cast<int>(i), 0, 0, layout.params()[i].size()});
  }
  return make_plan(config, layout, total_batch_size, pieces,
                   [](const Piece&, int64_t flat) { return flat; });
}

OptimPlan plan_optimizer(const OptimConfig& config, const Ownership& ownership, ShardLevel level,
                         int rank, int64_t total_batch_size) {
  if (level == ShardLevel::kNone) {
    return plan_optimizer(config, ownership.layout(), total_batch_size);
  }
  std::vector<Piece> own;
  for (const Piece& piece : ownership.pieces()) {
    if (piece.rank == rank) own.push_back(piece);
  }
  return make_plan(
      config, ownership.layout(), total_batch_size, own, [&](const Piece&, int64_t flat) {
        return level == ShardLevel::kGradients ? ownership.shard_offset(rank, flat) : flat;
      });
}

}  // namespace heddle

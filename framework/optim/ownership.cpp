#include "framework/optim/ownership.h"

#include <algorithm>
#include <string>

#include "framework/comm/communicator.h"
#include "framework/core/error.h"
#include "framework/model/pass_hooks.h"
#include "framework/optim/plan.h"

namespace heddle {
namespace {

constexpr int64_t kAlign = 16;           // elements: owners share no cache line
constexpr int64_t kChunksOfSplit = 512;  // a split tensor has about this many chunks

int64_t align(int64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

bool is_split(const ParamInfo& p) {
  return p.kind == ParamKind::kWte || p.kind == ParamKind::kLmHead ||
         p.kind == ParamKind::kValueEmbed;
}

int64_t chunk_of_split(int64_t size) {
  return align((size + kChunksOfSplit - 1) / kChunksOfSplit);
}

// c_k and c_v lie behind c_q and belong to its owner.
bool follows(const ParamInfo& p) {
  return p.name.ends_with("attn.c_k.weight") || p.name.ends_with("attn.c_v.weight");
}

}  // namespace

struct Ownership::Unit {
  std::vector<int> params;
  int64_t part = kEmbeddingPart;  // of the model
  int64_t size = 0;
  double cost = 0;
  int owner = 0;
};

ShardLevel parse_shard_level(std::string_view text) {
  if (text == "none") return ShardLevel::kNone;
  if (text == "optimizer") return ShardLevel::kOptimizer;
  HEDDLE_CHECK(text == "gradients", "dist.shard " + std::string(text));
  return ShardLevel::kGradients;
}

Ownership::Ownership(const ModelSpec& spec, const OptimConfig& optim, int world_size,
                     int64_t bucket_bytes)
    : world_size_(world_size), layout_(spec) {
  std::vector<Unit> units;
  const auto& params = layout_.params();
  for (size_t i = 0; i < params.size(); ++i) {
    const ParamInfo& p = params[i];
    if (is_split(p)) continue;
    if (!follows(p)) {
      const int64_t part = p.kind == ParamKind::kMatrix ? p.layer : kEmbeddingPart;
      units.push_back({{}, part, 0, 0, 0});
    }
    const bool muon = optim.kind == "muon" && p.kind == ParamKind::kMatrix;
    units.back().params.push_back(static_cast<int>(i));
    units.back().size += p.size();
    units.back().cost += muon ? polar_cost(p.rows, p.cols) : static_cast<double>(p.size());
  }
  if (world_size == 1) {
    place_alone();
  } else {
    place_buckets(spec, std::move(units), bucket_bytes);
    layout_ = ParamLayout(layout_, offsets_, total_);
  }
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return a.param != b.param ? a.param < b.param : a.begin < b.begin;
  });
  list_norm_pieces();
}

void Ownership::place_alone() {
  const auto& params = layout_.params();
  for (size_t i = 0; i < params.size(); ++i) {
    pieces_.push_back({static_cast<int>(i), 0, 0, params[i].size()});
  }
  int64_t head = 0;
  for (const ParamInfo& p : params) head = std::max<int64_t>(head, p.layer + 1);
  buckets_.push_back({0, layout_.total(), {layout_.total()}, head, kEmbeddingPart, false});
}

void Ownership::place_buckets(const ModelSpec& spec, std::vector<Unit> units,
                              int64_t bucket_bytes) {
  std::vector<size_t> order(units.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return units[a].cost > units[b].cost; });
  std::vector<double> load(static_cast<size_t>(world_size_));
  for (const size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += units[i].cost;
    units[i].owner = static_cast<int>(least - load.begin());
  }

  const auto& params = layout_.params();
  offsets_.resize(params.size());
  const auto find = [&](ParamKind kind, int64_t layer) {
    for (size_t i = 0; i < params.size(); ++i) {
      if (params[i].kind == kind && params[i].layer == layer) return static_cast<int>(i);
    }
    return -1;
  };
  const auto of_layer = [&](int64_t layer) {
    std::vector<Unit> found;
    for (const Unit& u : units) {
      if (u.part == layer) found.push_back(u);
    }
    return found;
  };
  const auto size_of = [](std::span<const Unit> list) {
    int64_t size = 0;
    for (const Unit& u : list) size += u.size;
    return size * static_cast<int64_t>(sizeof(float));
  };

  place_split(find(ParamKind::kLmHead, -1), spec.n_layer);
  std::vector<Unit> open;
  int64_t opens = spec.n_layer - 1;
  for (int64_t i = spec.n_layer - 1; i >= 0; --i) {
    if (const int table = find(ParamKind::kValueEmbed, i); table >= 0) place_split(table, i);
    const std::vector<Unit> layer = of_layer(i);
    open.insert(open.end(), layer.begin(), layer.end());
    if (i > 0 && size_of(open) + size_of(of_layer(i - 1)) <= bucket_bytes) continue;
    place_units(open, opens, i);
    open.clear();
    opens = i - 1;
  }
  if (const auto lambdas = of_layer(kEmbeddingPart); !lambdas.empty()) {
    place_units(lambdas, spec.n_layer, kEmbeddingPart);
  }
  place_split(find(ParamKind::kWte, -1), kEmbeddingPart);
}

void Ownership::place_split(int param, int64_t part) {
  const int64_t size = layout_.params()[static_cast<size_t>(param)].size();
  const int64_t chunk = chunk_of_split(size);
  Bucket bucket{total_, align(size), {}, part, part, true};
  offsets_[static_cast<size_t>(param)] = total_;
  int64_t at = 0;
  for (const int64_t chunks : even_counts((size + chunk - 1) / chunk, world_size_)) {
    const int rank = static_cast<int>(bucket.counts.size());
    const int64_t count = std::min(chunks * chunk, size - at);
    if (count > 0) pieces_.push_back({param, rank, at, count});
    at += count;
    bucket.counts.push_back(align(count));
  }
  total_ += bucket.size;
  buckets_.push_back(std::move(bucket));
}

void Ownership::place_units(std::span<const Unit> units, int64_t opens, int64_t closes) {
  Bucket bucket{total_, 0, {}, opens, closes, false};
  for (int rank = 0; rank < world_size_; ++rank) {
    const int64_t begin = total_;
    for (const Unit& unit : units) {
      if (unit.owner != rank) continue;
      for (const int param : unit.params) {
        const int64_t size = layout_.params()[static_cast<size_t>(param)].size();
        offsets_[static_cast<size_t>(param)] = total_;
        pieces_.push_back({param, rank, 0, size});
        total_ += size;
      }
      total_ = align(total_);
    }
    bucket.counts.push_back(total_ - begin);
  }
  bucket.size = total_ - bucket.begin;
  buckets_.push_back(std::move(bucket));
}

void Ownership::list_norm_pieces() {
  for (const Piece& piece : pieces_) {
    const ParamInfo& p = layout_.params()[static_cast<size_t>(piece.param)];
    if (!is_split(p)) {
      norm_pieces_.push_back(piece);
      continue;
    }
    const int64_t chunk = chunk_of_split(p.size());
    for (int64_t at = 0; at < piece.count; at += chunk) {
      norm_pieces_.push_back(
          {piece.param, piece.rank, piece.begin + at, std::min(chunk, piece.count - at)});
    }
  }
}

int64_t Ownership::elements(int rank) const {
  return shard_begin(rank, buckets_.size());
}

int64_t Ownership::shard_begin(int rank, size_t bucket) const {
  int64_t begin = 0;
  for (size_t b = 0; b < bucket; ++b) begin += buckets_[b].counts[static_cast<size_t>(rank)];
  return begin;
}

int64_t Ownership::own_begin(int rank, size_t bucket) const {
  int64_t begin = buckets_[bucket].begin;
  for (int r = 0; r < rank; ++r) begin += buckets_[bucket].counts[static_cast<size_t>(r)];
  return begin;
}

int64_t Ownership::shard_offset(int rank, int64_t offset) const {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const int64_t begin = own_begin(rank, b);
    if (offset < begin || offset >= begin + buckets_[b].counts[static_cast<size_t>(rank)]) continue;
    return shard_begin(rank, b) + offset - begin;
  }
  check_failed(__FILE__, __LINE__, "offset", "the rank does not own this element");
}

Ownership make_ownership(const Config& config, const ModelSpec& spec, int world_size) {
  constexpr double kMiB = 1024.0 * 1024.0;
  return {spec, config.optim, world_size, static_cast<int64_t>(config.dist.bucket_mb * kMiB)};
}

}  // namespace heddle

// Which rank owns which part of the parameters: it adds up their gradients, keeps their optimizer
// state and updates them. One map for every dist.shard level, a function of the model, the
// optimizer and the number of ranks alone.
//
// - A unit is what one rank owns whole: c_q, c_k and c_v of a layer, or one other matrix of a
// block,
//   or one lambda tensor or gate. Matrices go to the ranks by the cost of their update, heaviest
//   first, each to the rank with the least so far (the lowest of equals).
// - wte, lm_head and value embeddings are split evenly over the ranks, at multiples of a chunk that
//   depends on the tensor's size only.
// - A bucket is what one reduce-scatter moves: a split tensor, or the units of consecutive layers,
//   or all lambdas. Its elements are grouped by owner in memory, so a bucket is one range of the
//   flat buffer with a count per rank. ParamLayout's offsets follow from that; a single rank keeps
//   the natural layout and one bucket.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "framework/config/config.h"
#include "framework/model/params.h"
#include "framework/model/spec.h"

namespace heddle {

enum class ShardLevel {
  kNone,       // every rank has all gradients and all state, and updates everything
  kOptimizer,  // state and updates of the own part; gradients reduced once a step
  kGradients,  // and summed gradients of the own part only; reduced every micro-step
};
ShardLevel parse_shard_level(std::string_view text);

struct Bucket {
  int64_t begin = 0;  // in the flat buffer
  int64_t size = 0;
  std::vector<int64_t> counts;  // per rank, in rank order
  // Parts of the model (pass_hooks.h): backward first adds to the bucket in `opens` and is done
  // with it after `closes`, which is also where forward reads it first.
  int64_t opens = 0, closes = 0;
  bool split = false;  // one tensor, cut between ranks
};

// Consecutive elements of one parameter: what one rank owns of it, or less.
struct Piece {
  int param = 0;  // index into layout().params()
  int rank = 0;
  int64_t begin = 0, count = 0;  // elements of the parameter
};

class Ownership {
 public:
  // bucket_bytes: layers share a bucket while they fit into it; a bucket has at least one layer.
  Ownership(const ModelSpec& spec, const OptimConfig& optim, int world_size, int64_t bucket_bytes);

  int world_size() const { return world_size_; }
  const ParamLayout& layout() const { return layout_; }
  // In the order in which backward closes them. They tile the flat buffer.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // Every element of every parameter once, in the order of layout().params().
  const std::vector<Piece>& pieces() const { return pieces_; }
  // The pieces of which the gradient norm is made, in the order of its sum: whole units and chunks
  // of split tensors. The same (param, begin, count) for every number of ranks.
  const std::vector<Piece>& norm_pieces() const { return norm_pieces_; }

  // Elements of the flat buffer that a rank owns, alignment included.
  int64_t elements(int rank) const;
  // Its parts of all buckets one after the other make a shard: where a bucket's begins.
  int64_t shard_begin(int rank, size_t bucket) const;
  // Place in its owner's shard of the element at `offset` of the flat buffer.
  int64_t shard_offset(int rank, int64_t offset) const;
  // First element of the flat buffer that `rank` owns of a bucket.
  int64_t own_begin(int rank, size_t bucket) const;

 private:
  struct Unit;
  void place_alone();
  void place_buckets(const ModelSpec& spec, std::vector<Unit> units, int64_t bucket_bytes);
  void place_split(int param, int64_t part);
  void place_units(std::span<const Unit> units, int64_t opens, int64_t closes);
  void list_norm_pieces();

  int world_size_;
  ParamLayout layout_;
  std::vector<int64_t> offsets_;  // being planned, per parameter
  int64_t total_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<Piece> pieces_, norm_pieces_;
};

// The map of a run: its optim and dist.bucket_mb.
Ownership make_ownership(const Config& config, const ModelSpec& spec, int world_size);

}  // namespace heddle

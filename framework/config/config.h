// What a run is. Plain structs with nanochat's defaults; fields.h lists every field once with its
// meaning and limits, and parsing, validation, dumping and docs/configuration.md follow that list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace heddle {

// A value that YAML may leave to Heddle by writing `auto`.
template <class T>
using Auto = std::optional<T>;

// window_pattern: letters S and L tiled over the layers (last layer always L), or a list of literal
// window_left values, one for all layers or one per layer, without the last-layer rule.
struct WindowPattern {
  std::string letters = "SSSL";
  std::vector<int64_t> windows;  // used when not empty

  bool operator==(const WindowPattern&) const = default;
};

struct ModelConfig {
  int64_t n_layer = 4;
  int64_t n_head = 4;
  Auto<int64_t> n_kv_head;  // auto: n_head
  int64_t n_embd = 128;
  int64_t sequence_len = 256;
  Auto<int64_t> vocab_size;  // auto: the tokenizer's
  WindowPattern window_pattern;
  double rope_base = 100000.0;
  bool qk_norm = true;
  double qk_scale = 1.2;
  double softcap = 15.0;
  bool smear = true;
  bool backout = true;
  bool value_embeds = true;
  bool resid_lambdas = true;
  bool x0_lambdas = true;

  int64_t head_dim() const { return n_embd / n_head; }
  int64_t kv_heads() const { return n_kv_head.value_or(n_head); }

  bool operator==(const ModelConfig&) const = default;
};

struct AttentionConfig {
  std::string backend = "auto";
  std::vector<std::string> plugin_path;
  bool validate = false;        // also HEDDLE_VALIDATE=1
  int64_t validate_every = 50;  // calls between two comparisons with the reference

  bool operator==(const AttentionConfig&) const = default;
};

struct DataConfig {
  std::string kind = "auto";  // auto | recall | text | jsonl | tokens
  std::string path;           // file or folder; empty: the embedded recall corpus
  std::string val_path;       // empty: the last val_fraction of `path`
  double val_fraction = 0.05;
  std::string document = "file";  // file | paragraph
  std::string cache_dir = "auto";
  int64_t seed = 1;

  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  int64_t num_iterations = 200;
  int64_t device_batch_size = 8;    // sequences of one micro-step on one rank
  int64_t total_batch_size = 2048;  // tokens of one optimizer step on all ranks
  int64_t eval_every = 50;          // steps; 0 = only at the end
  int64_t eval_tokens = 32768;
  int64_t sample_every = 0;  // steps; 0 = only at the end
  int64_t sample_tokens = 64;
  int64_t threads = 0;  // 0: processors of this process, shared by the ranks of a host
  int64_t seed = 42;
  std::string resume = "never";  // never | auto | a checkpoint folder
  std::string init_from;         // safetensors file or checkpoint folder with initial weights
  Auto<double> peak_flops;       // auto: measured at start
  bool reproducible = false;     // same bits for every number of ranks, micro-batch and threads

  bool operator==(const TrainConfig&) const = default;
};

// What a rank computes on.
struct DeviceConfig {
  std::string kind = "auto";        // auto | cpu | cuda
  std::string precision = "auto";   // auto | fp32 | bf16
  std::string cuda_graph = "auto";  // auto | always | never

  bool operator==(const DeviceConfig&) const = default;
};

struct OptimConfig {
  std::string kind = "muon";      // muon | adamw
  std::string schedule = "auto";  // auto | warmdown | cosine
  double unembedding_lr = 0.008;
  double embedding_lr = 0.3;
  double scalar_lr = 0.5;
  double matrix_lr = 0.02;
  double weight_decay = 0.28;
  int64_t warmup_steps = 40;
  double warmdown_ratio = 0.65;
  double final_lr_frac = 0.05;
  double muon_momentum_start = 0.85;
  double muon_momentum = 0.97;
  double muon_momentum_final = 0.90;
  int64_t muon_momentum_warmup_steps = 400;
  double adamw_lr = 3e-3;  // kind adamw: one rate for every parameter
  double adamw_beta1 = 0.9;
  double adamw_beta2 = 0.95;
  double adamw_eps = 1e-8;
  double grad_clip = 0.0;  // 0: off
  bool batch_scaling = false;

  bool operator==(const OptimConfig&) const = default;
};

struct DistConfig {
  std::string backend = "auto";  // auto | self | mpi | gloo
  double timeout_s = 600.0;      // of every wait for another rank
  // The place of this process, instead of what the launcher says: all four or none. auto: the
  // launcher's.
  Auto<int64_t> rank, world_size, local_rank, local_size;
  // Where rank 0 serves the rendezvous store; auto: as the launcher says.
  std::string master_addr = "auto";
  Auto<int64_t> master_port;
  std::string interface = "auto";  // that this host's ranks use; auto: the route to rank 0
  std::string shard = "optimizer";  // none | optimizer | gradients
  double bucket_mb = 4;             // gradients that travel together, MiB

  bool operator==(const DistConfig&) const = default;
};

// What `heddle plan` assumes; a run itself is as large as its launcher makes it.
struct PlanConfig {
  int64_t nodes = 1;
  int64_t ranks_per_node = 1;
  std::string device = "cpu";

  bool operator==(const PlanConfig&) const = default;
};

struct CheckpointConfig {
  int64_t every = 0;  // steps; 0: only at the end
  int64_t keep = 2;
  bool at_end = true;

  bool operator==(const CheckpointConfig&) const = default;
};

struct LogConfig {
  std::string name = "run";
  std::string dir = "runs";
  int64_t every = 10;

  bool operator==(const LogConfig&) const = default;
};

struct Config {
  ModelConfig model;
  AttentionConfig attention;
  DataConfig data;
  TrainConfig train;
  DeviceConfig device;
  OptimConfig optim;
  DistConfig dist;
  CheckpointConfig checkpoint;
  LogConfig log;
  PlanConfig plan;

  bool operator==(const Config&) const = default;
};

}  // namespace heddle

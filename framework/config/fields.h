// The one list of fields. visit_fields(section, visitor) calls
//   visitor.field(name, value, Rule, help)
// for every field of a section in the order users read them; visit_sections(config, visitor) calls
//   visitor.section(name, section, help).
// Append new fields here and nowhere else.
#pragma once

#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/config/config.h"

namespace heddle {

// Limits of one field. Numbers: min <= value <= max. Strings: one of `choices`, where an entry in
// angle brackets stands for free text: "<path>" is not empty, "<name>" can also name a folder.
struct Rule {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  std::vector<std::string_view> choices = {};
  bool above_min = false;  // min itself is not allowed
  bool below_max = false;  // max itself is not allowed
};

inline Rule at_least(double min) {
  return {.min = min};
}
inline Rule above(double min) {
  return {.min = min, .above_min = true};
}
inline Rule between(double min, double max) {
  return {.min = min, .max = max};
}
inline Rule from_to_below(double min, double max) {
  return {.min = min, .max = max, .below_max = true};
}
inline Rule one_of(std::vector<std::string_view> choices) {
  return {.choices = std::move(choices)};
}
inline Rule any() {
  return {};
}

template <class V>
void visit_fields(ModelConfig& c, V& v) {
  v.field("n_layer", c.n_layer, between(1, 10000), "transformer blocks");
  v.field("n_head", c.n_head, between(1, 65536), "query heads");
  v.field("n_kv_head", c.n_kv_head, between(1, 65536),
          "key/value heads, a divisor of n_head; auto: n_head");
  v.field("n_embd", c.n_embd, between(1, 1 << 24),
          "width of the residual stream, n_head times head_dim");
  v.field("sequence_len", c.sequence_len, between(2, 1 << 30), "tokens of a training sequence");
  v.field("vocab_size", c.vocab_size, between(2, 1 << 30), "token ids; auto: the tokenizer's");
  v.field("window_pattern", c.window_pattern, any(),
          "letters S (quarter of sequence_len, up to a multiple of 128) and L (all) tiled over the "
          "layers, last layer always L; or a list of window_left numbers, one or one per layer");
  v.field("rope_base", c.rope_base, above(1), "base of the rotary frequencies");
  v.field("qk_norm", c.qk_norm, any(), "RMS norm of q and k after RoPE");
  v.field("qk_scale", c.qk_scale, above(0), "factor on q and on k after the norm");
  v.field("softcap", c.softcap, at_least(0), "logits become softcap*tanh(logit/softcap); 0: off");
  v.field("smear", c.smear, any(), "mix a gated part of the previous token's embedding in");
  v.field("backout", c.backout, any(), "subtract a learned part of the middle residual at the end");
  v.field("value_embeds", c.value_embeds, any(), "gated value embeddings in every other layer");
  v.field("resid_lambdas", c.resid_lambdas, any(), "learned factor on each block's input");
  v.field("x0_lambdas", c.x0_lambdas, any(), "learned factor on the embedding added to each block");
}

template <class V>
void visit_fields(AttentionConfig& c, V& v) {
  v.field("backend", c.backend, one_of({"auto", "<name>"}),
          "attention plugin; auto takes the best one that can serve and says why");
  v.field("plugin_path", c.plugin_path, any(),
          "folders or .so files searched before HEDDLE_PLUGIN_PATH and the built-in folder");
  v.field("validate", c.validate, any(),
          "check every attention call: canaries, NaN scans, comparisons; slow, for finding faults");
  v.field("validate_every", c.validate_every, at_least(1),
          "with validate: calls of a problem between two comparisons with the fp64 reference");
}

template <class V>
void visit_fields(DataConfig& c, V& v) {
  v.field("kind", c.kind, one_of({"auto", "recall", "text", "jsonl", "tokens"}),
          "what path holds; auto: from its name (.txt, .jsonl, .bin), recall when there is none");
  v.field("path", c.path, any(),
          "file, or folder of such files; empty: the embedded recall corpus");
  v.field("val_path", c.val_path, any(), "validation data; empty: the end of path");
  v.field("val_fraction", c.val_fraction, between(0, 0.5),
          "share at the end of path that is kept for validation, when val_path is empty");
  v.field("document", c.document, one_of({"file", "paragraph"}),
          "what a document is in a .txt: the file, or what blank lines separate");
  v.field("cache_dir", c.cache_dir, one_of({"auto", "<path>"}),
          "where tokenised shards are kept; auto: $XDG_CACHE_HOME/heddle or ~/.cache/heddle");
  v.field("seed", c.seed, at_least(0), "seed of the order of samples and of the recall stories");
}

template <class V>
void visit_fields(TrainConfig& c, V& v) {
  v.field("num_iterations", c.num_iterations, at_least(0), "optimizer steps");
  v.field("device_batch_size", c.device_batch_size, between(1, 1 << 24),
          "sequences of one micro-step on one rank, at most");
  v.field("total_batch_size", c.total_batch_size, between(1, 1LL << 40),
          "tokens of one optimizer step over all ranks, a multiple of model.sequence_len");
  v.field("eval_every", c.eval_every, at_least(0), "steps between evaluations; 0: only at the end");
  v.field("eval_tokens", c.eval_tokens, at_least(0),
          "validation tokens of one evaluation; 0: evaluate never");
  v.field("sample_every", c.sample_every, at_least(0),
          "steps between text samples; 0: only at the end");
  v.field("sample_tokens", c.sample_tokens, at_least(0), "tokens of a sample; 0: no samples");
  v.field("threads", c.threads, between(0, 4096),
          "compute threads of a rank; 0: its processors, shared with the ranks of the same host");
  v.field("seed", c.seed, at_least(0), "seed of the initial weights and of sampling");
  v.field("resume", c.resume, one_of({"never", "auto", "<path>"}),
          "auto: continue the newest complete checkpoint of log.dir/log.name; or a checkpoint");
  v.field("init_from", c.init_from, any(),
          "checkpoint folder or .safetensors file whose weights replace the initial ones");
  v.field("peak_flops", c.peak_flops, above(0),
          "FLOP/s of one rank that MFU is measured against; auto: an FMA burst at start");
  v.field("reproducible", c.reproducible, any(),
          "same bits for every number of ranks, micro-batch and threads: one sequence at a time, "
          "gradients summed exactly (16 more bytes a parameter, slower)");
}

template <class V>
void visit_fields(DeviceConfig& c, V& v) {
  v.field("kind", c.kind, one_of({"auto", "cpu", "cuda"}),
          "what a rank computes on; auto: a CUDA device where there is one, else the CPU");
  v.field("precision", c.precision, one_of({"auto", "fp32", "bf16"}),
          "of products and attention on CUDA, weights stay fp32; auto: bf16. A CPU computes in fp32");
  v.field("cuda_graph", c.cuda_graph, one_of({"auto", "always", "never"}),
          "record a micro-step and an update once and launch them as CUDA graphs; auto: where that "
          "is possible (one rank, no attention.validate, a plugin that does not allocate)");
}

template <class V>
void visit_fields(OptimConfig& c, V& v) {
  v.field("kind", c.kind, one_of({"muon", "adamw"}),
          "muon: Muon for matrices and AdamW for the rest, as nanochat; adamw: AdamW for all");
  v.field("schedule", c.schedule, one_of({"auto", "warmdown", "cosine"}),
          "warmdown: constant, then linear; auto: warmdown for muon, cosine for adamw");
  v.field("unembedding_lr", c.unembedding_lr, at_least(0), "base rate of lm_head");
  v.field("embedding_lr", c.embedding_lr, at_least(0),
          "base rate of wte; value embeddings use half");
  v.field("scalar_lr", c.scalar_lr, at_least(0), "base rate of the lambdas");
  v.field("matrix_lr", c.matrix_lr, at_least(0), "rate of Muon");
  v.field(
      "weight_decay", c.weight_decay, at_least(0),
      "muon: cautious decay of the matrices, falling as a cosine; adamw: decay of all matrices");
  v.field("warmup_steps", c.warmup_steps, at_least(0), "steps over which the rates rise");
  v.field("warmdown_ratio", c.warmdown_ratio, between(0, 1),
          "share of the steps at the end over which the rates fall");
  v.field("final_lr_frac", c.final_lr_frac, between(0, 1), "rate at the end as a share");
  v.field("muon_momentum_start", c.muon_momentum_start, from_to_below(0, 1), "momentum at step 0");
  v.field("muon_momentum", c.muon_momentum, from_to_below(0, 1), "momentum after its warmup");
  v.field("muon_momentum_final", c.muon_momentum_final, from_to_below(0, 1),
          "momentum at the end of the warmdown");
  v.field("muon_momentum_warmup_steps", c.muon_momentum_warmup_steps, at_least(1),
          "steps over which the momentum rises");
  v.field("adamw_lr", c.adamw_lr, at_least(0), "kind adamw: the rate");
  v.field("adamw_beta1", c.adamw_beta1, from_to_below(0, 1), "kind adamw: decay of the mean");
  v.field("adamw_beta2", c.adamw_beta2, from_to_below(0, 1), "kind adamw: decay of the square");
  v.field("adamw_eps", c.adamw_eps, above(0), "kind adamw: added to the root");
  v.field("grad_clip", c.grad_clip, at_least(0), "global gradient norm is cut to this; 0: off");
  v.field("batch_scaling", c.batch_scaling, any(),
          "scale rates and decay with total_batch_size by nanochat's rules");
}

template <class V>
void visit_fields(DistConfig& c, V& v) {
  v.field(
      "backend", c.backend, one_of({"auto", "self", "mpi", "gloo", "nccl"}),
      "how ranks talk; auto: nccl on CUDA devices, mpi under mpirun or srun with PMI, gloo under "
      "other launchers, self when alone");
  v.field("timeout_s", c.timeout_s, between(1, 86400),
          "seconds that any wait for another rank may take before the run ends");
  v.field("rank", c.rank, between(0, 1 << 20),
          "place of this process, with world_size, local_rank, local_size; auto: the launcher's");
  v.field("world_size", c.world_size, between(1, 1 << 20), "processes; auto: the launcher's");
  v.field("local_rank", c.local_rank, between(0, 1 << 20),
          "place among the processes of this host; auto: the launcher's");
  v.field("local_size", c.local_size, between(1, 1 << 20),
          "processes of this host; auto: the launcher's");
  v.field("master_addr", c.master_addr, one_of({"auto", "<name>"}),
          "name or address of rank 0's host; auto: the launcher's");
  v.field("master_port", c.master_port, between(1, 65535),
          "port of rank 0's rendezvous store; auto: from the launcher's");
  v.field("interface", c.interface, one_of({"auto", "<name>"}),
          "network interface of this host that its ranks use, such as eth0; auto: the one that "
          "leads to rank 0");
  v.field("shard", c.shard, one_of({"none", "optimizer", "gradients"}),
          "what ranks divide among them: nothing, optimizer state and updates, or gradients too");
  v.field("bucket_mb", c.bucket_mb, between(0, 4096),
          "MiB of gradients that travel together, in whole layers, at least one");
}

template <class V>
void visit_fields(CheckpointConfig& c, V& v) {
  v.field("every", c.every, at_least(0), "steps between checkpoints; 0: only at the end");
  v.field("keep", c.keep, at_least(1), "newest checkpoints that stay on disk");
  v.field("at_end", c.at_end, any(), "save after the last step");
}

template <class V>
void visit_fields(LogConfig& c, V& v) {
  v.field("name", c.name, one_of({"<name>"}), "name of the run; its folder is log.dir/log.name");
  v.field("dir", c.dir, one_of({"<path>"}), "folder of all runs");
  v.field("every", c.every, at_least(1), "steps between progress lines in a file");
}

template <class V>
void visit_fields(PlanConfig& c, V& v) {
  v.field("nodes", c.nodes, between(1, 1 << 20), "hosts");
  v.field("ranks_per_node", c.ranks_per_node, between(1, 65536), "ranks on each host, one a device");
  v.field("device", c.device, one_of({"cpu", "a100", "h100", "h200"}),
          "what a rank computes on; cpu: this machine's processors, shared by the ranks of a host");
}

template <class V>
void visit_sections(Config& c, V& v) {
  v.section("model", c.model, "the network; nanochat's GPT unless switched off");
  v.section("attention", c.attention, "which plugin computes attention");
  v.section("data", c.data, "what is read");
  v.section("train", c.train, "steps, batches, evaluation");
  v.section("device", c.device, "what a rank computes on");
  v.section("optim", c.optim, "optimizer and schedules");
  v.section("dist", c.dist, "ranks");
  v.section("checkpoint", c.checkpoint, "what is saved");
  v.section("log", c.log, "where a run writes");
  v.section("plan", c.plan, "the machines that heddle plan predicts for; training ignores it");
}

}  // namespace heddle

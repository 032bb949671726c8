// What a training step on CUDA asks of the host: where it waits, what it allocates, and that a
// recorded step does what one does that is enqueued operation by operation.
#include <cuda_emulator.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "framework/comm/self/self_communicator.h"
#include "framework/core/error.h"
#include "framework/core/rng.h"
#include "framework/optim/sharded_step.h"
#include "tests/cuda_emulator/emulated_device.h"

namespace heddle::testing {
namespace {

constexpr int64_t kSeqLen = 16, kVocab = 48, kMicroSteps = 2, kSteps = 3;

Config small_config() {
  Config c;
  c.model.n_layer = 2;
  c.model.n_head = 2;
  c.model.n_kv_head = 1;
  c.model.n_embd = 32;
  c.model.sequence_len = kSeqLen;
  c.model.vocab_size = kVocab;
  c.optim.warmup_steps = kSteps;  // the rates change from step to step
  c.train.num_iterations = kSteps;
  c.train.total_batch_size = 2 * kMicroSteps * kSeqLen;
  return c;
}

// A rank alone, as the trainer has it.
struct Rank {
  explicit Rank(const std::string& cuda_graph)
      : host("bf16", cuda_graph),
        spec(resolve_model(config.model, 0)),
        comm(make_self_communicator()),
        ownership(make_ownership(config, spec, 1)),
        model(spec, *host.device, *host.attention, 2, kSeqLen, true),
        optimizer(config.optim,
                  plan_optimizer(config.optim, ownership, ShardLevel::kNone, 0,
                                 config.train.total_batch_size),
                  kSteps, *host.device),
        sharded({.micro_steps = kMicroSteps}, ownership, model, optimizer, *comm) {
    model.init_params(3);
  }

  // Two micro-steps; the second one has `last_batch` sequences.
  void step(int64_t iteration, int64_t last_batch = 2) {
    sharded.begin();
    for (int64_t micro = 0; micro < kMicroSteps; ++micro) {
      const bool last = micro == kMicroSteps - 1;
      Rng rng(static_cast<uint64_t>(10 * iteration + micro), "step");
      std::vector<int32_t> ids(2 * kSeqLen + 1);
      for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(kVocab));
      sharded.begin_micro_step(last);
      sharded.end_micro_step(
          model.forward_backward(ids.data(), ids.data() + 1, last ? last_batch : 2));
    }
    const StepTotals totals = sharded.reduce(0);
    nats = totals.nats;
    grad_squares = totals.grad_squares;
    sharded.update(iteration, 1.0f / static_cast<float>(totals.tokens));
  }
  double evaluate() {
    const std::vector<int32_t> ids(kSeqLen + 1, 7);
    return model.evaluate(ids.data(), ids.data() + 1, 1).nats;
  }
  std::vector<float> parameters() const {
    std::vector<float> all(static_cast<size_t>(model.layout().total()));
    host.device->download(all.data(), model.params(), all.size() * sizeof(float));
    return all;
  }

  const Config config = small_config();
  EmulatedHost host;
  ModelSpec spec;
  std::unique_ptr<Communicator> comm;
  Ownership ownership;
  Gpt model;
  Optimizer optimizer;
  ShardedStep sharded;
  double nats = 0, grad_squares = 0;  // of the last step
};

// docs/cuda.md, "Where the host waits" and "Graphs".
TEST(CudaStep, OneByOneAndRecorded) {
  Rank plain("never"), recorded("always");
  const auto counted = [](Rank& rank, int64_t it) {
    emulator::reset_counters();
    rank.step(it);
    return emulator::counters();
  };
  for (int64_t it = 0; it < kSteps; ++it) {
    const emulator::Counters a = counted(plain, it), b = counted(recorded, it);
    // The rates change from step to step: a record that kept them would be seen.
    EXPECT_EQ(recorded.nats, plain.nats) << "step " << it;
    EXPECT_EQ(recorded.grad_squares, plain.grad_squares) << "step " << it;
    // The losses of every micro-step, and the norm.
    EXPECT_EQ(a.synchronisations, kMicroSteps + 1);
    EXPECT_EQ(b.synchronisations, kMicroSteps + 1);
    EXPECT_EQ(b.launches, a.launches);  // the device does the same
    EXPECT_EQ(a.graphs, 0);
    if (it == 0) continue;
    // Scratch has its size after the first step, and nothing is allocated any more.
    EXPECT_EQ(a.allocations, 0);
    EXPECT_EQ(b.allocations, 0);
    EXPECT_EQ(b.graphs, kMicroSteps + 2);  // passes, AdamW, Muon
    // A micro-step: tokens, targets, the graph, losses and a status back. A step: clearing
    // gradients, two kernels for every 128 pieces of the norm, sums and a status back, the rates
    // and graphs of both optimizers.
    const auto pieces = static_cast<int64_t>(recorded.ownership.norm_pieces().size());
    EXPECT_EQ(b.enqueued, kMicroSteps * 5 + 7 + 2 * ((pieces + 127) / 128));
    EXPECT_GT(a.enqueued, 10 * b.enqueued);
  }
  EXPECT_EQ(recorded.evaluate(), plain.evaluate());
  const std::vector<float> a = recorded.parameters(), b = plain.parameters();
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Only launch() starts kernels, and nobody may drop what it returns: it and the functions of
// kernels/cuda/ops are [[nodiscard]], CI compiles with -Werror, and plugin_test.cpp lets every launch
// of an attention call fail.
TEST(CudaStep, LaunchIsTheOnlyWayToStartAKernel) {
  int files = 0;
  const std::string root = HEDDLE_SOURCE_DIR;
  for (const char* folder : {"/kernels/cuda", "/framework/device/cuda", "/plugins/cuda_flash"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root + folder)) {
      if (!entry.is_regular_file() || entry.path().filename() == "launch.h") continue;
      const std::string text = text_of(entry.path().string());
      ++files;
      for (const char* way : {"<<<", "cudaLaunch"}) {
        EXPECT_EQ(text.find(way), std::string::npos) << entry.path() << " has " << way;
      }
    }
  }
  EXPECT_GT(files, 20);
  const std::string launch = text_of(root + "/kernels/cuda/hardware/launch.h");
  EXPECT_NE(launch.find("[[nodiscard]] cudaError_t launch("), std::string::npos);
}

// Batches of another size are recorded on their own; larger scratch makes old records void.
TEST(CudaStep, AnotherBatchAndMovedScratch) {
  Rank plain("never"), recorded("always");
  for (int64_t it = 0; it < kSteps; ++it) {
    if (it == 1) {
      for (Rank* rank : {&plain, &recorded}) {  // a product larger than any of the model
        const DeviceBuffer x = rank->host.device->allocate(1 << 22, "test");
        auto* data = static_cast<float*>(x.get());
        rank->host.device->ops().matmul(matrix(data, 1000, 500), false, matrix(data, 8, 500), true,
                                        matrix(data + 600000, 1000, 8));
      }
    }
    plain.step(it, 1 + it % 2);
    recorded.step(it, 1 + it % 2);
    EXPECT_EQ(recorded.nats, plain.nats) << it;
  }
}

// What waits cannot be recorded: device.cuda_graph auto goes on without, always says so.
TEST(CudaStep, WhatCannotBeRecorded) {
  const auto device = emulated_device("fp32", "auto");
  const DeviceBuffer x = device->allocate(64, "x");
  auto* data = static_cast<float*>(x.get());
  const auto replay = device->make_replay();
  const auto body = [&] {
    device->ops().relu2_forward(data, 16);
    device->synchronize();
  };
  for (int i = 0; i < 3; ++i) replay->run(body);
  emulator::reset_counters();
  replay->run(body);
  EXPECT_EQ(emulator::counters().graphs, 0);
  EXPECT_EQ(emulator::counters().launches, 1);

  const auto strict = emulated_device("fp32", "always");
  const auto required = strict->make_replay();
  const auto waits = [&] { strict->synchronize(); };
  required->run(waits);
  EXPECT_THROW(required->run(waits), Error);
  strict->synchronize();  // the stream is as it was
  EXPECT_EQ(emulated_device("fp32", "never")->make_replay(), nullptr);
}

TEST(CudaStep, SaysWhyAModelIsNotRecorded) {
  EXPECT_EQ(Rank("auto").model.replay_refusal(), "");
  EXPECT_NE(Rank("never").model.replay_refusal().find("does not record"), std::string::npos);
  EmulatedHost host("bf16", "auto");
  AttentionConfig config = EmulatedHost::config();
  config.validate = true;
  const auto validated = AttentionHost::create(config, *host.device);
  EXPECT_NE(validated->replay_refusal().find("attention.validate"), std::string::npos);
}

}  // namespace
}  // namespace heddle::testing

#include "framework/config/dump.h"

#include <gtest/gtest.h>

#include <map>

#include "framework/config/fields.h"
#include "framework/config/load.h"
#include "framework/config/value.h"

namespace heddle {
namespace {

struct Values {
  std::map<std::string, std::string> of_key;
  std::string current;

  template <class S>
  void section(std::string_view name, S& section, std::string_view) {
    current = name;
    visit_fields(section, *this);
  }
  template <class T>
  void field(std::string_view name, T& value, const Rule&, std::string_view) {
    of_key[current + "." + std::string(name)] = config_internal::format_value(value);
  }
};

std::map<std::string, std::string> values_of(Config config) {
  Values values;
  visit_sections(config, values);
  return values.of_key;
}

// A legal configuration that differs from the default in every field.
Config everything_changed() {
  Config c;
  c.model = {.n_layer = 3,
             .n_head = 6,
             .n_kv_head = 2,
             .n_embd = 96,
             .sequence_len = 128,
             .vocab_size = 300,
             .window_pattern = {.windows = {64, -1, 0}},
             .rope_base = 12345.678,
             .qk_norm = false,
             .qk_scale = 1.0 / 3.0,
             .softcap = 0,
             .smear = false,
             .backout = false,
             .value_embeds = false,
             .resid_lambdas = false,
             .x0_lambdas = false};
  c.attention = {.backend = "my_flash.v2",
                 .plugin_path = {"a/b.so", "with space", "-x", "null"},
                 .validate = true,
                 .validate_every = 7};
  c.data = {.kind = "text",
            .path = "données/\"quoted\"\\file: #1.txt",
            .val_path = "~",
            .val_fraction = 0.125,
            .document = "paragraph",
            .cache_dir = "/tmp/c",
            .seed = 9223372036854775807};
  c.train = {.num_iterations = 7,
             .device_batch_size = 3,
             .total_batch_size = 1280,
             .eval_every = 9,
             .eval_tokens = 1000,
             .sample_every = 11,
             .sample_tokens = 0,
             .threads = 2,
             .seed = 0,
             .resume = "runs/x/checkpoints/step-5",
             .init_from = "true",
             .peak_flops = 1.6e11,
             .reproducible = true};
  c.device = {.kind = "cuda", .precision = "bf16", .cuda_graph = "never"};
  c.optim = {.kind = "adamw",
             .schedule = "cosine",
             .unembedding_lr = 1e-5,
             .embedding_lr = 0,
             .scalar_lr = 0.1,
             .matrix_lr = 5e-324,
             .weight_decay = 1e22,
             .warmup_steps = 1,
             .warmdown_ratio = 1,
             .final_lr_frac = 0.0,
             .muon_momentum_start = 0.1,
             .muon_momentum = 0.2,
             .muon_momentum_final = 0.3,
             .muon_momentum_warmup_steps = 1,
             .adamw_lr = 1e-4,
             .adamw_beta1 = 0.8,
             .adamw_beta2 = 0.99,
             .adamw_eps = 1e-10,
             .grad_clip = 1.5,
             .batch_scaling = true};
  c.dist = {.backend = "self",
            .timeout_s = 5.5,
            .rank = 1,
            .world_size = 4,
            .local_rank = 1,
            .local_size = 2,
            .master_addr = "fd00::1",
            .master_port = 29501,
            .interface = "eth0",
            .shard = "none",
            .bucket_mb = 0.5};
  c.checkpoint = {.every = 10, .keep = 5, .at_end = false};
  c.log = {.name = "2024", .dir = "/var/runs", .every = 1};
  c.plan = {.nodes = 2, .ranks_per_node = 8, .device = "h100"};
  return c;
}

TEST(Dump, EveryFieldComesBack) {
  const Config changed = everything_changed();
  const auto defaults = values_of(Config{});
  for (const auto& [key, value] : values_of(changed)) {
    EXPECT_NE(value, defaults.at(key)) << "everything_changed() must change " << key;
  }
  const std::string text = dump_config(changed);
  EXPECT_EQ(parse_config(text, "dump.yaml"), changed) << text;
}

TEST(Dump, DefaultsComeBackWithAutoAsGiven) {
  const std::string text = dump_config(Config{});
  EXPECT_EQ(parse_config(text, "dump.yaml"), Config{}) << text;
  EXPECT_NE(text.find("model:\n  n_layer: 4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  n_kv_head: auto\n"), std::string::npos);
  EXPECT_NE(text.find("  path: \"\"\n"), std::string::npos);
}

TEST(Dump, EveryFieldCanBeOverridden) {
  const Config changed = everything_changed();
  std::vector<std::string> overrides;
  for (const auto& [key, value] : values_of(changed)) overrides.push_back(key + "=" + value);
  EXPECT_EQ(parse_config("", "empty.yaml", overrides), changed);
}

}  // namespace
}  // namespace heddle

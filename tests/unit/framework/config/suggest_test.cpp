#include "framework/config/suggest.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace heddle::config_internal {
namespace {

TEST(Suggest, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("trian", "train"), 1u) << "a swap is one slip";
  EXPECT_EQ(edit_distance("ca", "abc"), 3u) << "optimal string alignment";
}

TEST(Suggest, NearestIgnoresWhatIsFar) {
  EXPECT_EQ(nearest("adam", {"muon", "adamw"}), "adamw");
  EXPECT_EQ(nearest("sgd", {"muon", "adamw"}), "");
}

TEST(Suggest, FindsTheKeyThatWasMeant) {
  struct Row {
    const char* unknown;
    const char* expected;
  };
  const Row rows[] = {
      {"model.n_kv_heads", "Did you mean model.n_kv_head?"},
      {"model.num_key_value_heads", "Did you mean model.n_kv_head?"},
      {"model.n-kv-head", "Did you mean model.n_kv_head?"},
      {"model.N_Layer", "Did you mean model.n_layer?"},
      {"model.hidden_size", "Did you mean model.n_embd?"},
      {"model.window_patern", "Did you mean model.window_pattern?"},
      {"model.head_dim", "head_dim is model.n_embd / model.n_head: set model.n_embd"},
      {"model.warmup_steps", "Did you mean optim.warmup_steps?"},
      {"n_layer", "Did you mean model.n_layer?"},
      {"n_heads", "Did you mean model.n_head?"},
      {"trian.seed", "Did you mean train.seed?"},
      {"trian", "Did you mean train?"},
      {"optimizer", "Did you mean optim?"},
      {"optimizer.matrix_lr", "Did you mean optim.matrix_lr?"},
      {"eval.every", "Did you mean train.eval_every?"},
      {"seed", "Did you mean data.seed or train.seed?"},
      {"optim.max_grad_norm", "Did you mean optim.grad_clip?"},
      {"model.n_layer:4", "Write a space after the colon"},
      {"model.zzzzzzzz", ""},
  };
  for (const Row& row : rows) EXPECT_EQ(suggest_key(row.unknown), row.expected) << row.unknown;
  EXPECT_NE(suggest_key("train.global_batch_size").find("train.total_batch_size (tokens"),
            std::string::npos);
  EXPECT_NE(suggest_key("train.batch_size").find("train.device_batch_size"), std::string::npos);
}

TEST(Suggest, NeverNamesAKeyThatDoesNotExist) {
  for (const char* unknown :
       {"model.depth", "model.rope_theta", "train.steps", "optim.lr", "train.micro_batch_size",
        "run.run_name", "log.log_freq", "checkpoint.keep_latest_k", "attention.attn_impl",
        "train.load", "optim.alpha_f", "model.block_size"}) {
    const std::string text = suggest_key(unknown);
    const std::string prefix = "Did you mean ";
    ASSERT_TRUE(text.starts_with(prefix)) << unknown << ": " << text;
    const std::string key =
        text.substr(prefix.size(), text.find_first_of(" ?", prefix.size()) - prefix.size());
    const auto& keys = all_keys();
    EXPECT_NE(std::find(keys.begin(), keys.end(), key), keys.end()) << text;
  }
}

}  // namespace
}  // namespace heddle::config_internal

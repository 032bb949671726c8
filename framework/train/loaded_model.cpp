#include "framework/train/loaded_model.h"

#include "framework/checkpoint/checkpoint.h"
#include "framework/config/load.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/device/make_device.h"
#include "framework/train/snapshot.h"

namespace heddle {
namespace {

// Rows of a pass while prompts are read; longer prompts go through in pieces.
constexpr int64_t kDecodePiece = 256;

}  // namespace

LoadedModel load_model(const std::string& checkpoint_path, const LoadOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(checkpoint_path);
  const std::string origin = checkpoint.path() + "/state.json";
  const json::object& state = checkpoint.state();
  for (const char* key : {"model", "tokenizer", "config"}) {
    if (!state.contains(key)) {
      throw environment_error("checkpoint", origin + " lacks \"" + key + "\"",
                              "use a checkpoint that heddle train wrote");
    }
  }

  LoadedModel loaded;
  loaded.path = checkpoint.path();
  loaded.step = checkpoint.step();
  loaded.config = parse_config(std::string(state.at("config").as_string()), origin);
  loaded.tokenizer = make_tokenizer(std::string(state.at("tokenizer").as_string()));
  const ModelSpec spec = spec_from_json(state.at("model"), origin);

  AttentionConfig attention = loaded.config.attention;
  if (!options.attention_backend.empty()) attention.backend = options.attention_backend;
  set_num_threads(static_cast<int>(options.threads));
  // A model that was trained on another device runs on what is here.
  DeviceConfig device = loaded.config.device;
  if (device.kind == "cuda") device.kind = "auto";
  if (device.precision == "bf16") device.precision = "auto";
  loaded.device = make_device(device);
  loaded.attention = AttentionHost::create(attention, *loaded.device);
  const int64_t len =
      options.only_decode ? std::min(spec.sequence_len, kDecodePiece) : spec.sequence_len;
  loaded.model =
      std::make_unique<Gpt>(spec, *loaded.device, *loaded.attention, options.batch, len, false);
  load_model_weights(checkpoint.model(), *loaded.model);
  return loaded;
}

}  // namespace heddle

// Checkpoints: one folder per saved step,
//   checkpoints/step-000180/  model.safetensors      weights under nanochat's names
//                             optimizer.safetensors  optimizer state, keyed by logical tensor
//                             state.json             where the run stood
//                             manifest.json          sizes and checksums, written last
// A folder is written under the name .tmp-step-000180, made durable and renamed, so a checkpoint is
// complete or invisible. Nothing in it depends on the number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint/safetensors.h"
#include "framework/core/json.h"

namespace heddle {

// What save_checkpoint() writes. Tensors are the caller's memory. `state` holds whatever the
// trainer needs to go on; "step" and "heddle_version" are added. Doubles in it come back to the
// bit; JSON has no NaN and no infinity, they are stored as null.
struct CheckpointContents {
  int64_t step = 0;
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> optimizer;
  json::object state;
};

// Writes `folder`/step-N (folder: a run's checkpoints/, created when missing) and returns its path.
// Called by one process. Once the new checkpoint is durable, complete ones beyond the newest `keep`
// are removed (keep <= 0: none are). An existing step-N is replaced without a moment at which
// neither is loadable. When anything fails: heddle::Error (environment) that says why and that the
// previous checkpoint stands, and the temporary folder is gone.
std::string save_checkpoint(const std::string& folder, const CheckpointContents& contents,
                            int64_t keep);

// A checkpoint whose every file has been compared with its manifest.
class Checkpoint {
 public:
  // `path` is a step folder, a checkpoints folder or a run folder; of the latter two the newest
  // valid checkpoint is taken and skipped ones are logged. Throws heddle::Error (environment) when
  // there is none, or when the step folder is incomplete or damaged: naming the file, what was got
  // and expected, and the newest earlier checkpoint that is good.
  static Checkpoint open(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t step() const { return step_; }
  const TensorSet& model() const { return model_; }
  const TensorSet& optimizer() const { return optimizer_; }
  const json::object& state() const { return state_; }

 private:
  explicit Checkpoint(std::string path);
  static Checkpoint open_verified(const std::string& step_folder);
  friend std::optional<Checkpoint> open_newest(const std::string&, std::string*);

  std::string path_;
  int64_t step_ = 0;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  TensorSet model_, optimizer_;
  json::object state_;
};

// The newest complete and valid checkpoint of a checkpoints folder. Nothing when the folder holds
// none at all; throws when it holds some but none that can be read, because going on from nothing
// would throw work away silently. *skipped gets a line for each newer one that was passed over,
// with the reason and the one taken instead; empty when none was.
std::optional<Checkpoint> open_newest(const std::string& checkpoints_folder, std::string* skipped);

// Steps that have a folder (complete or not), newest first.
struct CheckpointFolder {
  int64_t step;
  std::string path;
};
std::vector<CheckpointFolder> list_checkpoints(const std::string& checkpoints_folder);

}  // namespace heddle

// Checkpoints: one folder per saved step,
//   checkpoints/step-000180/  model.safetensors      weights under nanochat's names
//                             optimizer.safetensors  optimizer state, keyed by logical tensor;
//                                                    of N ranks that divide it, one file each:
//                                                    optimizer-00001-of-0000N.safetensors
//                             state.json             where the run stood
//                             manifest.json          sizes and checksums, written last
// A folder is written under the name .tmp-step-000180, made durable and renamed, so a checkpoint is
// complete or invisible. Any number of ranks reads what any other number wrote: a tensor of which a
// rank wrote elements [12, 24) only is there as "NAME[12:24]".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint/safetensors.h"
#include "framework/comm/communicator.h"
#include "framework/core/json.h"

namespace heddle {

// What save_checkpoint() writes. Tensors are the caller's memory. `state` holds whatever the
// trainer needs to go on; "step" and "heddle_version" are added. Doubles in it come back to the
// bit; JSON has no NaN and no infinity, they are stored as null.
struct CheckpointContents {
  int64_t step = 0;
  std::vector<NamedTensor> model;      // rank 0's are written
  std::vector<NamedTensor> optimizer;  // what this rank has; no name on two ranks
  json::object state;
  std::vector<std::shared_ptr<void>> staged;  // host memory of tensors that live on a device
};

// Writes `folder`/step-N (folder: a run's checkpoints/, created when missing) and returns its path.
// Called by all ranks, on a file system that they share: each writes its part, rank 0 writes the
// manifest and gives the folder its name. Once the new checkpoint is durable, complete ones beyond the newest `keep`
// are removed (keep <= 0: none are). An existing step-N is replaced without a moment at which
// neither is loadable. When anything fails on any rank: heddle::Error (environment) on all of them,
// which says where, why and that the previous checkpoint stands, and the temporary folder is gone.
std::string save_checkpoint(Communicator& comm, const std::string& folder,
                            const CheckpointContents& contents, int64_t keep);

// How much of a checkpoint is compared with its manifest. kSizes: for ranks after the first, which
// has compared all bytes.
enum class Verify { kSizes, kContents };

class Checkpoint {
 public:
  // `path` is a step folder, a checkpoints folder or a run folder; of the latter two the newest
  // valid checkpoint is taken and skipped ones are logged. Throws heddle::Error (environment) when
  // there is none, or when the step folder is incomplete or damaged: naming the file, what was got
  // and expected, and the newest earlier checkpoint that is good.
  static Checkpoint open(const std::string& path, Verify verify = Verify::kContents);

  const std::string& path() const { return path_; }
  int64_t step() const { return step_; }
  const TensorSet& model() const { return model_; }
  const TensorSet& optimizer() const { return optimizer_; }
  const json::object& state() const { return state_; }

 private:
  explicit Checkpoint(std::string path);
  static Checkpoint open_verified(const std::string& step_folder, Verify verify);
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

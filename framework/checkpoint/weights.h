// Weights from wherever they are: a checkpoint of Heddle, or a bare safetensors file such as an
// export of nanochat's or a golden data file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/checkpoint/safetensors.h"

namespace heddle {

// Tensors under nanochat's parameter names. The prefix `_orig_mod.` (a compiled torch module) is
// stripped; in a file that has names beginning with `param/` only those count, without it.
class Weights : public TensorSet {
 public:
  // `path`: a .safetensors file, or what Checkpoint::open() takes. Throws heddle::Error
  // (environment).
  static Weights load(const std::string& path);

 private:
  using TensorSet::TensorSet;
  std::shared_ptr<const void> owner_;  // keeps the mapped files alive
};

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool optional = false;  // may be missing
};

// Throws one heddle::Error (environment) that names every missing tensor, every one too many and
// every one of another shape (the first eight of each).
void expect_tensors(const TensorSet& got, const std::vector<ExpectedTensor>& want);

}  // namespace heddle

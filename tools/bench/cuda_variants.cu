// Prints the table of attention variants as JSON, for sass_report.py: what a launch asks for is not
// in the compiled code. Needs no device.
#include <cstdio>

#include "kernels/cuda/attention/attention.h"

int main() {
  using namespace heddle::kernels::cuda;
  constexpr const char* kOperations[] = {"forward", "backward", "decode"};
  const char* separator = "[";
  for (const Variant& v : variants()) {
    std::printf(
        "%s{\"name\": \"%s\", \"op\": \"%s\", \"head_dim\": %d, \"warps\": %d, "
        "\"shared_bytes\": %zu}",
        separator, v.name, kOperations[static_cast<int>(v.op)], v.most_head_dim, v.warps,
        v.shared_bytes);
    separator = ",\n ";
  }
  std::printf("]\n");
}

#include "framework/comm/self/self_communicator.h"

#include "framework/core/error.h"

namespace heddle {
namespace {

class SelfCommunicator : public Communicator {
 public:
  SelfCommunicator() : Communicator(RankInfo{}) {}

  std::string_view backend() const override { return "self"; }
  std::string description() const override { return "self, one process"; }

  void all_reduce_sum(std::span<float>) override {}
  void all_reduce_sum(std::span<double>) override {}
  void reduce_scatter_sum(std::span<float> data, std::span<const int64_t> counts) override {
    check(data.size(), counts);
  }
  void reduce_scatter_sum(std::span<double> data, std::span<const int64_t> counts) override {
    check(data.size(), counts);
  }
  void all_gather(std::span<float> data, std::span<const int64_t> counts) override {
    check(data.size(), counts);
  }
  void all_gather(std::span<double> data, std::span<const int64_t> counts) override {
    check(data.size(), counts);
  }
  void all_gather(std::span<std::byte> data, std::span<const int64_t> counts) override {
    check(data.size(), counts);
  }
  void broadcast(std::span<std::byte>, int root) override {
    HEDDLE_CHECK(root == 0, "broadcast: no such rank");
  }
  void barrier() override {}
  void finish() override {}

 private:
  static void check(size_t elements, std::span<const int64_t> counts) {
    HEDDLE_CHECK(counts.size() == 1 && counts[0] == static_cast<int64_t>(elements),
                 "counts do not add up to the buffer");
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace heddle

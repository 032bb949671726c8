#include "framework/comm/self/self_communicator.h"

#include "framework/core/error.h"

namespace heddle {
namespace {

class SelfCommunicator : public Communicator {
 public:
  SelfCommunicator() : Communicator(RankInfo{}) {}

  std::string_view backend() const override { return "self"; }
  std::string description() const override { return "self, one process"; }

  void broadcast(std::span<std::byte>, int root) override {
    HEDDLE_CHECK(root == 0, "broadcast: no such rank");
  }
  void barrier() override {}
  void finish() override {}

 protected:
  void start(int64_t, Collective, Element, std::byte*, std::span<const int64_t>) override {}
  bool finished(int64_t) override { return true; }
  void wait(int64_t) override {}
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace heddle

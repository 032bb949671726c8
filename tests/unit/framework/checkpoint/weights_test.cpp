#include "framework/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/checkpoint/checkpoint.h"
#include "framework/core/error.h"
#include "tests/unit/framework/checkpoint/contents.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

using ::testing::AllOf;
using testing::Contents;
using ::testing::HasSubstr;
using ::testing::Not;
using test::MemoryFolder;

std::string mismatch(const TensorSet& got, const std::vector<ExpectedTensor>& want) {
  try {
    expect_tensors(got, want);
  } catch (const Error& e) {
    return e.what();
  }
  return "fits";
}

TEST(Weights, FromACheckpoint) {
  MemoryFolder temp;
  const Contents contents(20);
  const std::string path = save_checkpoint(testing::alone(), temp.path(), contents.all, 1);
  const Weights w = Weights::load(path);
  EXPECT_EQ(w.tensors().size(), 2u);
  EXPECT_TRUE(testing::same(w, contents.all.model[0]));
}

TEST(Weights, OutliveWhatTheyWereMovedFrom) {
  MemoryFolder temp;
  save_checkpoint(testing::alone(), temp.path(), Contents(20).all, 1);
  Weights a = Weights::load(temp.path());
  const Weights b = std::move(a);
  EXPECT_TRUE(testing::same(b, Contents(20).all.model[0]));
}

TEST(Weights, CompiledPrefixIsStripped) {
  MemoryFolder temp;
  const float x[] = {1, 2};
  SafetensorsWriter writer;
  writer.add({"_orig_mod.x0_lambdas", {2}, DType::kF32, x});
  writer.add({"resid_lambdas", {2}, DType::kF32, x});
  writer.write(temp / "m.safetensors");
  const Weights w = Weights::load(temp / "m.safetensors");
  EXPECT_EQ(w.tensor("x0_lambdas").f32()[1], 2.0f);
  EXPECT_TRUE(w.contains("resid_lambdas"));
}

TEST(Weights, TheSameNameWithAndWithoutPrefixIsRefused) {
  MemoryFolder temp;
  const float x[] = {1};
  SafetensorsWriter writer;
  writer.add({"_orig_mod.a", {1}, DType::kF32, x});
  writer.add({"a", {1}, DType::kF32, x});
  writer.write(temp / "m.safetensors");
  EXPECT_THROW(Weights::load(temp / "m.safetensors"), Error);
}

TEST(Weights, OfAReferenceFileOnlyTheParametersCount) {
  const Weights w = Weights::load(HEDDLE_SOURCE_DIR "/tests/golden/sssl_gqa.safetensors");
  EXPECT_EQ(w.tensor("transformer.wte.weight").shape, (std::vector<int64_t>{320, 64}));
  for (const auto& [name, t] : w.tensors()) {
    EXPECT_THAT(name, AllOf(Not(HasSubstr("/")), Not(HasSubstr("logits"))));
  }
}

TEST(Weights, MissingPathIsNamed) {
  try {
    Weights::load("/nowhere/model.safetensors");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kEnvironment);
    EXPECT_THAT(e.what(), HasSubstr("/nowhere/model.safetensors"));
  }
}

TEST(ExpectTensors, NamesEveryDifference) {
  MemoryFolder temp;
  const float x[6] = {};
  SafetensorsWriter writer;
  writer.add({"a", {2, 3}, DType::kF32, x});
  writer.add({"b", {6}, DType::kF32, x});
  writer.write(temp / "m.safetensors");
  const Weights w = Weights::load(temp / "m.safetensors");
  EXPECT_EQ(mismatch(w, {{"a", {2, 3}}, {"b", {6}}}), "fits");
  EXPECT_EQ(mismatch(w, {{"a", {2, 3}}, {"b", {6}}, {"c", {1}, true}}), "fits");
  EXPECT_THAT(mismatch(w, {{"a", {3, 2}}, {"c", {1}}, {"d", {1}}}),
              AllOf(HasSubstr("m.safetensors does not fit this model"), HasSubstr("missing c, d;"),
                    HasSubstr("not in this model b;"),
                    HasSubstr("of another shape a [2, 3] (expected [3, 2])")));
}

TEST(ExpectTensors, LongListsAreCutAtEight) {
  MemoryFolder temp;
  SafetensorsWriter writer;
  writer.write(temp / "m.safetensors");
  std::vector<ExpectedTensor> want;
  for (int i = 0; i < 20; ++i) want.push_back({"t" + std::to_string(i), {1}});
  EXPECT_THAT(mismatch(Weights::load(temp / "m.safetensors"), want),
              AllOf(HasSubstr("t7 and 12 more"), Not(HasSubstr("t8"))));
}

}  // namespace
}  // namespace heddle

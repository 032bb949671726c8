#include "framework/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "framework/core/crc32c.h"
#include "framework/core/error.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

class SafetensorsTest : public ::testing::Test {
 protected:
  void put(const std::string& bytes) { test::put_file(path_, bytes); }
  std::string get() { return test::get_file(path_); }
  // A file with this header text and this many zero bytes of data.
  void put_header(const std::string& header, size_t data_bytes) {
    const uint64_t n = header.size();
    put(std::string(reinterpret_cast<const char*>(&n), 8) + header + std::string(data_bytes, '\0'));
  }
  std::string refusal() {
    try {
      const SafetensorsFile file(path_);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kEnvironment);
      EXPECT_NE(std::string(e.what()).find(path_), std::string::npos) << e.what();
      return e.what();
    }
    return "accepted";
  }

  test::MemoryFolder folder_;
  std::string path_ = folder_ / "t.safetensors";
};

std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return out;
}

// {"x": F32[2] = [1, -2]} as the reference implementation writes it.
const char* const kVector =
    "38000000000000007b2278223a7b226474797065223a22463332222c227368617065223a5b325d2c22646174615f6f"
    "666673657473223a5b302c385d7d7d20200000803f000000c0";

TEST_F(SafetensorsTest, WriterReproducesThePublishedBytes) {
  const float x[] = {1.0f, -2.0f};
  SafetensorsWriter writer;
  writer.add({"x", {2}, DType::kF32, x});
  const auto written = writer.write(path_);
  const std::string bytes = get();
  EXPECT_EQ(bytes, from_hex(kVector));
  EXPECT_EQ(written.bytes, 72u);
  EXPECT_EQ(written.crc32c, crc32c(bytes.data(), bytes.size()));
  EXPECT_EQ(written.tensor_crc32c.at("x"), crc32c(x, 8));
}

TEST_F(SafetensorsTest, ReaderReadsThePublishedBytes) {
  put(from_hex(kVector));
  const SafetensorsFile file(path_);
  const auto& x = file.tensor("x");
  EXPECT_EQ(x.shape, std::vector<int64_t>{2});
  EXPECT_EQ(x.f32()[0], 1.0f);
  EXPECT_EQ(x.f32()[1], -2.0f);
}

TEST_F(SafetensorsTest, RoundTripOfEveryDTypeShapeAndMetadata) {
  const double f64[] = {0.1, -1e300};
  const float f32[] = {1, 2, 3, 4, 5, 6};
  const uint16_t half[] = {0x3c00, 0xc000, 0x0001};
  const uint16_t bf[] = {0x3f80, 0xc040};
  const int32_t i32[] = {-7};
  const int64_t i64[] = {1, -(int64_t{1} << 40)};
  const unsigned char u8[] = {1, 2, 3};
  SafetensorsWriter writer;
  writer.add({"u", {3}, DType::kU8, u8});
  writer.add({"b", {2, 3}, DType::kF32, f32});
  writer.add({"a", {}, DType::kF32, f32 + 4});
  writer.add({"h", {3}, DType::kF16, half});
  writer.add({"bf", {2, 1}, DType::kBF16, bf});
  writer.add({"i", {1}, DType::kI32, i32});
  writer.add({"l", {2}, DType::kI64, i64});
  writer.add({"d", {2}, DType::kF64, f64});
  writer.add({"none", {0, 5}, DType::kF32, nullptr});
  writer.set_metadata("format", "pt");
  writer.set_metadata("quote", "a\"b\\\n");
  const auto written = writer.write(path_);

  const SafetensorsFile file(path_);
  EXPECT_EQ(file.tensors().size(), 9u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("quote"), "a\"b\\\n");
  EXPECT_EQ(std::memcmp(file.tensor("b").data, f32, sizeof f32), 0);
  EXPECT_EQ(file.tensor("a").shape.size(), 0u);
  EXPECT_EQ(*file.tensor("a").f32(), 5.0f);
  EXPECT_EQ(std::memcmp(file.tensor("d").data, f64, sizeof f64), 0);
  EXPECT_EQ(std::memcmp(file.tensor("l").data, i64, sizeof i64), 0);
  EXPECT_EQ(file.tensor("none").bytes, 0u);
  EXPECT_EQ(file.tensor("none").shape, (std::vector<int64_t>{0, 5}));
  for (const auto& [name, t] : file.tensors()) {
    EXPECT_EQ(written.tensor_crc32c.at(name), crc32c(t.data, t.bytes)) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % dtype_size(t.dtype), 0u) << name;
  }
  EXPECT_EQ(file.tensor("h").to_f32(), (std::vector<float>{1.0f, -2.0f, 0x1.0p-24f}));
  EXPECT_EQ(file.tensor("bf").to_f32(), (std::vector<float>{1.0f, -3.0f}));
  EXPECT_EQ(file.tensor("d").to_f32()[0], 0.1f);
}

TEST_F(SafetensorsTest, WriterOrdersByElementSizeThenName) {
  const char data[64] = {};
  SafetensorsWriter writer;
  writer.add({"z", {1}, DType::kI64, data});
  writer.add({"c", {1}, DType::kU8, data});
  writer.add({"b", {1}, DType::kF32, data});
  writer.add({"a", {1}, DType::kF32, data});
  writer.add({"d", {1}, DType::kBF16, data});
  writer.write(path_);
  const std::string text = get();
  size_t last = 0;
  for (const char* name : {"\"z\"", "\"a\"", "\"b\"", "\"d\"", "\"c\""}) {
    const size_t at = text.find(name);
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(at, last);
    last = at;
  }
  uint64_t header;
  std::memcpy(&header, text.data(), 8);
  EXPECT_EQ(header % 8, 0u);
}

TEST_F(SafetensorsTest, EveryHalfConvertsToItsExactValue) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  SafetensorsWriter writer;
  writer.add({"h", {65536}, DType::kF16, all.data()});
  writer.write(path_);
  const auto values = SafetensorsFile(path_).tensor("h").to_f32();
  for (size_t i = 0; i < all.size(); ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), mantissa = static_cast<int>(i & 1023);
    const double sign = i & 0x8000 ? -1 : 1;
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(values[i]));
      continue;
    }
    double want =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) want = std::numeric_limits<double>::infinity();
    ASSERT_EQ(static_cast<double>(values[i]), sign * want) << i;
    ASSERT_EQ(std::signbit(values[i]), sign < 0) << i;
  }
}

TEST_F(SafetensorsTest, MisalignedTensorsAreCopied) {
  // Header of 63 bytes: the float data begin at byte 71.
  std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.append(63 - header.size(), ' ');
  put_header(header, 0);
  const float x = 2.5f;
  put(get() + std::string(reinterpret_cast<const char*>(&x), 4));
  const SafetensorsFile file(path_);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensor("x").data) % 4, 0u);
  EXPECT_EQ(*file.tensor("x").f32(), 2.5f);
}

TEST_F(SafetensorsTest, RefusesWithTheReason) {
  const std::string x8 = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  struct Case {
    std::string header;
    size_t bytes;
    const char* reason;
  };
  const Case cases[] = {
      {x8, 7, "expected a range within 7 bytes"},
      {x8, 9, "has 9 bytes of data, its tensors take 8"},
      {R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "expected 12 for shape [3]"},
      {R"({"x":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8, "dtype F33 of tensor x"},
      {R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "bad dimension -2"},
      {R"({"x":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8, "bad dimension"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "data_offsets [8,0]"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", 8, "two data_offsets"},
      {R"({"x":{"dtype":"F32","shape":[2]}})", 8, "two data_offsets"},
      {R"({"x":{"shape":[2],"data_offsets":[0,8]}})", 8, "lacks the dtype of tensor x"},
      {R"({"x":{"dtype":"F32","data_offsets":[0,8]}})", 8, "lacks the shape of tensor x"},
      {R"({"x":7})", 0, "something other than an object"},
      // 2^31 * 2^31 * 4 and 2^62 * 4 overflow 64 bits.
      {R"({"x":{"dtype":"F32","shape":[2147483648,2147483648],"data_offsets":[0,0]}})", 0,
       "more than fits"},
      {R"({"x":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0,
       "more than fits"},
      {R"({"x":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0,
       "bad dimension"},
      {R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551615,3]}})", 4,
       "expected a range"},
      {R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
           "y":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "overlapping data before"},
      {R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
           "y":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})",
       8, "hole before tensor y"},
      {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
           "x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "\"x\" appears twice"},
      {R"({"__metadata__":{"a":1}})", 0, "metadata a that is not a string"},
      {R"([1])", 0, "does not start with {"},
      {"", 0, "does not start with {"},
      {R"({"x":)", 0, "not valid"},
      {"{} x", 0, "not valid"},
  };
  for (const Case& c : cases) {
    put_header(c.header, c.bytes);
    EXPECT_NE(refusal().find(c.reason), std::string::npos) << c.header << "\n" << refusal();
  }
}

TEST_F(SafetensorsTest, RefusesBadSizes) {
  put("");
  EXPECT_NE(refusal().find("holds 0 bytes"), std::string::npos);
  put("1234567");
  EXPECT_NE(refusal().find("holds 7 bytes"), std::string::npos);
  put(std::string(8, '\xff') + "{}");
  EXPECT_NE(refusal().find("at most 100000000"), std::string::npos);
  put(std::string("\x10\0\0\0\0\0\0\0{}", 10));
  EXPECT_NE(refusal().find("cut off"), std::string::npos);
}

TEST_F(SafetensorsTest, AcceptsAnEmptyFileOfTensors) {
  put_header("{}", 0);
  EXPECT_TRUE(SafetensorsFile(path_).tensors().empty());
}

TEST_F(SafetensorsTest, MissingTensorNamesTheNearest) {
  put(from_hex(kVector));
  const SafetensorsFile file(path_);
  try {
    file.tensor("x_lambdas");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no tensor x_lambdas"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("nearest name is x"), std::string::npos);
  }
  EXPECT_THROW(file.tensor("x").expect_shape({2, 1}), Error);
  EXPECT_NO_THROW(file.tensor("x").expect_shape({2}));
}

TEST_F(SafetensorsTest, WrongDTypeIsNamed) {
  const int32_t i[] = {1};
  SafetensorsWriter writer;
  writer.add({"i", {1}, DType::kI32, i});
  writer.write(path_);
  const SafetensorsFile file(path_);
  EXPECT_THROW(file.tensor("i").f32(), Error);
  EXPECT_THROW(file.tensor("i").to_f32(), Error);
}

TEST_F(SafetensorsTest, NoTruncationIsAccepted) {
  put(from_hex(kVector));
  const std::string whole = get();
  for (size_t n = 0; n < whole.size(); ++n) {
    put(whole.substr(0, n));
    EXPECT_NE(refusal(), "accepted") << n << " bytes";
  }
}

// Every single-bit flip either is refused with an Error or yields a file whose tensors lie inside
// it; reading all of them must be safe.
TEST_F(SafetensorsTest, BitFlipsNeverCrash) {
  const float f[] = {1, 2, 3};
  const unsigned char u[] = {9, 8, 7, 6, 5};
  SafetensorsWriter writer;
  writer.add({"w", {3, 1}, DType::kF32, f});
  writer.add({"b", {5}, DType::kU8, u});
  const size_t size = writer.write(path_).bytes;
  const std::string whole = get();
  size_t refused = 0;
  for (size_t at = 0; at < size; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      test::set_byte(path_, at, static_cast<char>(whole[at] ^ (1 << bit)));
      try {
        const SafetensorsFile file(path_);
        size_t total = 0;
        for (const auto& [name, t] : file.tensors()) {
          (void)crc32c(t.data, t.bytes);
          total += t.bytes;
        }
        EXPECT_LE(total, size);
      } catch (const Error&) {
        ++refused;
      }
    }
    test::set_byte(path_, at, whole[at]);
  }
  EXPECT_GT(refused, size * 4);
}

TEST_F(SafetensorsTest, ReadsTheGoldenFiles) {
  const SafetensorsFile file(HEDDLE_SOURCE_DIR "/tests/golden/sssl_gqa.safetensors");
  EXPECT_EQ(file.tensor("param/transformer.wte.weight").shape, (std::vector<int64_t>{320, 64}));
  EXPECT_EQ(file.tensor("param/lm_head.weight").shape, (std::vector<int64_t>{320, 64}));
}

}  // namespace
}  // namespace heddle

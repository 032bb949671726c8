#include "framework/attention/library_file.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <sstream>

#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

using test::fixture;
using test::TempFolder;
using ::testing::HasSubstr;

class LibraryFileTest : public ::testing::Test {
 protected:
  LibraryFileTest() {
    std::ifstream in(fixture("naive"), std::ios::binary);
    std::stringstream bytes;
    bytes << in.rdbuf();
    good_ = bytes.str();
    std::memcpy(&header_, good_.data(), sizeof header_);
  }

  // What is said about the good plugin with another header.
  std::string complaint_about_header() {
    std::string bytes = good_;
    std::memcpy(bytes.data(), &header_, sizeof header_);
    return complaint_about(bytes);
  }
  std::string complaint_about(const std::string& bytes) {
    folder_.write("x.so", bytes);
    return test::error_of([&] { check_library_file(folder_.path("x.so")); });
  }

  TempFolder folder_;
  std::string good_;
  Elf64_Ehdr header_;
};

TEST_F(LibraryFileTest, AcceptsALibrary) {
  EXPECT_NO_THROW(check_library_file(fixture("naive")));
}

TEST_F(LibraryFileTest, SaysWhatTheFileIsInstead) {
  EXPECT_THAT(complaint_about("!<arch>\nfoo"), HasSubstr("is a static library"));
  EXPECT_THAT(complaint_about("hello"), HasSubstr("does not begin with the ELF mark"));
  EXPECT_THAT(complaint_about(""), HasSubstr("is an empty file"));
  EXPECT_THAT(complaint_about(good_.substr(0, 20)), HasSubstr("is truncated: 20 bytes"));
}

TEST_F(LibraryFileTest, NamesTheArchitecture) {
  header_.e_machine = EM_AARCH64;
  EXPECT_THAT(complaint_about_header(),
              HasSubstr("is built for AArch64, but this machine is x86-64"));
  header_.e_machine = EM_386;
  header_.e_ident[EI_CLASS] = ELFCLASS32;
  EXPECT_THAT(complaint_about_header(), HasSubstr("is built for i386 (32 bits)"));
}

TEST_F(LibraryFileTest, RefusesObjectFiles) {
  header_.e_type = ET_REL;
  EXPECT_THAT(complaint_about_header(), HasSubstr("an object file or a program"));
}

TEST_F(LibraryFileTest, FindsTruncationAtAnyPlace) {
  for (const size_t keep : {size_t{70}, size_t{500}, good_.size() / 2, good_.size() - 1}) {
    EXPECT_THAT(complaint_about(good_.substr(0, keep)), HasSubstr("is truncated")) << keep;
  }
}

TEST_F(LibraryFileTest, OffsetsThatWrapAreTruncationToo) {
  header_.e_shoff = ~uint64_t{0} - 8;
  EXPECT_THAT(complaint_about_header(), HasSubstr("is truncated"));
  header_.e_shoff = 0;
  header_.e_shnum = 0;
  header_.e_phoff = ~uint64_t{0} - 8;
  EXPECT_THAT(complaint_about_header(), HasSubstr("is truncated"));
}

TEST_F(LibraryFileTest, StrippedSectionsLeaveTheSegmentsToCheck) {
  header_.e_shoff = 0;
  header_.e_shnum = 0;
  std::string bytes = good_;
  std::memcpy(bytes.data(), &header_, sizeof header_);
  bytes.resize(bytes.size() / 4);
  EXPECT_THAT(complaint_about(bytes), HasSubstr("segments"));
}

TEST_F(LibraryFileTest, AFolderOrNothingCannotBeRead) {
  EXPECT_THAT(test::error_of([&] { check_library_file(folder_.path()); }),
              HasSubstr("cannot be read"));
  EXPECT_THAT(test::error_of([&] { check_library_file(folder_.path("none.so")); }),
              HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace heddle

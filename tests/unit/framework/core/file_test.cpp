#include "framework/core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "framework/core/error.h"
#include "tests/unit/framework/core/fault_file_system.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Fault;
using testing::FaultFileSystem;
using test::get_file;
using ::testing::HasSubstr;
using testing::Killed;
using test::put_file;
using test::MemoryFolder;

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kEnvironment);
    return e.what();
  }
  return "no error";
}

TEST(PosixFileSystem, WritesInPieces) {
  MemoryFolder temp;
  auto out = posix_file_system().create(temp / "f");
  out->write("abc", 3);
  out->write("", 0);
  out->write("def", 3);
  out->close();
  EXPECT_EQ(get_file(temp / "f"), "abcdef");
}

TEST(PosixFileSystem, FullDiskIsSaidAtTheWrite) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  auto out = posix_file_system().create("/dev/full");
  EXPECT_THAT(
      error_of([&] { out->write("x", 1); }),
      AllOf(HasSubstr("cannot write /dev/full: No space left on device"), HasSubstr("free space")));
}

TEST(PosixFileSystem, ErrorsNameOperationAndPath) {
  MemoryFolder temp;
  FileSystem& files = posix_file_system();
  put_file(temp / "file", "");
  EXPECT_THAT(error_of([&] { files.create(temp / "no/f"); }),
              HasSubstr("cannot create " + (temp / "no/f") + ": No such file"));
  EXPECT_THAT(error_of([&] { files.create_directories(temp / "file/x"); }),
              HasSubstr("cannot create the folder " + (temp / "file/x")));
  EXPECT_THAT(error_of([&] { files.create_directory(temp / "no/x"); }), HasSubstr(temp / "no/x"));
  EXPECT_THAT(error_of([&] { files.rename(temp / "a", temp / "b"); }),
              AllOf(HasSubstr(temp / "a"), HasSubstr(temp / "b")));
  EXPECT_THAT(error_of([&] { files.sync_directory(temp / "no"); }), HasSubstr(temp / "no"));
}

TEST(PosixFileSystem, Folders) {
  MemoryFolder temp;
  FileSystem& files = posix_file_system();
  files.create_directories(temp / "a/b");
  files.create_directories(temp / "a/b");
  EXPECT_TRUE(files.create_directory(temp / "a/c"));
  EXPECT_FALSE(files.create_directory(temp / "a/c"));
  put_file(temp / "a/f", "x");
  EXPECT_FALSE(files.create_directory(temp / "a/f"));
  files.sync_directory(temp / "a");
  files.rename(temp / "a", temp / "z");
  EXPECT_TRUE(fs::exists(temp / "z/b"));
  files.remove_all(temp / "z");
  files.remove_all(temp / "z");
  EXPECT_FALSE(fs::exists(temp / "z"));
}

TEST(ReplaceFileSystem, GuardsNest) {
  FaultFileSystem a(Fault::kOnce, 0), b(Fault::kOnce, 0);
  EXPECT_EQ(&file_system(), &posix_file_system());
  {
    const auto outer = replace_file_system(&a);
    {
      const auto inner = replace_file_system(&b);
      EXPECT_EQ(&file_system(), &b);
    }
    EXPECT_EQ(&file_system(), &a);
  }
  EXPECT_EQ(&file_system(), &posix_file_system());
}

TEST(WriteFileAtomically, ReplacesTheWholeFile) {
  MemoryFolder temp;
  write_file_atomically(temp / "f", "first, longer");
  write_file_atomically(temp / "f", "second");
  EXPECT_EQ(read_text_file(temp / "f"), "second");
  EXPECT_FALSE(fs::exists(temp / "f.tmp"));
}

TEST(WriteFileAtomically, AFaultAtAnyCallLeavesOldOrNew) {
  for (const Fault fault : {Fault::kOnce, Fault::kFull, Fault::kKill}) {
    for (int at = 1;; ++at) {
      MemoryFolder temp;
      put_file(temp / "f", "old");
      FaultFileSystem faulty(fault, at);
      bool failed = false;
      {
        const auto guard = replace_file_system(&faulty);
        try {
          write_file_atomically(temp / "f", "new contents");
        } catch (const Error&) {
          failed = true;
          EXPECT_FALSE(fs::exists(temp / "f.tmp")) << at;
        } catch (const Killed&) {
          failed = true;
        }
      }
      EXPECT_EQ(failed, faulty.struck());
      const std::string now = get_file(temp / "f");
      EXPECT_TRUE(now == "new contents" || (failed && now == "old")) << at << ": " << now;
      if (!faulty.struck()) {
        EXPECT_EQ(faulty.log(), (std::vector<std::string>{
                                    "create f.tmp", "write f.tmp", "close f.tmp", "rename f",
                                    "sync " + temp.path().substr(temp.path().rfind('/') + 1)}));
        break;
      }
    }
  }
}

TEST(MappedFile, ReadsAndMoves) {
  MemoryFolder temp;
  put_file(temp / "f", std::string("a\0b", 3));
  MappedFile a(temp / "f");
  EXPECT_EQ(a.text(), std::string_view("a\0b", 3));
  const MappedFile b(std::move(a));
  EXPECT_EQ(b.text().size(), 3u);
  EXPECT_EQ(a.data(), nullptr);
}

TEST(MappedFile, EmptyMissingAndFolder) {
  MemoryFolder temp;
  put_file(temp / "empty", "");
  const MappedFile empty(temp / "empty");
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(empty.text(), "");
  EXPECT_THAT(error_of([&] { MappedFile f(temp / "no"); }),
              HasSubstr("cannot read " + (temp / "no") + ": No such file or directory"));
  EXPECT_THAT(error_of([&] { MappedFile f(temp.path()); }), HasSubstr("Is a directory"));
}

TEST(ParentFolder, OfEveryShape) {
  EXPECT_EQ(parent_folder("runs/a/b"), "runs/a");
  EXPECT_EQ(parent_folder("runs/a/b/"), "runs/a");
  EXPECT_EQ(parent_folder("b"), ".");
  EXPECT_EQ(parent_folder("/b"), "/");
  EXPECT_EQ(parent_folder("./b"), ".");
}

}  // namespace
}  // namespace heddle

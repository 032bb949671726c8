#include "framework/data/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "tests/unit/framework/data/expect_error.h"

namespace heddle {
namespace {

using testing::ElementsAre;

std::vector<std::string> documents(TextFormat format, const std::vector<std::string>& paths) {
  std::vector<std::string> out;
  for_each_document({format, paths}, [&](std::string_view text) { out.emplace_back(text); });
  return out;
}

TEST(DocumentsTest, AFileIsADocumentWithItsBytesUntouched) {
  const test::TempFolder folder;
  const std::string odd("a\r\n\n\xff\xfe\0z", 8);
  const auto a = folder.write("a.txt", odd), b = folder.write("b.txt", ""),
             c = folder.write("c.txt", "c");
  EXPECT_THAT(documents(TextFormat::kFile, {a, b, c}), ElementsAre(odd, "c"));
}

TEST(DocumentsTest, BlankLinesSeparateParagraphs) {
  const test::TempFolder folder;
  const auto path = folder.write("a.txt", "\n\none\ntwo\n\n \t\nthree \r\n\r\nfour\n");
  EXPECT_THAT(documents(TextFormat::kParagraph, {path}), ElementsAre("one\ntwo", "three ", "four"));
}

TEST(DocumentsTest, ParagraphsEndWithTheirFile) {
  const test::TempFolder folder;
  const auto a = folder.write("a.txt", "one"), b = folder.write("b.txt", "two");
  EXPECT_THAT(documents(TextFormat::kParagraph, {a, b}), ElementsAre("one", "two"));
}

TEST(DocumentsTest, JsonLinesGiveTheirTextField) {
  const test::TempFolder folder;
  const auto path = folder.write("a.jsonl",
                                 "{\"text\": \"a\\n\\u00e9\", \"id\": 1}\n\n{\"text\": \"\"}\r\n"
                                 "{\"id\": {\"x\": [1]}, \"text\": \"b\"}");
  EXPECT_THAT(documents(TextFormat::kJsonl, {path}), ElementsAre("a\n\xc3\xa9", "b"));
}

TEST(DocumentsTest, ABadJsonLineIsNamed) {
  const test::TempFolder folder;
  const auto refuse = [&](const std::string& line, const std::string& part) {
    const auto path = folder.write("a.jsonl", "{\"text\": \"fine\"}\n" + line + "\n");
    expect_error(ExitCode::kEnvironment, {path + ":2: ", part, "{\"text\": "},
                 [&] { documents(TextFormat::kJsonl, {path}); });
  };
  refuse("{\"text\": \"cut", "not valid JSON");
  refuse("[\"text\"]", "not an object");
  refuse("{\"txt\": \"a\"}", "no field \"text\"");
  refuse("{\"text\": 5}", "not a string");
  refuse("{\"text\": \"\xff\"}", "not valid JSON");
}

TEST(DocumentsTest, AMissingFileIsNamed) {
  expect_error(ExitCode::kEnvironment, {"/nowhere/a.txt", "No such file"},
               [] { documents(TextFormat::kFile, {"/nowhere/a.txt"}); });
}

}  // namespace
}  // namespace heddle

#include "framework/attention/negotiation.h"

#include <fmt/format.h>

#include <string_view>

#include "framework/attention/names.h"
#include "framework/core/error.h"
#include "framework/core/version.h"

namespace heddle {
namespace {

constexpr const char* kRebuild =
    "build it against the unmodified heddle_attention.h and set every size with sizeof";

constexpr uint32_t kImplausibleSize = 1u << 16;
constexpr size_t kMaxName = 64;

void check_identity(const heddle_attention_plugin& table) {
  if (table.magic != HEDDLE_ATTENTION_MAGIC) {
    throw plugin_error(
        fmt::format("returned a table with magic {:#010x}, expected {:#010x}: not a Heddle plugin",
                    table.magic, HEDDLE_ATTENTION_MAGIC),
        "set .magic = HEDDLE_ATTENTION_MAGIC");
  }
  if (table.abi_major != HEDDLE_ATTENTION_ABI_MAJOR) {
    throw plugin_error(fmt::format("says ABI major {}, but heddle {} speaks major {}",
                                   table.abi_major, kVersion, HEDDLE_ATTENTION_ABI_MAJOR),
                       "rebuild it against the heddle_attention.h of this heddle");
  }
}

void check_size(const char* what, uint32_t got, uint32_t least) {
  if (got >= least && got < kImplausibleSize && got % 8 == 0) return;
  throw plugin_error(
      fmt::format("says {} is {} bytes, but ABI {}.0 has {}: its struct sizes cannot be right",
                  what, got, HEDDLE_ATTENTION_ABI_MAJOR, least),
      kRebuild);
}

void check_name(const char* name) {
  const std::string_view text = name != nullptr ? name : "";
  bool good = !text.empty() && text.size() <= kMaxName;
  for (const char c : text) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_');
  }
  if (good && text != "auto") return;
  throw plugin_error(
      fmt::format("calls itself '{}'; a name has 1 to {} of a-z, 0-9 and _ and is not 'auto'",
                  clean_text(text, kMaxName), kMaxName),
      "change .name");
}

void check_functions(const heddle_attention_plugin& table) {
  const auto require = [](bool present, const char* name) {
    if (present) return;
    throw plugin_error(fmt::format("has no {} function (NULL in its table)", name),
                       fmt::format("set .{}", name));
  };
  require(table.create != nullptr, "create");
  require(table.destroy != nullptr, "destroy");
  require(table.query != nullptr, "query");
  require(table.forward != nullptr || table.decode != nullptr, "forward");
  if (table.backward != nullptr) require(table.forward != nullptr, "forward");
}

}  // namespace

void check_plugin_table(const heddle_attention_plugin* table) {
  if (table == nullptr) throw plugin_error("returned no table", "return a static table");
  check_identity(*table);
  check_size("heddle_attention_plugin", table->struct_size, HEDDLE_PLUGIN_SIZE_1_0);
  check_size("heddle_attention_problem", table->problem_size, HEDDLE_PROBLEM_SIZE_1_0);
  check_size("heddle_attention_call", table->call_size, HEDDLE_CALL_SIZE_1_0);
  check_name(table->name);
  if (table->version == nullptr || table->description == nullptr) {
    throw plugin_error("has no version or no description (NULL in its table)",
                       "set .version and .description");
  }
  if (table->device_type != HEDDLE_DEVICE_CPU && table->device_type != HEDDLE_DEVICE_CUDA) {
    throw plugin_error(
        fmt::format("serves {}, which this heddle does not know", device_name(table->device_type)),
        "set .device_type to HEDDLE_DEVICE_CPU or HEDDLE_DEVICE_CUDA");
  }
  check_functions(*table);
}

}  // namespace heddle

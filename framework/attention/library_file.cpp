#include "framework/attention/library_file.h"

#include <elf.h>
#include <fmt/format.h>

#include <cstring>
#include <string_view>

#include "framework/core/error.h"
#include "framework/core/file.h"

namespace heddle {
namespace {

constexpr int kMachine = EM_X86_64;
constexpr const char* kRebuild = "build it for x86-64 with the compiler of this machine";

std::string machine_name(int machine) {
  switch (machine) {
    case EM_386:
      return "i386";
    case EM_X86_64:
      return "x86-64";
    case EM_ARM:
      return "32-bit ARM";
    case EM_AARCH64:
      return "AArch64";
    case EM_PPC64:
      return "POWER";
    case EM_RISCV:
      return "RISC-V";
    case EM_CUDA:
      return "CUDA device code";
  }
  return fmt::format("machine type {}", machine);
}

[[noreturn]] void refuse_foreign(std::string_view text) {
  if (text.empty()) throw plugin_error("is an empty file, not a shared library", "build it again");
  if (text.starts_with("!<arch>")) {
    throw plugin_error("is a static library, not a shared one", "link it with -shared");
  }
  throw plugin_error("is not a shared library (it does not begin with the ELF mark)",
                     "name the .so file that the plugin's build made");
}

void refuse_beyond(uint64_t offset, uint64_t length, uint64_t file_size, const char* what) {
  if (offset <= file_size && length <= file_size - offset) return;
  throw plugin_error(fmt::format("is truncated: {} bytes, but its {} are {} bytes at offset {}",
                                 file_size, what, length, offset),
                     "copy or build it again");
}

void check_header(const Elf64_Ehdr& header, uint64_t file_size) {
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_machine != kMachine) {
    throw plugin_error(
        fmt::format("is built for {}{}, but this machine is x86-64", machine_name(header.e_machine),
                    header.e_ident[EI_CLASS] == ELFCLASS32 ? " (32 bits)" : ""),
        kRebuild);
  }
  if (header.e_type != ET_DYN) {
    throw plugin_error(
        "is an ELF file, but an object file or a program rather than a shared library",
        "link it with -shared");
  }
  refuse_beyond(header.e_phoff, uint64_t{header.e_phentsize} * header.e_phnum, file_size,
                "program headers");
  refuse_beyond(header.e_shoff, uint64_t{header.e_shentsize} * header.e_shnum, file_size,
                "section headers");
}

// Stripped section tables leave the segments as the only witness of the length.
void check_segments(std::string_view file, const Elf64_Ehdr& header) {
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const uint64_t at = header.e_phoff + uint64_t{header.e_phentsize} * static_cast<uint64_t>(i);
    if (header.e_phentsize < sizeof segment) return;
    std::memcpy(&segment, file.data() + at, sizeof segment);
    if (segment.p_type == PT_LOAD) {
      refuse_beyond(segment.p_offset, segment.p_filesz, file.size(), "segments");
    }
  }
}

}  // namespace

void check_library_file(const std::string& path) {
  try {
    const MappedFile file(path);
    const std::string_view text = file.text();
    if (!text.starts_with(std::string_view(ELFMAG, SELFMAG))) refuse_foreign(text);
    Elf64_Ehdr header;
    if (text.size() < sizeof header) {
      throw plugin_error(fmt::format("is truncated: {} bytes", text.size()),
                         "copy or build it again");
    }
    std::memcpy(&header, text.data(), sizeof header);
    check_header(header, text.size());
    check_segments(text, header);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kPlugin) throw;
    throw plugin_error("cannot be read: " + error.message(), "check the path and its permissions");
  }
}

}  // namespace heddle

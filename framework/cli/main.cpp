// heddle: one binary, one subcommand a file. The only place that turns errors into exit codes.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>

#include "framework/cli/commands.h"
#include "framework/comm/communicator.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/version.h"

namespace heddle {
namespace {

int run(int argc, char** argv) {
  CLI::App app{"Heddle trains GPT models whose attention is a plugin.", "heddle"};
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::help);

  int exit_code = 0;
  add_train_command(app, exit_code);
  add_eval_command(app, exit_code);
  add_generate_command(app, exit_code);
  add_tokenize_command(app, exit_code);
  add_launch_command(app, exit_code);
  add_plan_command(app, exit_code);
  add_doctor_command(app, exit_code);
  add_plugin_command(app, exit_code);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool asked = e.get_exit_code() == 0;  // --help, --version
    app.exit(e);
    return asked ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  return exit_code;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  heddle::ExitCode code = heddle::ExitCode::kEnvironment;
  try {
    return heddle::run(argc, argv);
  } catch (const heddle::Error& e) {
    std::fprintf(stderr, "heddle: %s\n", e.what());
    code = e.code();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr,
                 "heddle: [memory] out of host memory. Lower train.device_batch_size or "
                 "model.sequence_len\n");
  }
  // Other ranks may be waiting for this one: end the whole job.
  heddle::abort_job(static_cast<int>(code));
}

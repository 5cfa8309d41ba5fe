// SPDX-License-Identifier: Apache-2.0
// Real children of this process, reaped by the Supervisor under test.
#include "guest/framer/supervise.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "common/os/unique_fd.hpp"

namespace {

using namespace causeway;
using guest::Supervisor;

constexpr std::chrono::seconds kLimit{20};

// A pipe on which a child says something; it closes when all who hold it have ended.
struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  UniqueFd read, write;
};

// The child's standard output goes into a pipe while it is started.
class Output {
 public:
  Output() : saved_(::fcntl(1, F_DUPFD_CLOEXEC, 3)) { ::dup2(pipe_.write.get(), 1); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() { restore(); }
  void restore() {
    if (saved_.valid()) ::dup2(saved_.get(), 1);
    saved_.reset();
    pipe_.write.reset();
  }
  std::string line() {
    restore();
    std::string text;
    char c = 0;
    while (::read(pipe_.read.get(), &c, 1) == 1 && c != '\n')
      text += c;
    return text;
  }

 private:
  Pipe pipe_;
  UniqueFd saved_;
};

class Run {
 public:
  explicit Run(std::vector<std::string> command)
      : supervisor(control, std::move(command), [this](int code) {
          exit_code = code;
          control.stop();
        }) {}
  static Run shell(const char* script) { return Run({"/bin/sh", "-c", script}); }

  // The exit code; -1 when time is up.
  int finish() {
    control.run_for(kLimit);
    return exit_code.value_or(-1);
  }

  asio::io_context control{1};
  std::optional<int> exit_code;
  Supervisor supervisor;
};

TEST_CASE("supervise: the exit code is the application's") {
  for (const int code : {0, 1, 7, 255}) {
    Run run({"sh", "-c", "exit " + std::to_string(code)});  // by way of PATH
    REQUIRE(run.supervisor.start());
    CHECK(run.supervisor.running());
    CHECK(run.finish() == code);
    CHECK_FALSE(run.supervisor.running());
  }
}

TEST_CASE("supervise: an end by a signal is 128 and its number") {
  auto run = Run::shell("kill -SEGV $$");
  REQUIRE(run.supervisor.start());
  CHECK(run.finish() == 128 + SIGSEGV);
}

TEST_CASE("supervise: what cannot be run is told apart") {
  const auto start = [](const std::string& name) {
    Run run({name});
    const auto started = run.supervisor.start();
    REQUIRE_FALSE(started);
    CHECK(started.error().message.find("'" + name + "'") != std::string::npos);
    CHECK(started.error().message.find('\n') == std::string::npos);
    CHECK_FALSE(run.supervisor.running());
    CHECK_FALSE(run.exit_code);
    return Supervisor::start_exit_code(started.error());
  };
  CHECK(start("causeway-no-such-program") == 127);
  CHECK(start("/no/such/program") == 127);
  CHECK(start("/etc/passwd") == 126);
  CHECK(start("/") == 126);

  Run empty({});
  const auto started = empty.supervisor.start();
  REQUIRE_FALSE(started);
  CHECK(Supervisor::start_exit_code(started.error()) == 127);
}

TEST_CASE("supervise: signals are passed on") {
  for (const int signal : guest::kForwardedSignals) {
    CAPTURE(signal);
    const std::string number = std::to_string(signal);
    Output output;
    Run run({"sh", "-c",
             "trap 'exit " + std::to_string(40 + signal) + "' " + number +
                 "; echo ready; while :; do sleep 0.01; done"});
    REQUIRE(run.supervisor.start());
    CHECK(output.line() == "ready");
    run.supervisor.take_signals();
    ::raise(signal);  // to this process: the Supervisor's handler is in place
    CHECK(run.finish() == 40 + signal);
  }
}

TEST_CASE("supervise: what ignores SIGTERM is killed after the grace period, with its group") {
  Output output;
  auto run = Run::shell("trap '' TERM; sleep 1000 & echo $!; wait; wait");
  REQUIRE(run.supervisor.start());
  const pid_t other = std::stoi(output.line());
  const auto begin = std::chrono::steady_clock::now();
  run.supervisor.terminate(std::chrono::milliseconds(100));
  run.supervisor.terminate(std::chrono::hours(1));  // does not make it longer
  CHECK(run.finish() == 128 + SIGKILL);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(100));
  // The other one is our orphan now. It is reaped by us here: it may end after the application.
  if (::kill(other, 0) == 0) {
    int status = 0;
    CHECK(::waitpid(other, &status, 0) == other);
    CHECK(WIFSIGNALED(status));
  }
}

TEST_CASE("supervise: an application that ends in time is not killed") {
  Output output;
  auto run = Run::shell("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done");
  REQUIRE(run.supervisor.start());
  CHECK(output.line() == "ready");
  run.supervisor.terminate();
  CHECK(run.finish() == 3);
  run.supervisor.forward(SIGTERM);  // nobody is there: not even this process, by a pid of -1
  run.supervisor.kill();
}

TEST_CASE("supervise: before the application runs a signal ends the wait, or does nothing") {
  Run run({"sh"});
  run.supervisor.take_signals();
  ::raise(SIGUSR1);
  ::raise(SIGWINCH);
  ::raise(SIGTERM);
  CHECK(run.finish() == 128 + SIGTERM);
}

TEST_CASE("supervise: orphans are reaped, and do not end the application") {
  Output output;
  // The middle process ends at once; its child becomes ours, ends, and must not stay a zombie.
  auto run = Run::shell("sh -c 'sleep 0.05 & echo $!'; read -r line; exit 5");
  Pipe input;
  const UniqueFd saved(::fcntl(0, F_DUPFD_CLOEXEC, 3));
  ::dup2(input.read.get(), 0);
  const auto started = run.supervisor.start();
  ::dup2(saved.get(), 0);
  REQUIRE(started);
  const pid_t orphan = std::stoi(output.line());
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (::kill(orphan, 0) == 0 && std::chrono::steady_clock::now() < deadline) {
    run.control.run_one_for(std::chrono::milliseconds(10));
  }
  CHECK(::kill(orphan, 0) == -1);
  CHECK(errno == ESRCH);
  CHECK(run.supervisor.running());
  REQUIRE(::write(input.write.get(), "\n", 1) == 1);
  CHECK(run.finish() == 5);
}

TEST_CASE("supervise: the application starts with a clean slate, in a process group of its own") {
  const UniqueFd leak(::open("/dev/null", O_RDONLY));  // inheritable
  REQUIRE(leak.get() > 2);
  sigset_t usr2, before;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  REQUIRE(pthread_sigmask(SIG_BLOCK, &usr2, &before) == 0);
  const auto handler = std::signal(SIGPIPE, SIG_IGN);
  Output output;
  Run run({"sleep", "1000"});
  const auto started = run.supervisor.start();
  std::signal(SIGPIPE, handler);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  output.restore();
  REQUIRE(started);
  const std::string proc = "/proc/" + std::to_string(run.supervisor.pid());
  std::ifstream status(proc + "/status");
  unsigned seen = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigBlk:") || line.starts_with("SigIgn:")) {
      // Signals 32 and 33 are the C library's own; glibc's posix_spawn() leaves them ignored.
      CHECK((std::stoull(line.substr(8), nullptr, 16) & ~0x1'8000'0000ULL) == 0);
      ++seen;
    }
  }
  CHECK(seen == 2);
  CHECK(::access((proc + "/fd/" + std::to_string(leak.get())).c_str(), F_OK) == -1);
  CHECK(::getpgid(run.supervisor.pid()) == run.supervisor.pid());
  run.supervisor.kill();
  CHECK(run.finish() == 128 + SIGKILL);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#include "guest/framer/resolv_conf.hpp"

#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using namespace causeway;
namespace fs = std::filesystem;

class Directory {
 public:
  Directory() {
    std::string name = (fs::temp_directory_path() / "cw-resolv-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(const char* name) const { return (path_ / name).string(); }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct stat info(const std::string& path) {
  struct stat found {};
  CHECK(::lstat(path.c_str(), &found) == 0);
  return found;
}

const std::vector<IpAddress> kTwo = {*parse_ip("10.0.0.1"), *parse_ip("fd00::1")};

TEST_CASE("resolv.conf: a comment, then one line for each resolver") {
  CHECK(guest::resolv_conf_text(kTwo) ==
        "# Written by causeway-guest; changes made here are overwritten.\n"
        "nameserver 10.0.0.1\n"
        "nameserver fd00::1\n");
}

TEST_CASE("resolv.conf: made, then left alone while it says the same, then replaced") {
  const Directory directory;
  const std::string path = directory / "resolv.conf";
  const auto umask_before = ::umask(077);
  const auto made = guest::write_resolv_conf(path, kTwo);
  ::umask(umask_before);
  REQUIRE(made);
  CHECK(*made);
  CHECK(content(path) == guest::resolv_conf_text(kTwo));
  CHECK((info(path).st_mode & 07777) == 0644);

  const auto before = info(path);
  const auto again = guest::write_resolv_conf(path, kTwo);
  REQUIRE(again);
  CHECK_FALSE(*again);
  CHECK(info(path).st_ino == before.st_ino);
  CHECK(info(path).st_mtim.tv_nsec == before.st_mtim.tv_nsec);

  const std::vector<IpAddress> other = {*parse_ip("10.0.0.9")};
  const std::ifstream reader(path);  // its inode stays in use, so the new one has another number
  const auto changed = guest::write_resolv_conf(path, other);
  REQUIRE(changed);
  CHECK(*changed);
  CHECK(content(path) == guest::resolv_conf_text(other));
  CHECK(info(path).st_ino != before.st_ino);
  CHECK(directory.entries() == 1);
}

TEST_CASE("resolv.conf: someone else's content is replaced, however long it is") {
  const Directory directory;
  const std::string path = directory / "resolv.conf";
  for (const std::size_t size : {0U, 20U, 4096U, 4097U, 100'000U}) {
    CAPTURE(size);
    std::ofstream(path) << std::string(size, '#');
    const auto done = guest::write_resolv_conf(path, kTwo);
    REQUIRE(done);
    CHECK(*done);
    CHECK(content(path) == guest::resolv_conf_text(kTwo));
  }
}

TEST_CASE("resolv.conf: symbolic links are followed, to a target that is not there too") {
  const Directory directory;
  const std::string path = directory / "resolv.conf";
  const std::string target = directory / "run/target";
  fs::create_directory(directory / "run");
  fs::create_symlink("run/second", path);
  fs::create_symlink(target, directory / "run/second");
  for (int i = 0; i < 2; ++i) {
    const auto done = guest::write_resolv_conf(path, kTwo);
    REQUIRE(done);
    CHECK(*done == (i == 0));
    CHECK(S_ISLNK(info(path).st_mode));
    CHECK(S_ISREG(info(target).st_mode));
    CHECK(content(target) == guest::resolv_conf_text(kTwo));
  }
}

TEST_CASE("resolv.conf: what cannot be written is one line that names the path") {
  const Directory directory;
  const auto fails = [](const std::string& path) {
    CAPTURE(path);
    const auto done = guest::write_resolv_conf(path, kTwo);
    REQUIRE_FALSE(done);
    CHECK(done.error().message.find(path) != std::string::npos);
    CHECK(done.error().message.find('\n') == std::string::npos);
    return done.error().code;
  };
  CHECK(fails(directory / "none/resolv.conf") == ENOENT);
  fs::create_directory(directory / "directory");
  fails(directory / "directory");
  REQUIRE(::mkfifo((directory / "fifo").c_str(), 0600) == 0);
  CHECK(fails(directory / "fifo") == EINVAL);
  fs::create_symlink("loop", directory / "loop");
  CHECK(fails(directory / "loop") == ELOOP);
  CHECK(directory.entries() == 3);
}

// Whether a mount over a file can be tried: needs privilege, and changes nothing afterwards.
bool mount_over(const std::string& source, const std::string& target) {
  return ::mount(source.c_str(), target.c_str(), nullptr, MS_BIND, nullptr) == 0;
}

TEST_CASE("resolv.conf: a file that is a mount of its own is written in place" *
          doctest::skip(::geteuid() != 0)) {
  const Directory directory;
  const std::string path = directory / "resolv.conf";
  const std::string source = directory / "source";
  std::ofstream(path) << "below\n";
  std::ofstream(source) << std::string(1000, '#') << "\n";
  if (!mount_over(source, path)) {
    MESSAGE("not tried: this machine does not allow mounts");
    return;
  }
  const auto before = info(path).st_ino;
  const auto done = guest::write_resolv_conf(path, kTwo);
  const auto after = info(path).st_ino;
  REQUIRE(::umount2(path.c_str(), MNT_DETACH) == 0);
  REQUIRE(done);
  CHECK(*done);
  CHECK(after == before);
  CHECK(content(source) == guest::resolv_conf_text(kTwo));
  CHECK(content(path) == "below\n");
  CHECK(directory.entries() == 2);
}

}  // namespace

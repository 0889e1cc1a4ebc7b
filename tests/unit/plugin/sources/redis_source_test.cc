// RedisSource against a real server, which the tests start on a socket of their own; and servers
// that are lost, late or wrong.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <new>
#include <string>
#include <thread>

#include "plugin/sources/redis_source.h"
#include "tests/support/failing_new.h"
#include "tests/unit/blockstore/wire/fetch_support.h"

extern char** environ;

namespace waymark {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using wire::After;
using wire::NamedObject;
using wire::Object;
using namespace std::chrono_literals;

// ---- a server

std::string ServerProgram() {
  // Debian's redis-tools has the program under this name alone; by its first word it knows what it
  // is to be.
  for (const char* path :
       {"/usr/bin/redis-server", "/usr/local/bin/redis-server", "/usr/bin/redis-check-rdb"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

// Runs a program with these words, the first its own name; its output goes nowhere.
pid_t Spawn(const std::string& program, std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

// A folder that goes when the test does; its name is short, as those of sockets must be.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/waymark_redis_XXXXXX";
    path_ = mkdtemp(name) != nullptr ? name : "";
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class Server {
 public:
  explicit Server(std::vector<std::string> more = {}) : more_(std::move(more)) { Start(); }
  ~Server() { Kill(); }

  void Start() {
    std::vector<std::string> words = {
        "redis-server", "--port", "0",           "--unixsocket", socket(), "--save",    "",
        "--appendonly", "no",     "--daemonize", "no",           "--dir",  folder_ / ""};
    words.insert(words.end(), more_.begin(), more_.end());
    pid_ = Spawn(ServerProgram(), words);
    ASSERT_GT(pid_, 0);
    for (int i = 0; i < 2000 && !Accepts(); ++i)
      std::this_thread::sleep_for(10ms);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
    unlink(socket().c_str());
  }
  void Pause() {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);  // kill returns before
  }
  void Resume() { kill(pid_, SIGCONT); }

  [[nodiscard]] std::string socket() const { return folder_ / "socket"; }
  [[nodiscard]] RedisOptions Options() const {
    return {.unix_socket = socket(), .initial_back_off = 1ms, .max_back_off = 20ms};
  }

 private:
  // The socket is there a moment before the server listens at it.
  [[nodiscard]] bool Accepts() const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket().c_str(), sizeof(address.sun_path) - 1);
    const int file = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool accepted =
        connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    close(file);
    return accepted;
  }

  const std::vector<std::string> more_;
  Folder folder_;
  pid_t pid_ = -1;
};

class Redis : public ::testing::Test {
 protected:
  void SetUp() override {
    if (ServerProgram().empty()) GTEST_SKIP() << "no redis-server here (Debian: redis-tools)";
    if (absl::IsUnimplemented(RedisSource::Create({}).status())) {
      GTEST_SKIP() << "this build has no hiredis";
    }
  }
};

wire::NamedObject Named(std::uint32_t n, std::size_t bytes) {
  std::vector<std::uint8_t> content(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    content[i] = static_cast<std::uint8_t>(n + i * 7);
  return {{{n, n + 1, 0, 0xffffffff}}, Object::Of(std::move(content))};
}

bool Same(const Object& a, const Object& b) {
  return a.present() && b.present() &&
         std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

// ---- what it does

TEST_F(Redis, ManyObjectsThereAndBack) {
  const Server server;
  const auto source = RedisSource::Create(server.Options()).value();
  std::vector<wire::NamedObject> objects;
  std::vector<Digest128> digests;
  for (std::uint32_t n = 0; n < 3000; ++n) {
    objects.push_back(Named(n, 1 + n * 3));
    digests.push_back(objects.back().digest);
  }
  ASSERT_TRUE(source->Put(std::span(objects).first(2000), wire::Soon()).ok());
  std::vector<Object> got(digests.size());
  ASSERT_TRUE(source->Get(digests, wire::Soon(), got).ok());
  std::vector<std::uint8_t> held(digests.size());
  ASSERT_TRUE(source->Holds(digests, wire::Soon(), held).ok());
  for (std::size_t n = 0; n < objects.size(); ++n) {
    ASSERT_EQ(got[n].present(), n < 2000) << n;
    ASSERT_EQ(held[n], n < 2000 ? 1 : 0) << n;
    if (n < 2000) {
      ASSERT_TRUE(Same(got[n], objects[n].object)) << n;
    }
  }
  const std::vector<wire::ObjectRange> ranges = {
      {digests[100], 5, 25}, {digests[100], 300, 302}, {digests[2500], 0, 5}, {digests[1], 0, 4}};
  std::vector<Object> ranged(ranges.size());
  ASSERT_TRUE(source->GetRanges(ranges, wire::Soon(), ranged).ok());
  ASSERT_EQ(ranged[0].bytes.size(), 20u);
  EXPECT_EQ(std::memcmp(ranged[0].bytes.data(), objects[100].object.bytes.data() + 5, 20), 0);
  EXPECT_FALSE(ranged[1].present());  // beyond the end
  EXPECT_FALSE(ranged[2].present());
  EXPECT_TRUE(ranged[3].present());
  // Another prefix, other keys.
  RedisOptions elsewhere = server.Options();
  elsewhere.key_prefix = "other:";
  const auto other = RedisSource::Create(elsewhere).value();
  ASSERT_TRUE(other->Get(std::span(digests).first(1), wire::Soon(), std::span(got).first(1)).ok());
  EXPECT_FALSE(got[0].present());
}

TEST_F(Redis, ObjectsExpireUnlessTheyAreAskedFor) {
  const Server server;
  RedisOptions options = server.Options();
  options.time_to_live = 4s;
  const auto source = RedisSource::Create(options).value();
  const wire::NamedObject objects[] = {Named(1, 10), Named(2, 10)};
  ASSERT_TRUE(source->Put(objects, wire::Soon()).ok());
  std::uint8_t held = 0;
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(1500ms);
    ASSERT_TRUE(source->Holds({&objects[0].digest, 1}, wire::Soon(), {&held, 1}).ok());
    EXPECT_EQ(held, 1);
  }
  Object got[2];
  const Digest128 digests[] = {objects[0].digest, objects[1].digest};
  ASSERT_TRUE(source->Get(digests, wire::Soon(), got).ok());
  EXPECT_TRUE(got[0].present());
  EXPECT_FALSE(got[1].present());
}

TEST_F(Redis, APasswordIsPassedThroughAndNotTold) {
  const Server server({"--requirepass", "sesame"});
  const wire::NamedObject object = Named(1, 10);
  RedisOptions options = server.Options();
  const auto without = RedisSource::Create(options).value();
  EXPECT_THAT(without->Put({&object, 1}, wire::Soon()).message(), HasSubstr("NOAUTH"));
  options.password = "wrong-word";
  const auto wrong = RedisSource::Create(options).value();
  const absl::Status status = wrong->Put({&object, 1}, wire::Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("WRONGPASS"));
  EXPECT_THAT(status.message(), Not(HasSubstr("wrong-word")));
  options.password = "sesame";
  EXPECT_TRUE(RedisSource::Create(options).value()->Put({&object, 1}, wire::Soon()).ok());
  options.user = "default";
  options.database = 3;
  EXPECT_TRUE(RedisSource::Create(options).value()->Put({&object, 1}, wire::Soon()).ok());
}

// Regression: a server that does not know AUTH answers with the words that it was given.
TEST_F(Redis, AServerThatRepeatsThePasswordIsNotQuoted) {
  const Server server({"--rename-command", "AUTH", ""});
  const wire::NamedObject object = Named(1, 10);
  RedisOptions options = server.Options();
  options.user = "someone";
  options.password = "sesame";
  const auto source = RedisSource::Create(options).value();
  const absl::Status status = source->Put({&object, 1}, wire::Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("AUTH"));
  EXPECT_THAT(status.message(), Not(HasSubstr("someone")));
  EXPECT_THAT(status.message(), Not(HasSubstr("sesame")));
}

TEST_F(Redis, AServerThatWasLostIsFoundAgainAndBelievedNoMore) {
  Server server;
  const auto source = RedisSource::Create(server.Options()).value();
  const wire::NamedObject object = Named(1, 1000);
  ASSERT_TRUE(source->Put({&object, 1}, wire::Soon()).ok());
  std::uint8_t held = 0;
  ASSERT_TRUE(source->Holds({&object.digest, 1}, wire::Soon(), {&held, 1}).ok());
  EXPECT_EQ(held, 1);
  server.Kill();
  Object got = object.object;
  const absl::Status lost = source->Get({&object.digest, 1}, wire::Soon(), {&got, 1});
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_FALSE(got.present());
  server.Start();
  // After its back-off; it knows nothing, and nobody believes that it does.
  absl::Status status;
  for (int i = 0; i < 200; ++i) {
    status = source->Holds({&object.digest, 1}, wire::Soon(), {&held, 1});
    if (status.ok()) break;
    std::this_thread::sleep_for(10ms);
  }
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(held, 0);
  EXPECT_TRUE(source->Put({&object, 1}, wire::Soon()).ok());
}

TEST_F(Redis, NobodyThereIsUnavailableAtOnce) {
  RedisOptions options;
  options.unix_socket = "/tmp/waymark_redis_nobody";
  options.initial_back_off = options.max_back_off = 10s;
  const auto source = RedisSource::Create(options).value();
  const Digest128 digest = Named(1, 1).digest;
  Object got;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(source->Get({&digest, 1}, wire::Soon(), {&got, 1}).message(),
              HasSubstr("connecting to /tmp/waymark_redis_nobody: No such file"));
  EXPECT_THAT(source->Get({&digest, 1}, wire::Soon(), {&got, 1}).message(), HasSubstr("too soon"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
}

TEST_F(Redis, AServerThatDoesNotAnswerCostsTheDeadlineAndNoMore) {
  Server server;
  const auto source = RedisSource::Create(server.Options()).value();
  const wire::NamedObject objects[] = {Named(1, 1000), Named(2, 1000)};
  ASSERT_TRUE(source->Put(objects, wire::Soon()).ok());
  // Tries until the server is there again; the answer is to this question, not to one that was
  // asked before and came late.
  const auto get_second = [&] {
    Object got;
    absl::Status status;
    for (int i = 0; i < 200; ++i) {
      status = source->Get({&objects[1].digest, 1}, wire::Soon(), {&got, 1});
      if (status.ok()) break;
      std::this_thread::sleep_for(10ms);
    }
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(Same(got, objects[1].object));
  };
  server.Pause();
  Object got;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(source->Get({&objects[0].digest, 1}, wire::After(100ms), {&got, 1}).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(got.present());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
  server.Resume();
  get_second();
  // More than the socket takes: writing waits, too.
  server.Pause();
  std::vector<wire::NamedObject> large;
  for (std::uint32_t n = 3; n < 40; ++n)
    large.push_back(Named(n, 1 << 20));
  const auto writing = std::chrono::steady_clock::now();
  EXPECT_EQ(source->Put(large, wire::After(200ms)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - writing, 3s);
  server.Resume();
  get_second();
}

// Regression: a call that threw kept its turn, and every later one waited for it to its deadline.
TEST_F(Redis, ACallWithoutMemoryGivesItsTurnBack) {
  Server server;
  const auto source = RedisSource::Create(server.Options()).value();
  const std::vector<NamedObject> objects = {{Digest128{{1}}, Object::Of({1, 2, 3})}};
  int threw = 0;
  for (std::uint64_t n = 1; n < 40; ++n) {
    ASSERT_TRUE(source->Put(objects, After(20s)).ok());
    std::vector<Object> got(1);
    FailAllocation(n);
    try {
      (void)source->Get({&objects[0].digest, 1}, After(20s), got);
    } catch (const std::bad_alloc&) {
      ++threw;
    }
    FailAllocation(0);
    ASSERT_TRUE(source->Get({&objects[0].digest, 1}, After(20s), got).ok()) << n;
    ASSERT_EQ(got[0].bytes.size(), 3u) << "a reply of the call before";
  }
  EXPECT_GT(threw, 3);
}

TEST_F(Redis, WhatTheServerEvictsIsMissing) {
  const Server server({"--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru"});
  const auto source = RedisSource::Create(server.Options()).value();
  const Rows rows = wire::LongRows(16384);
  const auto publisher = wire::Publisher::Create(source.get(), {.shape = {rows.shape, {}}}).value();
  const auto handle = wire::PublishRows(*publisher, "", rows).value();
  wire::Fetcher fetcher(source.get());
  wire::FetchReport report;
  const auto got = fetcher.Fetch(handle, wire::Soon(), &report).value();
  const std::int64_t lost = wire::ExpectRightOrLost(got, rows, Reason::kCapacity);
  EXPECT_GT(lost, 4000);
  EXPECT_TRUE(report.source.ok()) << report.source;
}

// A port of the loopback that nobody listens at.
std::string FreePort() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(listener);
  return bound ? std::to_string(ntohs(address.sin_port)) : "";
}

// A certificate that signs itself, with its key: name.crt and name.key of `folder`.
bool MakeCertificate(const Folder& folder, const std::string& name) {
  const pid_t pid =
      Spawn("/usr/bin/openssl",
            {"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
             "-nodes", "-days", "2", "-subj", "/CN=" + name, "-keyout", folder / (name + ".key"),
             "-out", folder / (name + ".crt")});
  int status = 1;
  return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

TEST_F(Redis, TlsIsThereOrSaysWhatItNeeds) {
  RedisOptions options;
  options.tls.use = true;
  const absl::Status status = RedisSource::Create(options).status();
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), HasSubstr("hiredis_ssl"));
    GTEST_SKIP() << "this build has no TLS for Redis";
  }
  const Folder folder;
  if (!MakeCertificate(folder, "server") || !MakeCertificate(folder, "other")) {
    GTEST_SKIP() << "no openssl here to make certificates with";
  }
  const std::string port = FreePort();
  ASSERT_FALSE(port.empty());
  Server server({"--tls-port", port, "--tls-cert-file", folder / "server.crt", "--tls-key-file",
                 folder / "server.key", "--tls-ca-cert-file", folder / "other.crt"});
  const wire::NamedObject object = Named(1, 3'000'000);
  const auto put = [&](const RedisOptions& with) {
    return RedisSource::Create(with).value()->Put({&object, 1}, wire::Soon());
  };
  options = server.Options();
  options.unix_socket.clear();
  options.port = std::stoi(port);
  EXPECT_EQ(put(options).code(), absl::StatusCode::kUnavailable);  // in the clear
  options.tls.use = true;
  options.tls.ca_file = folder / "server.crt";
  EXPECT_EQ(put(options).code(), absl::StatusCode::kUnavailable);  // who is this client?
  options.tls.certificate_file = folder / "other.crt";
  options.tls.key_file = folder / "other.key";
  EXPECT_TRUE(put(options).ok()) << put(options);
  options.tls.ca_file = folder / "other.crt";
  EXPECT_EQ(put(options).code(), absl::StatusCode::kUnavailable);  // who is this server?
  options.tls.ca_file = folder / "nowhere.crt";
  EXPECT_EQ(RedisSource::Create(options).status().code(), absl::StatusCode::kInvalidArgument);

  options.tls.ca_file = folder / "server.crt";
  const auto source = RedisSource::Create(options).value();
  Object got;
  ASSERT_TRUE(source->Get({&object.digest, 1}, wire::Soon(), {&got, 1}).ok());
  EXPECT_TRUE(Same(got, object.object));
  // A server that stops answering costs the deadline; one that is gone, nothing.
  server.Pause();
  const auto begin = std::chrono::steady_clock::now();
  absl::Status lost = source->Get({&object.digest, 1}, wire::After(200ms), {&got, 1});
  EXPECT_EQ(lost.code(), absl::StatusCode::kDeadlineExceeded) << lost;
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 200ms);
  server.Resume();
  server.Kill();
  std::this_thread::sleep_for(50ms);
  lost = source->Get({&object.digest, 1}, wire::Soon(), {&got, 1});
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_FALSE(got.present());
}

TEST(RedisOptions, ABuildWithoutHiredisSaysSo) {
  const absl::Status status = RedisSource::Create({}).status();
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), HasSubstr("has no hiredis (WAYMARK_REDIS"));
  }
}

TEST(RedisOptions, BadOnesAreRefusedByName) {
  const auto refused = [](auto change) {
    RedisOptions options;
    change(options);
    const absl::Status status = RedisSource::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](auto& o) { o.port = 0; }),
              HasSubstr("options.port must be in [1, 65535]"));
  EXPECT_THAT(refused([](auto& o) { o.host = ""; }), HasSubstr("options.host"));
  EXPECT_THAT(refused([](auto& o) { o.user = "u"; }), HasSubstr("options.password"));
  EXPECT_THAT(refused([](auto& o) { o.database = -1; }), HasSubstr("options.database"));
  EXPECT_THAT(refused([](auto& o) { o.time_to_live = -1s; }), HasSubstr("options.time_to_live"));
  EXPECT_THAT(refused([](auto& o) { o.connect_timeout = 0ms; }), HasSubstr("connect_timeout"));
  EXPECT_THAT(refused([](auto& o) { o.command_timeout = 0ms; }), HasSubstr("command_timeout"));
  EXPECT_THAT(refused([](auto& o) { o.initial_back_off = 0ms; }), HasSubstr("initial_back_off"));
  EXPECT_THAT(refused([](auto& o) { o.max_back_off = 1ms; }), HasSubstr("max_back_off"));
  EXPECT_THAT(refused([](auto& o) { o.tls.key_file = "k"; }), HasSubstr("options.tls.key_file"));
  EXPECT_THAT(refused([](auto& o) { o.tls.ca_file = "c"; }), HasSubstr("options.tls.use"));
}

}  // namespace
}  // namespace waymark

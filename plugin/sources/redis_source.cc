#include "plugin/sources/redis_source.h"

#include <hiredis/hiredis.h>
#ifdef WAYMARK_REDIS_TLS
#include <hiredis/hiredis_ssl.h>
#endif
#include <poll.h>
#include <signal.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/mutex.h"
#include "blockstore/timeout.h"
#include "blockstore/wire/lru_map.h"
#include "plugin/sources/redis_options.h"

namespace waymark {
namespace {

using wire::Deadline;
using wire::Object;
using Clock = std::chrono::steady_clock;

// Commands are buffered up to this many bytes before they are written: after each write to the
// socket hiredis moves the rest of its buffer.
constexpr std::size_t kWriteBytes = std::size_t{1} << 20;

// Blocks SIGPIPE on this thread. hiredis writes to sockets that the server may have closed, and the
// signal for that goes to the thread that writes. The process's own handlers are not changed.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec now{};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

timeval Left(Deadline deadline) {
  // At least 1 ms, because 0 would mean no limit.
  const auto left = std::max<std::int64_t>(
      1000, std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now()).count());
  return {static_cast<time_t>(left / 1000000), static_cast<suseconds_t>(left % 1000000)};
}

struct FreeContext {
  void operator()(redisContext* context) const { redisFree(context); }
};
struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

// The words of a command. Not owned.
using Words = std::vector<std::string_view>;

}  // namespace

#define WAYMARK_TEXT_OF(number) #number
#define WAYMARK_DOTTED(a, b, c) WAYMARK_TEXT_OF(a) "." WAYMARK_TEXT_OF(b) "." WAYMARK_TEXT_OF(c)
const char* RedisClient() {
#ifdef WAYMARK_REDIS_TLS
  return "hiredis-" WAYMARK_DOTTED(HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH) "+tls";
#else
  return "hiredis-" WAYMARK_DOTTED(HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
#endif
}

class RedisSource::Impl {
 public:
  explicit Impl(const RedisOptions& options) : options_(options) {
    if (options_.time_to_live.count() > 0) {
      options_.presence_cache =
          std::min<std::chrono::milliseconds>(options_.presence_cache, options_.time_to_live / 2);
    }
  }
#ifdef WAYMARK_REDIS_TLS
  ~Impl() {
    context_.reset();
    if (tls_ != nullptr) redisFreeSSLContext(tls_);
  }
  absl::Status MakeTls() {
    redisInitOpenSSL();
    const RedisTls& tls = options_.tls;
    const auto file = [](const std::string& name) { return name.empty() ? nullptr : name.c_str(); };
    redisSSLContextError error = REDIS_SSL_CTX_NONE;
    tls_ = redisCreateSSLContext(file(tls.ca_file), nullptr, file(tls.certificate_file),
                                 file(tls.key_file), file(tls.server_name), &error);
    if (tls_ != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("options.tls: ", redisSSLContextGetError(error)));
  }
#endif

  // Sends the commands and calls `answer` with i and reply i, in order of i. Replies that arrived
  // before an error have been passed on.
  template <typename Answer>
  absl::Status Call(std::span<const Words> commands, Deadline deadline, const Answer& answer) {
    if (commands.empty()) return absl::OkStatus();
    std::unique_lock<std::mutex> turn(turn_mutex_);
    if (!turn_free_.wait_until(turn, Limit(deadline), [&] { return !busy_; })) {
      return absl::DeadlineExceededError(
          "redis: other calls had the connection until the deadline");
    }
    busy_ = true;
    turn.unlock();
    absl::Status status = CallOnConnection(commands, deadline, answer);
    turn.lock();
    busy_ = false;
    turn.unlock();
    turn_free_.notify_one();
    return status;
  }

  void RememberPresent(const Digest128& digest) {
    const MutexLock lock(mutex_);
    const Clock::time_point until = Clock::now() + Clamped(options_.presence_cache);
    if (Clock::time_point* known = present_.Use(digest)) {
      *known = until;
      return;
    }
    if (options_.presence_cache_entries == 0) return;
    if (present_.size() >= options_.presence_cache_entries) present_.PopOldest();
    present_.Insert(digest, until);
  }
  bool KnownPresent(const Digest128& digest) {
    const MutexLock lock(mutex_);
    const Clock::time_point* known = present_.Use(digest);
    return known != nullptr && Clock::now() < *known;
  }

  [[nodiscard]] std::string Key(const Digest128& digest) const {
    static constexpr char kHex[] = "0123456789abcdef";
    std::string key = options_.key_prefix;
    std::array<std::uint8_t, sizeof(digest)> bytes;
    std::memcpy(bytes.data(), &digest, sizeof(digest));
    for (const std::uint8_t byte : bytes) {
      key += kHex[byte >> 4];
      key += kHex[byte & 15];
    }
    return key;
  }
  [[nodiscard]] const RedisOptions& options() const {
    return options_;
  }
  [[nodiscard]] Stats GetStats() const {
    const MutexLock lock(mutex_);
    return stats_;
  }

 private:
  // ---- called by the thread that has the turn

  // Closes the connection after a failure, and starts the back-off. Returns `status`.
  absl::Status Lose(absl::Status status) {
    context_.reset();
    back_off_ = back_off_.count() == 0 ? options_.initial_back_off
                                       : std::min(2 * back_off_, options_.max_back_off);
    not_before_ = Clock::now() + Clamped(back_off_);
    failure_ = std::string(status.message().data(), status.message().size());
    const MutexLock lock(mutex_);
    ++stats_.failures;
    present_.Clear();  // the server may have restarted without its data
    return status;
  }
  absl::Status Lost(const char* doing, Deadline deadline) {
    std::string why = absl::StrCat("redis: ", doing, ": ");
    if (context_ == nullptr) {
      why += "out of memory";
    } else if (context_->err == REDIS_ERR_IO && errno != 0) {
      why += std::strerror(errno);
    } else {
      why += context_->errstr;
    }
    if (Clock::now() >= deadline) return Lose(absl::DeadlineExceededError(why));
    return Lose(absl::UnavailableError(why));
  }

  absl::Status Connect(Deadline deadline) {
    if (context_ != nullptr) return absl::OkStatus();
    if (Clock::now() < not_before_) {
      return absl::UnavailableError(absl::StrCat(failure_, "; it is too soon to try again"));
    }
    deadline = std::min(deadline, Clock::now() + Clamped(options_.connect_timeout));
    const timeval left = Left(deadline);
    errno = 0;
    context_.reset(options_.unix_socket.empty()
                       ? redisConnectWithTimeout(options_.host.c_str(), options_.port, left)
                       : redisConnectUnixWithTimeout(options_.unix_socket.c_str(), left));
    if (context_ == nullptr || context_->err != 0) return Lost("connecting", deadline);
#ifdef WAYMARK_REDIS_TLS
    if (tls_ != nullptr) {
      if (redisSetTimeout(context_.get(), Left(deadline)) != REDIS_OK ||
          redisInitiateSSLWithContext(context_.get(), tls_) != REDIS_OK) {
        return Lost("TLS", deadline);
      }
    }
#endif
    std::vector<Words> greeting;
    const std::string database = absl::StrCat(options_.database);
    if (!options_.user.empty()) {
      greeting.push_back({"AUTH", options_.user, options_.password});
    } else if (!options_.password.empty()) {
      greeting.push_back({"AUTH", options_.password});
    }
    if (options_.database != 0) greeting.push_back({"SELECT", database});
    absl::Status refused;
    absl::Status status = Exchange(greeting, deadline, [&](std::size_t i, Reply reply) {
      if (reply->type != REDIS_REPLY_ERROR || !refused.ok()) return;
      std::string said(reply->str, reply->len);
      // A server without AUTH repeats the words of the command, the password among them, in its
      // error.
      if (greeting[i][0] == "AUTH") said = said.substr(0, said.find(' ')) + ", refused";
      refused =
          absl::UnavailableError(absl::StrCat("redis: ", std::string(greeting[i][0]), ": ", said));
    });
    if (!status.ok()) return status;
    if (!refused.ok()) return Lose(refused);
    back_off_ = {};
    const MutexLock lock(mutex_);
    ++stats_.connects;
    return absl::OkStatus();
  }

  template <typename Answer>
  absl::Status CallOnConnection(std::span<const Words> commands, Deadline deadline,
                                const Answer& answer) {
    const NoSigpipe no_sigpipe;
    if (absl::Status status = Connect(deadline); !status.ok()) return status;
    return Exchange(commands, deadline, answer);
  }

  // When to stop waiting for the next reply: a call may have any number of them.
  [[nodiscard]] Deadline Limit(Deadline deadline) const {
    return std::min(deadline, Clock::now() + Clamped(options_.command_timeout));
  }

  // Writes all commands, then reads all replies. The server buffers replies and goes on reading, so
  // neither side blocks the other.
  template <typename Answer>
  absl::Status Exchange(std::span<const Words> commands, Deadline deadline, const Answer& answer) {
    if (commands.empty()) return absl::OkStatus();
    std::vector<const char*> words;
    std::vector<std::size_t> sizes;
    std::size_t buffered = 0;
    for (const Words& command : commands) {
      words.clear();
      sizes.clear();
      for (const std::string_view word : command) {
        words.push_back(word.data());
        sizes.push_back(word.size());
        buffered += word.size();
      }
      if (redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), words.data(),
                                 sizes.data()) != REDIS_OK) {
        return Lost("writing", deadline);
      }
      if (buffered < kWriteBytes) continue;
      const Deadline limit = Limit(deadline);
      if (!Write(limit)) return Lost("writing", limit);
      buffered = 0;
    }
    const Deadline written = Limit(deadline);
    if (!Write(written)) return Lost("writing", written);
    for (std::size_t i = 0; i < commands.size(); ++i) {
      const Deadline limit = Limit(deadline);
      void* read = nullptr;
      while (read == nullptr) {
        if (redisGetReplyFromReader(context_.get(), &read) != REDIS_OK) {
          return Lost("reading", limit);
        }
        if (read != nullptr) break;
        if (!Await(POLLIN, limit) || redisBufferRead(context_.get()) != REDIS_OK) {
          return Lost("reading", limit);
        }
      }
      answer(i, Reply(static_cast<redisReply*>(read)));
    }
    const MutexLock lock(mutex_);
    stats_.commands += commands.size();
    return absl::OkStatus();
  }

  // Writes everything buffered. Returns false on failure or at the deadline.
  bool Write(Deadline deadline) {
    errno = 0;
    for (int done = 0; done == 0;) {
      if (!Await(POLLOUT, deadline) ||
          redisSetTimeout(context_.get(), Left(deadline)) != REDIS_OK ||
          redisBufferWrite(context_.get(), &done) != REDIS_OK) {
        return false;
      }
    }
    return true;
  }
  // Blocks until the socket is ready. Returns false, with errno set, at the deadline.
  bool Await(short event, Deadline deadline) {
#ifdef WAYMARK_REDIS_TLS
    if (tls_ != nullptr) {  // TLS may have read bytes that poll does not report
      return Clock::now() < deadline && redisSetTimeout(context_.get(), Left(deadline)) == REDIS_OK;
    }
#endif
    for (;;) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd socket{context_->fd, event, 0};
      const int ready =
          poll(&socket, 1, static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 1 << 30)));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
      if (Clock::now() >= deadline) {
        errno = ETIMEDOUT;
        return false;
      }
    }
  }

  RedisOptions options_;
  std::mutex turn_mutex_;
  std::condition_variable turn_free_;
  bool busy_ = false;  // guarded by turn_mutex_: a thread has the turn

  // Used by the thread that has the turn.
  std::unique_ptr<redisContext, FreeContext> context_;
  std::chrono::milliseconds back_off_{0};
  Clock::time_point not_before_;
  std::string failure_;  // message of the last failure
#ifdef WAYMARK_REDIS_TLS
  redisSSLContext* tls_ = nullptr;
#endif

  mutable Mutex mutex_;
  wire::LruMap<Digest128, Clock::time_point, wire::DigestHash> present_ ABSL_GUARDED_BY(mutex_);
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

namespace {

// Remembers the first error reply of a call.
class ErrorReplies {
 public:
  // Whether the reply is an error.
  bool Is(const redisReply& reply) {
    if (reply.type != REDIS_REPLY_ERROR) return false;
    if (first_.ok()) {
      first_ = absl::UnavailableError(absl::StrCat("redis: ", std::string(reply.str, reply.len)));
    }
    return true;
  }
  // `status` if it is not OK, else the first error reply, else OK.
  [[nodiscard]] absl::Status Or(const absl::Status& status) const {
    return status.ok() ? first_ : status;
  }

 private:
  absl::Status first_;
};

// The bytes of a reply as an object that owns the reply; absent if the key is.
Object BytesOf(Reply reply) {
  if (reply->type != REDIS_REPLY_STRING) return {};
  const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(reply->str),
                                            reply->len);
  return {std::shared_ptr<const void>(std::move(reply)), bytes};
}

std::string_view View(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

RedisSource::RedisSource(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RedisSource::~RedisSource() = default;

absl::StatusOr<std::unique_ptr<RedisSource>> RedisSource::Create(const RedisOptions& options) {
  if (absl::Status status = CheckRedisOptions(options); !status.ok()) return status;
  auto impl = std::make_unique<Impl>(options);
  if (options.tls.use) {
#ifdef WAYMARK_REDIS_TLS
    if (absl::Status status = impl->MakeTls(); !status.ok()) return status;
#else
    return absl::UnimplementedError(
        "options.tls.use: this build has no TLS for Redis; it needs hiredis 1.0 or later with its "
        "TLS library (hiredis_ssl)");
#endif
  }
  return std::unique_ptr<RedisSource>(new RedisSource(std::move(impl)));
}

absl::Status RedisSource::Get(std::span<const Digest128> digests, wire::Deadline deadline,
                              std::span<Object> objects) {
  std::fill(objects.begin(), objects.end(), Object{});
  std::vector<std::string> keys;
  for (const Digest128& digest : digests)
    keys.push_back(impl_->Key(digest));
  std::vector<Words> commands;
  for (const std::string& key : keys)
    commands.push_back({"GET", key});
  ErrorReplies refusals;
  return refusals.Or(impl_->Call(commands, deadline, [&](std::size_t i, Reply reply) {
    if (!refusals.Is(*reply)) objects[i] = BytesOf(std::move(reply));
  }));
}

absl::Status RedisSource::GetRanges(std::span<const wire::ObjectRange> ranges,
                                    wire::Deadline deadline, std::span<Object> objects) {
  std::fill(objects.begin(), objects.end(), Object{});
  std::vector<std::array<std::string, 3>> words;
  for (const wire::ObjectRange& range : ranges) {
    words.push_back(
        {impl_->Key(range.digest), absl::StrCat(range.begin), absl::StrCat(range.end - 1)});
  }
  std::vector<Words> commands;
  for (const auto& [key, begin, last] : words)
    commands.push_back({"GETRANGE", key, begin, last});
  ErrorReplies refusals;
  return refusals.Or(impl_->Call(commands, deadline, [&](std::size_t i, Reply reply) {
    if (refusals.Is(*reply)) return;
    // The reply for an absent key is an empty string.
    if (reply->len == ranges[i].end - ranges[i].begin) objects[i] = BytesOf(std::move(reply));
  }));
}

absl::Status RedisSource::Put(std::span<const wire::NamedObject> objects, wire::Deadline deadline) {
  const std::string seconds = absl::StrCat(impl_->options().time_to_live.count());
  std::vector<std::string> keys;
  for (const wire::NamedObject& named : objects)
    keys.push_back(impl_->Key(named.digest));
  std::vector<Words> commands;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    commands.push_back({"SET", keys[i], View(objects[i].object.bytes)});
    if (impl_->options().time_to_live.count() > 0) {
      commands.back().insert(commands.back().end(), {"EX", seconds});
    }
  }
  ErrorReplies refusals;
  return refusals.Or(impl_->Call(commands, deadline, [&](std::size_t i, Reply reply) {
    if (!refusals.Is(*reply)) impl_->RememberPresent(objects[i].digest);
  }));
}

absl::Status RedisSource::Holds(std::span<const Digest128> digests, wire::Deadline deadline,
                                std::span<std::uint8_t> held) {
  const std::string seconds = absl::StrCat(impl_->options().time_to_live.count());
  const bool expires = impl_->options().time_to_live.count() > 0;
  std::vector<std::size_t> asked;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    held[i] = impl_->KnownPresent(digests[i]) ? 1 : 0;
    if (held[i] != 0) continue;
    asked.push_back(i);
    keys.push_back(impl_->Key(digests[i]));
  }
  // Both reply 1 if the key exists, and count as a use of it.
  std::vector<Words> commands;
  for (const std::string& key : keys) {
    if (expires) {
      commands.push_back({"EXPIRE", key, seconds});
    } else {
      commands.push_back({"TOUCH", key});
    }
  }
  ErrorReplies refusals;
  return refusals.Or(impl_->Call(commands, deadline, [&](std::size_t i, Reply reply) {
    if (refusals.Is(*reply) || reply->type != REDIS_REPLY_INTEGER || reply->integer != 1) return;
    held[asked[i]] = 1;
    impl_->RememberPresent(digests[asked[i]]);
  }));
}

RedisSource::Stats RedisSource::GetStats() const {
  return impl_->GetStats();
}

}  // namespace waymark

#include "plugin/sources/redis_source.h"

#ifdef WAYMARK_REDIS
#include <hiredis/hiredis.h>
#endif
#ifdef WAYMARK_REDIS_TLS
#include <hiredis/hiredis_ssl.h>
#endif
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "blockstore/invalid.h"
#include "blockstore/timeout.h"

namespace waymark {
namespace {

// InvalidArgument naming the option, the rule and the value. No message contains user or password.
absl::Status CheckRedisOptions(const RedisOptions& options) {
  const RedisTls& tls = options.tls;
  const bool by_address = options.unix_socket.empty();
  const bool tls_set = !(tls.ca_file.empty() && tls.certificate_file.empty() &&
                         tls.key_file.empty() && tls.server_name.empty());
  const auto rule = [](bool right, const auto&... text) {
    return right ? absl::OkStatus() : Invalid("options.", text...);
  };
  const auto least = [&rule](const char* option, std::int64_t value, std::int64_t bound,
                             const char* unit) {
    return rule(value >= bound, option, " must be ", bound, unit, " or more; it is ", value);
  };
  for (const absl::Status& status : {
           rule(!by_address || !options.host.empty(),
                "host must be a name or an address; it is empty"),
           rule(options.user.empty() || !options.password.empty(),
                "password must be given with options.user"),
           rule(tls.key_file.empty() == tls.certificate_file.empty(),
                "tls.key_file and options.tls.certificate_file must be given together"),
           rule(tls.use || !tls_set, "tls.use must be set if another option of TLS is"),
           rule(!by_address || (options.port >= 1 && options.port <= 65535),
                "port must be in [1, 65535]; it is ", options.port),
           least("database", options.database, 0, ""),
           least("time_to_live", options.time_to_live.count(), 0, " s"),
           least("connect_timeout", options.connect_timeout.count(), 1, " ms"),
           least("command_timeout", options.command_timeout.count(), 1, " ms"),
           least("initial_back_off", options.initial_back_off.count(), 1, " ms"),
           rule(options.max_back_off >= options.initial_back_off,
                "max_back_off must be initial_back_off or more; it is ",
                options.max_back_off.count()),
       }) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

#ifdef WAYMARK_REDIS

namespace {

using wire::Deadline;
using wire::Object;
using Clock = std::chrono::steady_clock;

// Commands are buffered up to this many bytes before they are written: after each write to the
// socket hiredis moves the rest of its buffer.
constexpr std::size_t kWriteBytes = std::size_t{1} << 20;
// Smaller values are not written into RedisOptions::values_file.
constexpr std::size_t kLargeBytes = std::size_t{1} << 16;

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

// The bytes of a reply as an object that owns the reply; absent if the key is.
Object BytesOf(Reply reply) {
  if (reply->type != REDIS_REPLY_STRING) return {};
  const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(reply->str),
                                            reply->len);
  return {std::shared_ptr<const void>(std::move(reply)), bytes};
}

class HiredisSource final : public RedisSource {
 public:
  explicit HiredisSource(const RedisOptions& options) : options_(options) {}
  ~HiredisSource() override {
    if (!values_.empty()) munmap(values_.data(), values_.size());
#ifdef WAYMARK_REDIS_TLS
    context_.reset();
    if (tls_ != nullptr) redisFreeSSLContext(tls_);
#endif
  }
  absl::Status MapValues() {
    const off_t size = lseek(options_.values_file, 0, SEEK_END);
    void* const mapped = size <= 0
                             ? MAP_FAILED
                             : mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                                    MAP_SHARED, options_.values_file, 0);
    if (mapped == MAP_FAILED) {
      return Invalid("options.values_file must be a file that can be mapped; it is ",
                     options_.values_file);
    }
    values_ = {static_cast<std::uint8_t*>(mapped), static_cast<std::size_t>(size)};
    const std::size_t bytes = values_.size() / areas_.size();
    for (std::size_t i = 0; i < areas_.size(); ++i)
      areas_[i].bytes = values_.subspan(i * bytes, bytes);
    return absl::OkStatus();
  }
#ifdef WAYMARK_REDIS_TLS
  absl::Status MakeTls() {
    redisInitOpenSSL();
    const RedisTls& tls = options_.tls;
    const auto file = [](const std::string& name) { return name.empty() ? nullptr : name.c_str(); };
    redisSSLContextError error = REDIS_SSL_CTX_NONE;
    tls_ = redisCreateSSLContext(file(tls.ca_file), nullptr, file(tls.certificate_file),
                                 file(tls.key_file), file(tls.server_name), &error);
    if (tls_ != nullptr) return absl::OkStatus();
    return Invalid("options.tls: ", redisSSLContextGetError(error));
  }
#endif

  absl::Status Check(Deadline deadline) override {
    const Words ping = {"PING"};
    return Call({&ping, 1}, deadline, [](std::size_t, const Reply&) {});
  }

  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    std::fill(objects.begin(), objects.end(), Object{});
    const std::vector<std::string> keys = Keys(digests);
    std::vector<Words> commands;
    for (const std::string& key : keys)
      commands.push_back({"GET", key});
    return Call(commands, deadline,
                [&](std::size_t i, Reply reply) { objects[i] = BytesOf(std::move(reply)); });
  }

  absl::Status GetRanges(std::span<const wire::ObjectRange> ranges, Deadline deadline,
                         std::span<Object> objects) override {
    std::fill(objects.begin(), objects.end(), Object{});
    std::vector<std::array<std::string, 3>> words;
    for (const wire::ObjectRange& range : ranges)
      words.push_back({Key(range.digest), absl::StrCat(range.begin), absl::StrCat(range.end - 1)});
    std::vector<Words> commands;
    for (const auto& [key, begin, last] : words)
      commands.push_back({"GETRANGE", key, begin, last});
    return Call(commands, deadline, [&](std::size_t i, Reply reply) {
      // The reply for an absent key is an empty string.
      if (reply->len == ranges[i].end - ranges[i].begin) objects[i] = BytesOf(std::move(reply));
    });
  }

  absl::Status Put(std::span<const wire::NamedObject> objects, Deadline deadline) override {
    const std::string seconds = absl::StrCat(options_.time_to_live.count());
    std::vector<std::string> keys;
    for (const wire::NamedObject& named : objects)
      keys.push_back(Key(named.digest));
    // Before this call's turn, while the server takes the values of another.
    Area* const area = expires() ? nullptr : TakeArea();
    absl::Status status = absl::UnknownError("");
    const absl::Cleanup give_back = [&] {
      if (area == nullptr) return;
      const std::lock_guard<std::mutex> turn(turn_mutex_);
      area->use = status.ok() ? Area::kFree : Area::kUnread;
      if (status.ok()) return;
      area->after = calls_;
      ++area->epoch();
    };
    std::size_t used = Area::kHead;
    std::vector<std::array<std::string, 4>> places;  // in `area`
    places.reserve(objects.size());
    std::vector<Words> commands;
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const std::span<const std::uint8_t> bytes = objects[i].object.bytes;
      commands.push_back({"SET", keys[i]});
      Words& words = commands.back();
      if (area != nullptr && bytes.size() >= kLargeBytes &&
          bytes.size() <= area->bytes.size() - used) {
        std::memcpy(area->bytes.data() + used, bytes.data(), bytes.size());
        const auto begin = static_cast<std::size_t>(area->bytes.data() - values_.data());
        places.push_back({absl::StrCat(begin + used), absl::StrCat(bytes.size()),
                          absl::StrCat(begin), absl::StrCat(area->epoch())});
        words.insert(words.end(), places.back().begin(), places.back().end());
        used += bytes.size();
      } else {
        words.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      if (expires()) words.insert(words.end(), {"EX", seconds});
    }
    status = Call(commands, deadline, [](std::size_t, const Reply&) {});
    return status;
  }

  absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                     std::span<std::uint8_t> held) override {
    std::fill(held.begin(), held.end(), std::uint8_t{0});
    const std::string seconds = absl::StrCat(options_.time_to_live.count());
    const std::vector<std::string> keys = Keys(digests);
    // Both reply 1 if the key exists, and count as a use of it.
    std::vector<Words> commands;
    for (const std::string& key : keys)
      commands.push_back(expires() ? Words{"EXPIRE", key, seconds} : Words{"TOUCH", key});
    return Call(commands, deadline, [&](std::size_t i, const Reply& reply) {
      held[i] = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1 ? 1 : 0;
    });
  }

 private:
  // Of values_, for the large values of one Put. It begins with its epoch, which each SET names: a
  // Put that failed ends it, so that the server does not read what its commands named. The server
  // makes one call after the other, so none does when one that began after that has succeeded.
  struct Area {
    static constexpr std::size_t kHead = 64;
    enum Use : std::uint8_t { kFree, kUsed, kUnread };  // kUnread: the server may yet read it
    [[nodiscard]] std::uint64_t& epoch() const {
      return *reinterpret_cast<std::uint64_t*>(bytes.data());
    }
    std::span<std::uint8_t> bytes;
    Use use = kFree;
    std::uint64_t after = 0;  // kUnread: the calls that had begun by then
  };

  [[nodiscard]] bool expires() const {
    return options_.time_to_live.count() > 0;
  }

  // Null if none is free.
  Area* TakeArea() {
    const std::lock_guard<std::mutex> turn(turn_mutex_);
    for (Area& area : areas_) {
      if (area.use != Area::kFree || area.bytes.size() <= Area::kHead) continue;
      area.use = Area::kUsed;
      return &area;
    }
    return nullptr;
  }

  // Sends the commands and calls `answer` with i and reply i, in order of i, unless the reply is an
  // error; the first of those is returned. Replies that arrived before another failure have been
  // passed on.
  template <typename Answer>
  absl::Status Call(std::span<const Words> commands, Deadline deadline, const Answer& answer) {
    if (commands.empty()) return absl::OkStatus();
    std::unique_lock<std::mutex> turn(turn_mutex_);
    if (!turn_free_.wait_until(turn, Limit(deadline), [&] { return !busy_; })) {
      return absl::DeadlineExceededError(
          "redis: other calls had the connection until the deadline");
    }
    busy_ = true;
    const std::uint64_t number = ++calls_;
    turn.unlock();
    bool threw = true;
    absl::Status refused, status;
    const absl::Cleanup pass_on = [&] {
      if (threw) context_.reset();  // its replies are for nobody
      turn.lock();
      for (Area& area : areas_) {
        const bool read = status.ok() && refused.ok() && !threw && area.after < number;
        if (area.use == Area::kUnread && read) area.use = Area::kFree;
      }
      busy_ = false;
      turn.unlock();
      turn_free_.notify_one();
    };
    status = CallOnConnection(commands, deadline, [&](std::size_t i, Reply reply) {
      if (reply->type != REDIS_REPLY_ERROR) return answer(i, std::move(reply));
      if (!refused.ok()) return;
      refused =
          absl::UnavailableError(absl::StrCat("redis: ", std::string(reply->str, reply->len)));
    });
    threw = false;
    return status.ok() ? refused : status;
  }

  [[nodiscard]] std::string Key(const Digest128& digest) const {
    const absl::string_view bytes(reinterpret_cast<const char*>(&digest), sizeof(digest));
    return absl::StrCat(options_.key_prefix, absl::BytesToHexString(bytes));
  }
  [[nodiscard]] std::vector<std::string> Keys(std::span<const Digest128> digests) const {
    std::vector<std::string> keys;
    for (const Digest128& digest : digests)
      keys.push_back(Key(digest));
    return keys;
  }

  // ---- called by the thread that has the turn

  // Closes the connection after a failure, and starts the back-off. Returns `status`.
  absl::Status Lose(absl::Status status) {
    context_.reset();
    back_off_ = back_off_.count() == 0 ? options_.initial_back_off
                                       : std::min(2 * back_off_, options_.max_back_off);
    not_before_ = Clock::now() + Clamped(back_off_);
    failure_ = std::string(status.message().data(), status.message().size());
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
    if (const auto now = Clock::now(); now < not_before_) {
      const std::string why = failure_ + "; it is too soon to try again";
      return now < deadline ? absl::UnavailableError(why) : absl::DeadlineExceededError(why);
    }
    deadline = std::min(deadline, Clock::now() + Clamped(options_.connect_timeout));
    const timeval left = Left(deadline);
    errno = 0;
    const std::string where =
        "connecting to " + (options_.unix_socket.empty()
                                ? absl::StrCat(options_.host, ":", options_.port)
                                : options_.unix_socket);
    context_.reset(options_.unix_socket.empty()
                       ? redisConnectWithTimeout(options_.host.c_str(), options_.port, left)
                       : redisConnectUnixWithTimeout(options_.unix_socket.c_str(), left));
    if (context_ == nullptr || context_->err != 0) return Lost(where.c_str(), deadline);
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
        if (!Bound(limit) || redisBufferRead(context_.get()) != REDIS_OK) {
          return Lost("reading", limit);
        }
      }
      answer(i, Reply(static_cast<redisReply*>(read)));
    }
    return absl::OkStatus();
  }

  // Writes everything buffered. Returns false on failure or at the deadline.
  bool Write(Deadline deadline) {
    errno = 0;
    for (int done = 0; done == 0;) {
      if (!Bound(deadline) || redisBufferWrite(context_.get(), &done) != REDIS_OK) return false;
    }
    return true;
  }
  // Bounds the next read or write of the socket. Returns false at the deadline.
  bool Bound(Deadline deadline) {
    return Clock::now() < deadline && redisSetTimeout(context_.get(), Left(deadline)) == REDIS_OK;
  }

  RedisOptions options_;
  std::mutex turn_mutex_;
  std::condition_variable turn_free_;
  // Guarded by turn_mutex_.
  bool busy_ = false;  // a thread has the turn
  std::uint64_t calls_ = 0;
  std::array<Area, 2> areas_;

  std::span<std::uint8_t> values_;  // options_.values_file

  // Used by the thread that has the turn.
  std::unique_ptr<redisContext, FreeContext> context_;
  std::chrono::milliseconds back_off_{0};
  Clock::time_point not_before_;
  std::string failure_;  // message of the last failure
#ifdef WAYMARK_REDIS_TLS
  redisSSLContext* tls_ = nullptr;
#endif
};

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

absl::StatusOr<std::unique_ptr<RedisSource>> RedisSource::Create(const RedisOptions& options) {
  if (absl::Status status = CheckRedisOptions(options); !status.ok()) return status;
#ifndef WAYMARK_REDIS_TLS
  if (options.tls.use) {
    return absl::UnimplementedError(
        "options.tls.use: this build has no TLS for Redis; it needs hiredis 1.0 or later with its "
        "TLS library (hiredis_ssl)");
  }
#endif
  auto source = std::make_unique<HiredisSource>(options);
  if (options.values_file >= 0) {
    if (absl::Status status = source->MapValues(); !status.ok()) return status;
  }
#ifdef WAYMARK_REDIS_TLS
  if (options.tls.use) {
    if (absl::Status status = source->MakeTls(); !status.ok()) return status;
  }
#endif
  return source;
}

#else  // no hiredis

const char* RedisClient() {
  return "none";
}

absl::StatusOr<std::unique_ptr<RedisSource>> RedisSource::Create(const RedisOptions& options) {
  if (absl::Status status = CheckRedisOptions(options); !status.ok()) return status;
  return absl::UnimplementedError(
      "RedisSource: this build has no hiredis (WAYMARK_REDIS; package libhiredis-dev)");
}

#endif  // WAYMARK_REDIS

}  // namespace waymark

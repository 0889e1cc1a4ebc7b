// Page sources in the C ABI.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "blockstore/wire/file_source.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/page_source.h"
#include "plugin/abi/fill.h"
#include "plugin/sources/folder_source.h"
#include "plugin/sources/redis_source.h"

// The objects of one call of `get` or `get_ranges`, as the callback passes them. Lives as long as
// that call. One thread.
struct wm_reply : waymark::abi::Tagged<0x776d207265706c79> {  // "wm reply"
  // `ranges` has as many elements as `objects`, or none: whole objects.
  wm_reply(std::span<waymark::wire::Object> to, std::span<const waymark::wire::ObjectRange> of)
      : objects(to), ranges(of) {}
  ~wm_reply() { tag.store(0, std::memory_order_relaxed); }
  wm_reply(const wm_reply&) = delete;
  wm_reply& operator=(const wm_reply&) = delete;

  const std::span<waymark::wire::Object> objects;
  const std::span<const waymark::wire::ObjectRange> ranges;
};

namespace waymark::abi {
namespace {

using wire::Deadline;
using wire::NamedObject;
using wire::Object;
using wire::ObjectRange;

// Requests go to the callbacks as they are.
static_assert(sizeof(wm_object_range) == sizeof(ObjectRange) &&
              offsetof(wm_object_range, digest) == offsetof(ObjectRange, digest) &&
              offsetof(wm_object_range, begin) == offsetof(ObjectRange, begin) &&
              offsetof(wm_object_range, end) == offsetof(ObjectRange, end));

const wm_digest* ToC(std::span<const Digest128> digests) {
  return reinterpret_cast<const wm_digest*>(digests.data());
}

// Calls `callback(timeout_ns, why)`, which returns a wm_status.
template <class F>
absl::Status Call(Deadline deadline, F&& callback) {
  const std::int64_t left =
      std::chrono::nanoseconds(deadline - std::chrono::steady_clock::now()).count();
  if (left <= 0) return absl::DeadlineExceededError("no time was left for the source");
  char text[512] = {};
  wm_message why = {text, sizeof(text), 0};
  wm_status status = WM_OK;
  try {
    status = callback(left, &why);
  } catch (...) {
    return absl::InternalError("a callback of the source threw");
  }
  if (status == WM_OK) return absl::OkStatus();
  if (status < WM_OK || status > WM_DATA_LOSS) status = WM_UNKNOWN;
  text[sizeof(text) - 1] = '\0';
  return absl::Status(static_cast<absl::StatusCode>(status), text);
}

// Calls are passed on to the callbacks of a C program, on the thread that makes them. No callback
// is made after the deadline. What a callback throws becomes Internal; a status that is none
// becomes Unknown.
class CallbackSource final : public wire::PageSource {
 public:
  // REQUIRES: callbacks.get.
  explicit CallbackSource(const wm_source_callbacks& callbacks) : callbacks_(callbacks) {}
  ~CallbackSource() override {
    if (callbacks_.destroy == nullptr) return;
    try {
      callbacks_.destroy(callbacks_.context);
    } catch (...) {
    }
  }

  [[nodiscard]] absl::Status Get(std::span<const Digest128> digests, wire::Deadline deadline,
                                 std::span<wire::Object> objects) override {
    std::fill(objects.begin(), objects.end(), Object{});
    if (digests.empty()) return absl::OkStatus();
    wm_reply reply(objects, {});
    return Call(deadline, [&](std::int64_t timeout_ns, wm_message* why) {
      return callbacks_.get(callbacks_.context, ToC(digests), digests.size(), timeout_ns, &reply,
                            why);
    });
  }

  // Without `get_ranges`: Unimplemented, so that fetchers get whole objects, and compare them with
  // their digests.
  [[nodiscard]] absl::Status GetRanges(std::span<const wire::ObjectRange> ranges,
                                       wire::Deadline deadline,
                                       std::span<wire::Object> objects) override {
    std::fill(objects.begin(), objects.end(), Object{});
    if (ranges.empty()) return absl::OkStatus();
    if (callbacks_.get_ranges == nullptr)
      return absl::UnimplementedError("the source has no ranges");
    wm_reply reply(objects, ranges);
    return Call(deadline, [&](std::int64_t timeout_ns, wm_message* why) {
      return callbacks_.get_ranges(callbacks_.context,
                                   reinterpret_cast<const wm_object_range*>(ranges.data()),
                                   ranges.size(), timeout_ns, &reply, why);
    });
  }

  // Without `put`: Unimplemented.
  [[nodiscard]] absl::Status Put(std::span<const wire::NamedObject> objects,
                                 wire::Deadline deadline) override {
    if (callbacks_.put == nullptr) return absl::UnimplementedError("the source is read only");
    if (objects.empty()) return absl::OkStatus();
    std::vector<wm_object> given;
    given.reserve(objects.size());
    for (const NamedObject& named : objects) {
      wm_object object = {{}, named.object.bytes.data(), named.object.bytes.size()};
      std::memcpy(&object.digest, &named.digest, sizeof(object.digest));
      given.push_back(object);
    }
    return Call(deadline, [&](std::int64_t timeout_ns, wm_message* why) {
      return callbacks_.put(callbacks_.context, given.data(), given.size(), timeout_ns, why);
    });
  }

  // Without `holds`: none.
  [[nodiscard]] absl::Status Holds(std::span<const Digest128> digests, wire::Deadline deadline,
                                   std::span<std::uint8_t> held) override {
    std::fill(held.begin(), held.end(), std::uint8_t{0});
    if (callbacks_.holds == nullptr || digests.empty()) return absl::OkStatus();
    absl::Status status = Call(deadline, [&](std::int64_t timeout_ns, wm_message* why) {
      return callbacks_.holds(callbacks_.context, ToC(digests), digests.size(), timeout_ns,
                              held.data(), why);
    });
    for (std::uint8_t& one : held)
      one = one != 0 ? 1 : 0;
    return status;
  }

  [[nodiscard]] bool read_only() const override { return callbacks_.put == nullptr; }

 private:
  const wm_source_callbacks callbacks_;
};

wm_status SourceMemoryCreate(std::uint64_t max_bytes, wm_source** out, wm_message* why) noexcept {
  return Guard(why, Arguments().Pointer(out, "out"),
               [&] { *out = new wm_source(std::make_unique<wire::MemorySource>(max_bytes)); });
}

wm_status SourceFileOpen(const char* path, const wm_read_limits* given, wm_source** out,
                         wm_message* why) noexcept {
  return Guard(why, Arguments().Pointer(path, "path").Pointer(out, "out"), [&]() -> absl::Status {
    const absl::StatusOr<Reading> reading = TakeLimits(given);
    if (!reading.ok()) return reading.status();
    return Give(wire::FileSource::Open(path, reading->limits, reading->access), out);
  });
}

wm_status SourceCallbacksCreate(const wm_source_callbacks* given, wm_source** out,
                                wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_source_callbacks args = {};
    Arguments check;
    check.Struct(given, args, "callbacks").Flags(args.flags, 0, "callbacks.flags");
    check.That(args.get != nullptr, "callbacks.get", "must not be null");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    auto source = std::make_unique<wm_source>();
    source->source = std::make_shared<CallbackSource>(args);
    *out = source.release();
    return absl::OkStatus();
  });
}

wm_status ReplyObject(wm_reply* reply, std::size_t index, const std::uint8_t* data,
                      std::uint64_t size) noexcept {
  Arguments check;
  check.Object(reply, "reply").That(data != nullptr || size == 0, "data", "must not be null");
  return Guard(nullptr, check, [&]() -> absl::Status {
    const std::span<const ObjectRange> ranges = reply->ranges;
    check.That(index < reply->objects.size(), "index", "must be below the number of objects");
    if (check.ok() && !ranges.empty()) {
      check.That(size == ranges[index].end - ranges[index].begin, "size", "must be the range's");
    }
    if (check.ok()) reply->objects[index] = Object::Of({data, data + size});
    return check.status();
  });
}

wm_status SourceFolderCreate(const char* path, std::uint64_t max_bytes, std::int32_t time_to_live_s,
                             wm_source** out, wm_message* why) noexcept {
  Arguments check;
  check.Pointer(path, "path").Pointer(out, "out");
  check.InRange(time_to_live_s, 0, INT32_MAX, "time_to_live_s");
  return Guard(why, check, [&] {
    const FolderOptions options = {path, max_bytes, std::chrono::seconds(time_to_live_s)};
    return Give(FolderSource::Create(options), out);
  });
}

wm_status SourceRedisCreate(const wm_redis_options* given, wm_source** out,
                            wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_redis_options args = {};
    Arguments check;
    if (given != nullptr) check.Struct(given, args, "options");
    check.Flags(args.flags, WM_REDIS_TLS, "options.flags");
    RedisOptions options;
    const auto text = [](const char* from, std::string& to) {
      if (from != nullptr) to = from;
    };
    if (*OrEmpty(args.host) != 0) options.host = args.host;
    text(args.unix_socket, options.unix_socket);
    text(args.user, options.user);
    text(args.password, options.password);
    text(args.key_prefix, options.key_prefix);
    text(args.tls_ca_file, options.tls.ca_file);
    text(args.tls_certificate_file, options.tls.certificate_file);
    text(args.tls_key_file, options.tls.key_file);
    text(args.tls_server_name, options.tls.server_name);
    options.tls.use = (args.flags & WM_REDIS_TLS) != 0;
    const auto number = [&check](std::int32_t from, std::int32_t most, const char* name, auto& to) {
      check.InRange(from, 0, most, name);
      if (from != 0) to = std::decay_t<decltype(to)>(from);
    };
    number(args.port, 65535, "options.port", options.port);
    number(args.database, INT32_MAX, "options.database", options.database);
    number(args.time_to_live_s, INT32_MAX, "options.time_to_live_s", options.time_to_live);
    number(args.connect_timeout_ms, INT32_MAX, "options.connect_timeout_ms",
           options.connect_timeout);
    number(args.command_timeout_ms, INT32_MAX, "options.command_timeout_ms",
           options.command_timeout);
    number(args.initial_back_off_ms, INT32_MAX, "options.initial_back_off_ms",
           options.initial_back_off);
    number(args.max_back_off_ms, INT32_MAX, "options.max_back_off_ms", options.max_back_off);
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    return Give(RedisSource::Create(options), out);
  });
}

wm_status SourceCheck(const wm_source* source, std::int64_t timeout_ns, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(source, "source"),
               [&] { return source->source->Check(wire::After(Bounded(timeout_ns))); });
}

}  // namespace

absl::Status TakeTierOptions(const wm_tier_options* given, wire::TierOptions& to) {
  if (given == nullptr) return absl::OkStatus();
  wm_tier_options args = {};
  Arguments check;
  check.Struct(given, args, "tier")
      .Flags(args.flags, WM_TIER_READ_ONLY | WM_TIER_LOST | WM_TIER_NAMES, "tier.flags");
  check.Object(args.source, "tier.source");
  if (args.put != nullptr) check.Object(args.put, "tier.put");
  check.Array(args.key, args.key_size, "tier.key");
  check.InRange(args.timeout_ns, 0, INT64_MAX, "tier.timeout_ns");
  check.InRange(args.skip_ns, 0, INT64_MAX, "tier.skip_ns");
  check.InRange(args.put_timeout_ns, 0, INT64_MAX, "tier.put_timeout_ns");
  check.InRange(args.time_to_live_ns, 0, INT64_MAX, "tier.time_to_live_ns");
  if (!check.ok()) return check.status();
  to.get = args.source->source;
  if (args.put != nullptr) to.put = args.put->source;
  to.space = OrEmpty(args.space);
  to.publisher = OrEmpty(args.publisher);
  if (args.key_size != 0) {
    const absl::StatusOr<wire::DigestKey> key =
        wire::DigestKey::Create("tier.key", {args.key, args.key_size});
    if (!key.ok()) return key.status();
    to.key = *key;
  }
  to.publish = (args.flags & WM_TIER_READ_ONLY) == 0;
  to.lost = (args.flags & WM_TIER_LOST) != 0;
  to.look_up = (args.flags & WM_TIER_NAMES) == 0;
  if (args.timeout_ns != 0) to.timeout = Bounded(args.timeout_ns);
  if (args.skip_ns != 0) to.skip = Bounded(args.skip_ns);
  if (args.put_timeout_ns != 0) to.put_timeout = Bounded(args.put_timeout_ns);
  to.time_to_live = Bounded(args.time_to_live_ns);
  if (args.max_waiting != 0) to.max_waiting = args.max_waiting;
  to.max_bytes = args.max_bytes;
  return absl::OkStatus();
}

void FillSources(wm_wire_api_v1& wire) {
  wire.source_memory_create = &SourceMemoryCreate;
  wire.source_file_open = &SourceFileOpen;
  wire.source_callbacks_create = &SourceCallbacksCreate;
  wire.reply_object = &ReplyObject;
  wire.source_folder_create = &SourceFolderCreate;
  wire.source_redis_create = &SourceRedisCreate;
  wire.source_check = &SourceCheck;
  wire.source_release = &Release<wm_source>;
}

}  // namespace waymark::abi

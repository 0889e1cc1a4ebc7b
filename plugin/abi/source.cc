// Page sources in the C ABI.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "blockstore/wire/file_source.h"
#include "blockstore/wire/memory_source.h"
#include "plugin/abi/callback_source.h"
#include "plugin/abi/fill.h"
#include "plugin/sources/redis_source.h"

namespace waymark::abi {
namespace {

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
    source->source = std::make_unique<CallbackSource>(args);
    *out = source.release();
    return absl::OkStatus();
  });
}

wm_status ReplyObject(wm_reply* reply, std::size_t index, const std::uint8_t* data,
                      std::uint64_t size) noexcept {
  Arguments check;
  check.Object(reply, "reply").That(data != nullptr || size == 0, "data", "must not be null");
  return Guard(nullptr, check, [&] { return reply->Set(index, {data, size}); });
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

}  // namespace

void FillSources(wm_wire_api_v1& wire) {
  wire.source_memory_create = &SourceMemoryCreate;
  wire.source_file_open = &SourceFileOpen;
  wire.source_callbacks_create = &SourceCallbacksCreate;
  wire.reply_object = &ReplyObject;
  wire.source_redis_create = &SourceRedisCreate;
  wire.source_release = &Release<wm_source>;
}

}  // namespace waymark::abi

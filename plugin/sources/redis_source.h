// RedisSource: objects in a Redis server, under their digest.
//
// A part of the build where hiredis is found (WAYMARK_REDIS). What Redis evicts, expires or loses
// is absent; nothing else happens.
#ifndef WAYMARK_PLUGIN_SOURCES_REDIS_SOURCE_H_
#define WAYMARK_PLUGIN_SOURCES_REDIS_SOURCE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/wire/page_source.h"

namespace waymark {

// The client library of this build: "hiredis-0.14.1", "hiredis-1.2.0+tls", or "none". Static.
[[nodiscard]] const char* RedisClient();

// The server's certificate must be signed by one that is trusted. The name in it is not looked at:
// where anybody can have a certificate signed by the same authority, use an authority of your own.
struct RedisTls {
  bool use = false;              // false with one of the others: an error
  std::string ca_file;           // trusted certificates, PEM; "": the system's
  std::string certificate_file;  // of this client, PEM; "": none
  std::string key_file;          // of the certificate, PEM
  std::string server_name;       // for SNI; "": none
};

struct RedisOptions {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string unix_socket;  // instead of host and port
  // For AUTH, passed through; a user needs Redis 6. "": not sent.
  std::string user;
  std::string password;
  int database = 0;
  RedisTls tls;  // needs hiredis 1.0 with its TLS library
  // In front of every key; the rest is the digest in 32 hexadecimal digits, lowest byte first.
  std::string key_prefix = "waymark:";
  // Objects expire so long after they were last put or asked for by Holds; 0: never. When memory is
  // short, what goes is the server's to say (maxmemory-policy allkeys-lru does well).
  std::chrono::seconds time_to_live{0};
  // Limits beside the deadline of each call: of connecting, and of a call's commands.
  std::chrono::milliseconds connect_timeout{1000};
  std::chrono::milliseconds command_timeout{5000};
  // After a failure the server is left alone for so long, doubled each time up to the greatest;
  // calls answer Unavailable meanwhile, at once.
  std::chrono::milliseconds first_back_off{50};
  std::chrono::milliseconds greatest_back_off{5000};
  // For so long Holds believes that an object is there which this process has put or has asked for;
  // then it asks the server. At most half of time_to_live. A lost connection ends it.
  std::chrono::milliseconds believe{60000};
  // Digests so remembered.
  std::size_t max_believed = std::size_t{1} << 18;
};

// One connection, made when it is first needed, and again when it was lost. Threads take turns; who
// waits for his turn is bound by his deadline too. Commands of a call are sent together. A
// connection on which a deadline passed is given up, as its answers would come late.
class RedisSource final : public wire::PageSource {
 public:
  // Does not connect: a server that is not there yet costs rows, not the start. InvalidArgument
  // naming the option, its rule and its value; Unimplemented where this build has no hiredis, or
  // its hiredis no TLS and TLS is asked for.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RedisSource>> Create(
      const RedisOptions& options);
  ~RedisSource() override;

  // As wire::PageSource says. Unavailable with the reason when there is no connection, the server
  // answers with an error (a wrong password included; user and password are in no message), or
  // backing off; DeadlineExceeded.
  [[nodiscard]] absl::Status Get(std::span<const Digest128> digests, wire::Deadline deadline,
                                 std::span<wire::Object> objects) override;
  [[nodiscard]] absl::Status GetRanges(std::span<const wire::ObjectRange> ranges,
                                       wire::Deadline deadline,
                                       std::span<wire::Object> parts) override;
  [[nodiscard]] absl::Status Put(std::span<const wire::NamedObject> objects,
                                 wire::Deadline deadline) override;
  [[nodiscard]] absl::Status Holds(std::span<const Digest128> digests, wire::Deadline deadline,
                                   std::span<std::uint8_t> held) override;

  struct Stats {
    std::uint64_t connects = 0;  // that succeeded
    std::uint64_t failures = 0;  // connections lost or refused, deadlines that passed
    std::uint64_t commands = 0;  // answered
  };
  [[nodiscard]] Stats GetStats() const;

 private:
  class Impl;
  explicit RedisSource(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_SOURCES_REDIS_SOURCE_H_

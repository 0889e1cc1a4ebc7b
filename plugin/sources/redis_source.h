// RedisSource: a page source in a Redis server. Each object is one key.
//
// Only builds that find hiredis can use it (WAYMARK_REDIS). An object that Redis evicted, expired
// or lost is absent: readers miss its rows, and nothing fails.
#ifndef WAYMARK_PLUGIN_SOURCES_REDIS_SOURCE_H_
#define WAYMARK_PLUGIN_SOURCES_REDIS_SOURCE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/wire/page_source.h"

namespace waymark {

// The client library of this build, e.g. "hiredis-0.14.1" or "hiredis-1.2.0+tls", or "none". Static
// storage.
[[nodiscard]] const char* RedisClient();

// TLS verifies that the server's certificate is signed by a trusted authority. It does not verify
// the host name in the certificate: if others can get certificates from the same authority, use an
// authority of your own.
struct RedisTls {
  bool use = false;              // false with any other option of TLS set is an error
  std::string ca_file;           // trusted certificates, PEM; "": the system's
  std::string certificate_file;  // this client's certificate, PEM; "": none
  std::string key_file;          // the key of that certificate, PEM
  std::string server_name;       // for SNI; "": not sent
};

struct RedisOptions {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string unix_socket;  // path of a Unix socket; if not empty, host and port are ignored
  // Sent as AUTH; a user name needs Redis 6. "": not sent.
  std::string user;
  std::string password;
  int database = 0;
  RedisTls tls;  // needs hiredis 1.0 or later with its TLS library
  // The key of an object is this prefix and its digest in 32 hexadecimal digits, lowest byte first.
  std::string key_prefix = "waymark:";
  // How long after its last Put or Holds an object expires; 0: never. Which keys the server evicts
  // when its memory is full is configured there (maxmemory-policy allkeys-lru suits).
  std::chrono::seconds time_to_live{0};
  // Bounds besides the deadline of each call: on connecting; and on the wait for the connection,
  // on writing a MiB of commands, and on each reply.
  std::chrono::milliseconds connect_timeout{1000};
  std::chrono::milliseconds command_timeout{5000};
  // After a failure, calls return Unavailable at once for this long. Doubles with each failure in a
  // row, up to the greatest.
  std::chrono::milliseconds initial_back_off{50};
  std::chrono::milliseconds max_back_off{5000};
  // For a server that is a process of ours: a file in memory that it has mapped, too. Large values
  // are written into it, and SET has, in place of the value, where it begins and its size. Not
  // owned; needed by Create alone. -1: none.
  int values_file = -1;
};

// Has one connection, made when it is first needed and again after it was lost. Threads take turns
// on it; the deadline of a call includes its wait. All commands of a call are sent before the first
// reply is read. After a deadline has passed the connection is closed, because its replies would
// arrive during a later call.
class RedisSource : public wire::PageSource {
 public:
  // Does not connect, so the server need not be up yet; Check does. InvalidArgument naming the
  // option, the rule and the value; Unimplemented if the build has no hiredis, or no TLS for it and
  // tls.use is set.
  //
  // The calls of wire::PageSource also return Unavailable with the reason if the server cannot be
  // reached or returns an error (for a wrong password, too), or after a failure, until the back-off
  // has passed. No message contains user or password.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RedisSource>> Create(
      const RedisOptions& options);
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_SOURCES_REDIS_SOURCE_H_

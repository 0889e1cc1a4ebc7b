// StoreOptions: what a store is made with; and its options by name, for C and Python.
#ifndef WAYMARK_BLOCKSTORE_STORE_STORE_OPTIONS_H_
#define WAYMARK_BLOCKSTORE_STORE_STORE_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "blockstore/ids.h"
#include "blockstore/log.h"
#include "blockstore/shape.h"
#include "blockstore/store/flight_sink.h"
#include "blockstore/store/seal_sink.h"

namespace waymark {

// On which thread submitted steps land.
enum class Landing : std::uint8_t {
  kThread,  // on a thread that the store owns
  kCaller,  // in LandOne() and Land(), for single-threaded engines and deterministic tests
  kManual,  // the same, and records of the log wait for Apply(): for tests of a log that lags
};

struct StoreOptions {
  RoutingShape shape;
  // Block ids are in [0, num_blocks), including other tiers' (offload). At least 1; times
  // the pages per block it must be below 2^32 - 1. Required.
  std::int32_t num_blocks = 0;
  // Tokens per KV block: a multiple of shape.page_tokens. 0 = shape.page_tokens.
  std::int32_t block_tokens = 0;
  // Pages that blocks and keys can have at once, shape.page_bytes() each. 0 = enough for all
  // blocks.
  std::uint32_t num_pages = 0;
  // Further pages, used while as many are *detached*: snapshots still hold them, but no block and
  // no key has them any more. So a slow reader costs memory and takes no page from the requests
  // that run. When they are used up, a row for which no page is free is missing (capacity). A spare
  // page costs address space, and memory from its first use on (then it is used again). num_pages +
  // spare_pages < 2^32 - 1. nullopt = as many as num_pages.
  std::optional<std::uint32_t> spare_pages;
  // Ids that the engine uses as placeholders (a dummy block): null blocks, which have no rows.
  std::vector<BlockId> null_blocks;
  // Steps that can be open (begun, and neither submitted, dropped nor cancelled), and steps of a
  // session's SubmitIds whose ids can wait to be read. A further one is dropped. 1 ... 4096.
  std::uint32_t max_steps_in_flight = 16;
  // Rows that a step can have, with padding. BeginStep refuses a larger step. 1 ... 2^24.
  std::uint32_t max_step_rows = 8192;
  // Bytes of memory for the rows of steps that are fetched before their turn: their ids are there,
  // and an earlier step's are not. Their buffers are free then. 0: none are fetched.
  std::size_t ahead_bytes = std::size_t{64} << 20;
  Landing landing = Landing::kThread;
  // CPUs that the landing thread ("wm-landing") may run on; empty = all that the process could use
  // when the library was loaded, whatever the calling thread is pinned to.
  std::vector<std::int32_t> landing_cpus;
  // How long the destructor waits for the ids of submitted steps (StepRows::Poll), e.g. for a
  // device. The rows of steps whose ids have not arrived then are missing (not captured), and one
  // line is logged. A capture session's transport waits as long for its device when it is
  // destroyed. At least 0; more than a year counts as a year.
  std::chrono::nanoseconds teardown_timeout = std::chrono::seconds(5);
  // A step whose ids have not arrived this long after its Submit is logged once, by its number, and
  // counted (Stats::steps_overdue). 0 = never. At least 0.
  std::chrono::nanoseconds overdue_after = std::chrono::seconds(10);
  // A step whose ids have not arrived this long after its Submit is lost: its rows are missing (not
  // captured), and the log goes on. Its StepRows gets its Done() when the ids arrive, or when the
  // store ends. More than the longest forward, since an engine may submit before it. 0 = never. At
  // least 0; more than a year counts as a year.
  std::chrono::nanoseconds ids_timeout = std::chrono::seconds(60);
  // Bytes of the log between the engine's thread and the one that applies it, touched when the
  // store is made; eight times as many are reserved: they limit a batch of events. 0: 8 MiB, but
  // 64 KiB, and 64 MiB reserved, where the caller lands; room for four steps of max_step_rows.
  std::size_t log_bytes = 0;
  // Compare ignored writes with the rows that were kept, and void a page (make its rows missing,
  // reason audit) if the mean agreement is below the threshold; and a row, if it differs in more
  // than near ties explain: two or more ids in more than an eighth of the layers.
  bool audit = true;
  // In (K / E, 1]; K / E is the agreement of different tokens by chance. nullopt: (K / E + 1) / 2.
  // 0: findings are counted only. To calibrate it see docs/internals/architecture.md.
  std::optional<double> audit_threshold;
  // Seed of the key index's hash. 0 = a random one.
  std::uint64_t key_seed = 0;
  // Records every call (see FlightRecorder). Shared by the store and its snapshots. Null = no
  // recording.
  std::shared_ptr<FlightSink> flight;
  // Receives the pages that are sealed with a key (a Tier's). Null = none.
  std::shared_ptr<SealSink> seal_sink;
  // Receives audit findings that voided rows (AuditFinding::ToString), on the landing thread,
  // shortly after the step that showed it has ended: of each cause the 1st, the 10th, the 100th,
  // ...; and what log.h lists for a store.
  LogCallback log = {};
};

// Sets the option `name`, the name of a field of StoreOptions that is not the shape, the blocks,
// the CPUs, the flight or the log, to what `text` says: an integer; "true" or "false"; a number; or
// seconds, where "none" is never (of teardown_timeout: a year). "none" is the default of
// spare_pages and audit_threshold. InvalidArgument naming the option, the rule and the text, or
// naming all options if there is none of that name; `to` then stays as it is.
[[nodiscard]] absl::Status SetStoreOption(StoreOptions& to, std::string_view name,
                                          std::string_view text);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_OPTIONS_H_

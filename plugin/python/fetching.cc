// Page sources of the library, publishers and fetchers.
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "blockstore/thread.h"
#include "blockstore/timeout.h"
#include "blockstore/wire/bundle_source.h"
#include "blockstore/wire/file_source.h"
#include "blockstore/wire/handle.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/publisher.h"
#include "plugin/python/reading.h"
#include "plugin/sources/folder_source.h"
#include "plugin/sources/redis_source.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;
using waymark::LibraryThread;
using waymark::RowsAndLayers;
namespace wire = waymark::wire;

// None: as long as it takes.
std::chrono::nanoseconds TimeoutOf(nb::handle seconds) {
  const std::int64_t ns = Nanoseconds(seconds);
  return ns < 0 ? std::chrono::nanoseconds(waymark::kLongestTimeout)
                : waymark::Clamped(std::chrono::nanoseconds(ns));
}

// `of`: the path of a file (str), or the most bytes of memory.
void MakeSource(Source* self, nb::handle of, bool memory_map) {
  std::shared_ptr<wire::PageSource> source;
  if (PyUnicode_Check(of.ptr())) {
    const auto path = nb::cast<std::string>(of);
    const auto access = memory_map ? wire::FileAccess::kMap : wire::FileAccess::kRead;
    source = Value(Unlocked([&] { return wire::FileSource::Open(path, {}, access); }));
  } else {
    source = std::make_shared<wire::MemorySource>(nb::cast<std::uint64_t>(of));
  }
  new (self) Source{std::move(source)};
}

struct FolderSource : Source {};

void MakeFolderSource(FolderSource* self, const std::string& path, std::uint64_t max_bytes,
                      std::int32_t time_to_live) {
  const waymark::FolderOptions options = {path, max_bytes, std::chrono::seconds(time_to_live)};
  new (self) FolderSource{{Value(waymark::FolderSource::Create(options)), true}};
}

struct RedisSource : Source {};

// texts: host, unix_socket, user, password, key_prefix, and the CA's file, the certificate's, the
// key's and the server's name of TLS. numbers: RedisOptions' from `port` on, times in ms (s).
void MakeRedisSource(RedisSource* self, const nb::tuple& texts, bool tls,
                     const nb::tuple& numbers) {
  waymark::RedisOptions options;
  std::string* const to_texts[] = {&options.host,
                                   &options.unix_socket,
                                   &options.user,
                                   &options.password,
                                   &options.key_prefix,
                                   &options.tls.ca_file,
                                   &options.tls.certificate_file,
                                   &options.tls.key_file,
                                   &options.tls.server_name};
  for (std::size_t i = 0; i < std::size(to_texts); ++i)
    *to_texts[i] = nb::cast<std::string>(texts[i]);
  options.tls.use = tls;
  const auto number = [&](int i) { return nb::cast<std::int32_t>(numbers[i]); };
  options.port = number(0);
  options.database = number(1);
  options.time_to_live = std::chrono::seconds(number(2));
  options.connect_timeout = std::chrono::milliseconds(number(3));
  options.command_timeout = std::chrono::milliseconds(number(4));
  options.initial_back_off = std::chrono::milliseconds(number(5));
  options.max_back_off = std::chrono::milliseconds(number(6));
  options.values_file = number(7);
  new (self) RedisSource{{Value(waymark::RedisSource::Create(options)), true}};
}

// Closes `fd` when nothing uses the source any more.
void CloseWith(RedisSource& self, int fd) {
  auto source = self.source;
  wire::PageSource* const bare = source.get();
  self.source.reset(bare, [source, fd](wire::PageSource*) { close(fd); });
}

struct BundleSource : Source {};

void MakeBundleSource(BundleSource* self, const Source& store, std::uint64_t bundle_bytes,
                      std::uint64_t max_places) {
  const wire::BundleOptions options{bundle_bytes, max_places};
  new (self)
      BundleSource{{std::make_shared<wire::BundleSource>(store.source, options), store.waits}};
}

// What becomes of one publication: its handle, or an error.
struct Ticket {
  explicit Ticket(wire::Publisher::Result of) : result(of.share()) {}
  [[nodiscard]] bool ready() const {
    return process == getpid() &&
           result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  const pid_t process = getpid();  // in a forked child the result may never become ready
  const std::shared_future<absl::StatusOr<wire::Published>> result;
};

absl::Status Forked(const char* what) {
  return absl::FailedPreconditionError(
      std::string(what) + " must be used in the process that created it; this is a forked child");
}

nb::object WaitForHandle(const Ticket& self, nb::handle timeout) {
  if (self.process != getpid()) Raise(Forked("a ticket"));
  const absl::Status waited =
      WaitInSlices(Nanoseconds(timeout), [&](std::chrono::nanoseconds slice) {
        return self.result.wait_for(slice) == std::future_status::ready
                   ? absl::OkStatus()
                   : absl::DeadlineExceededError("not published");
      });
  if (!waited.ok()) RaiseDeadline("the rows are not published", timeout);
  const absl::StatusOr<wire::Published>& made = self.result.get();
  Check(made.status());
  nb::object handle = nb::module_::import_("waymark._handle")
                          .attr("Handle")(BytesOf(Value(wire::EncodeHandle(made->handle))));
  if (made->put.ok()) return handle;
  const nb::object error =
      nb::module_::import_("waymark._errors")
          .attr("PutFailedError")(
              "readers may miss rows of the handle: " + std::string(made->put.message()), handle);
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

struct Publisher {
  Publisher(std::shared_ptr<wire::PageSource> of, std::unique_ptr<wire::Publisher> made)
      : source(std::move(of)), publisher(std::move(made)) {}
  // Waits for what is being published.
  ~Publisher() {
    const GilReleased released(Alive());
    publisher.reset();
    source.reset();
  }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  // FailedPrecondition in a forked child.
  [[nodiscard]] wire::Publisher& here() const {
    if (publisher->forked()) Raise(Forked("a publisher"));
    return *publisher;
  }

  std::shared_ptr<wire::PageSource> source;
  std::unique_ptr<wire::Publisher> publisher;
};

void MakePublisher(Publisher* self, const Source& source, const nb::tuple& given_shape,
                   const nb::tuple& given_code, std::string store, std::uint64_t max_waiting,
                   std::uint64_t max_sequences, nb::handle source_timeout, nb::handle given_cpus,
                   nb::handle given_key) {
  const Integers<std::int32_t> cpus(given_cpus, "cpus");
  wire::PublisherOptions options;
  options.shape.rows = ShapeOf(given_shape);
  options.shape.code = CodeOf(given_code, options.shape.rows);
  options.store = std::move(store);
  options.max_waiting = max_waiting;
  options.max_sequences = max_sequences;
  options.source_timeout = TimeoutOf(source_timeout);
  options.cpus.assign(cpus.data(), cpus.data() + cpus.size());
  options.key = KeyOf(given_key);
  options.log = {&AddLogLine, nullptr};
  options.owner = source.source;
  auto made = Value(wire::Publisher::Create(source.source.get(), options));
  new (self) Publisher(source.source, std::move(made));
}

void BindPublisherStats(nb::module_& module) {
  using Stats = wire::PublisherStats;
  BindCounters<Stats>(module, "PublisherStats", "Counters over the life of a publisher.",
                      {WAYMARK_PUBLISHER_COUNTERS(WAYMARK_COUNTER_OF)});
}

void MakeFetcher(Fetcher* self, const Source& source, std::uint64_t cache_bytes,
                 std::uint64_t batch_bytes, std::int64_t max_rows, std::uint64_t max_bytes,
                 bool whole_chunks, nb::handle given_key, nb::handle tier) {
  wire::FetcherOptions options;
  options.key = KeyOf(given_key);
  options.tier = TierOptionsOf(tier);
  options.cache_bytes = cache_bytes;
  options.batch_bytes = batch_bytes;
  options.whole_chunks = whole_chunks;
  options.max_rows = max_rows;
  options.max_bytes = max_bytes;
  options.log = {&AddLogLine, nullptr};
  auto fetcher =
      Unlocked([&] { return std::make_shared<wire::Fetcher>(source.source.get(), options); });
  new (self) Fetcher{source.source, std::move(fetcher), source.waits};
}

// A call of Fetch and its results. It keeps what it needs, because it may be abandoned.
struct Fetching {
  void Run() { rows = fetcher->Fetch(handle, part, deadline, &report); }

  std::shared_ptr<wire::PageSource> source;
  std::shared_ptr<wire::Fetcher> fetcher;
  wire::Handle handle;
  RowsAndLayers part;
  wire::Deadline deadline;
  absl::StatusOr<waymark::Rows> rows;
  wire::FetchReport report;
};

// Runs it on its own thread, because no call of the library can be interrupted, and checks for
// Ctrl-C meanwhile. An abandoned call ends when its timeout is over or its source returns.
void RunBeside(const std::shared_ptr<Fetching>& fetching) {
  absl::StatusOr<LibraryThread> thread =
      LibraryThread::Start("wm-fetch", {}, fetching, [call = fetching.get()] { call->Run(); });
  if (!thread.ok()) {  // no more threads
    Unlocked([&] { fetching->Run(); });
    return;
  }
  const absl::Cleanup let_go = [&] { (void)thread->End(std::chrono::nanoseconds(0)); };
  (void)WaitInSlices(-1, [&](std::chrono::nanoseconds slice) {
    return thread->Wait(slice) ? absl::OkStatus() : absl::DeadlineExceededError("fetching");
  });
}

nb::tuple CountsTuple(const wire::FetchCounts& counts, const absl::Status& source) {
  return nb::make_tuple(counts.fetched, counts.fetched_bytes, counts.hits, counts.absent,
                        counts.damaged, static_cast<int>(source.code()),
                        std::string(source.message()));
}

// layer_end 0: all layers from layer_begin on.
nb::tuple Fetch(const Fetcher& self, nb::handle given, std::int64_t begin, std::int64_t end,
                std::int32_t layer_begin, std::int32_t layer_end, nb::handle timeout) {
  const Bytes bytes = ReadableBytes(given, "handle");
  const auto fetching = std::make_shared<Fetching>();
  fetching->source = self.source;
  fetching->fetcher = self.fetcher;
  fetching->handle = Value(wire::ParseHandle(SpanOf(bytes)));
  fetching->part = {begin, end, layer_begin,
                    layer_end != 0 ? layer_end : fetching->handle.shape.rows.num_layers};
  fetching->deadline = wire::After(TimeoutOf(timeout));
  if (self.waits) {
    RunBeside(fetching);
  } else {
    Unlocked([&] { fetching->Run(); });
  }
  auto rows = std::make_unique<Rows>(Value(std::move(fetching->rows)));
  return nb::make_tuple(std::move(rows),
                        CountsTuple(fetching->report.counts, fetching->report.source));
}

// (rows, num_tail, head, num_layers, top_k, num_experts, page_tokens, store, keyed).
nb::tuple HandleInfo(nb::handle given) {
  const Bytes bytes = ReadableBytes(given, "handle");
  const wire::Handle handle = Value(wire::ParseHandle(SpanOf(bytes)));
  const waymark::RoutingShape& shape = handle.shape.rows;
  return nb::make_tuple(handle.rows, handle.tail.size(), nb::bytes(&handle.head, 16),
                        shape.num_layers, shape.top_k, shape.num_experts, shape.page_tokens,
                        handle.store, handle.mac.has_value());
}

#define WAYMARK_REPORT "tuple[int, int, int, int, int, int, str]"

void BindFetcher(nb::module_& module) {
  nb::class_<Fetcher>(module, "Fetcher")
      .def("__init__", &MakeFetcher, "source"_a, "cache_bytes"_a, "batch_bytes"_a, "max_rows"_a,
           "max_bytes"_a, "whole_chunks"_a, "key"_a, "tier"_a.none(),
           nb::sig("def __init__(self, source: Source, cache_bytes: int, batch_bytes: int, "
                   "max_rows: int, max_bytes: int, whole_chunks: bool, key: object, "
                   "tier: tuple[typing.Any, ...] | None) -> None"))
      .def("_fetch", &Fetch, "handle"_a, "begin"_a, "end"_a, "layer_begin"_a, "layer_end"_a,
           "timeout"_a.none(),
           nb::sig("def _fetch(self, handle: object, begin: int, end: int, layer_begin: int, "
                   "layer_end: int, timeout: float | None) -> tuple[Rows, " WAYMARK_REPORT "]"))
      .def(
          "_counts",
          [](const Fetcher& self) {
            return CountsTuple(self.fetcher->GetCounts(), absl::OkStatus());
          },
          nb::sig("def _counts(self) -> " WAYMARK_REPORT));
}

}  // namespace

void BindFetching(nb::module_& module) {
  module.def("handle_info", &HandleInfo, "handle"_a,
             nb::sig("def handle_info(handle: object) -> "
                     "tuple[int, int, bytes, int, int, int, int, str, bool]"));
  nb::class_<Source>(module, "Source")
      .def("__init__", &MakeSource, "of"_a, "memory_map"_a)
      .def(
          "check",
          [](const Source& self, nb::handle timeout) {
            const wire::Deadline deadline = wire::After(TimeoutOf(timeout));
            Check(Unlocked([&] { return self.source->Check(deadline); }));
          },
          "timeout"_a.none() = 5.0, nb::sig("def check(self, timeout: float | None = 5.0) -> None"),
          "Raises UnavailableError or DeadlineExceededError if the source cannot be used: of a "
          "folder "
          "whether it can be written, of Redis address, password and database. Publishers and "
          "fetchers log it when they are made.");
  nb::class_<FolderSource, Source>(module, "FolderSource")
      .def("__init__", &MakeFolderSource, "path"_a, "max_bytes"_a, "time_to_live"_a);
  nb::class_<RedisSource, Source>(module, "RedisSource")
      .def("__init__", &MakeRedisSource, "texts"_a, "tls"_a, "numbers"_a,
           nb::sig("def __init__(self, texts: tuple[str, str, str, str, str, str, str, str, str], "
                   "tls: bool, numbers: tuple[int, int, int, int, int, int, int, int]) -> None"))
      .def("_close_with", &CloseWith, "fd"_a);
  nb::class_<BundleSource, Source>(module, "BundleSource")
      .def("__init__", &MakeBundleSource, "store"_a, "bundle_bytes"_a, "max_places"_a);
  BindPublisherStats(module);
  nb::class_<Ticket>(
      module, "Ticket",
      "The result of one publication: Publisher.publish makes it. Keeps its publisher. Any thread.")
      .def("ready", &Ticket::ready, "Whether it has its result, a handle or an error. Never waits.")
      .def("wait", &WaitForHandle, "timeout"_a = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None) -> waymark._handle.Handle"),
           "Waits until the objects have been put and returns the handle; releases the GIL. "
           "timeout: seconds, or None; DeadlineExceededError after it.\n\n"
           "PutFailedError if the source failed, so that readers miss rows; it has the handle. "
           "ResourceExhaustedError if the queue was full; InvalidArgumentError for another shape, "
           "or ids that the codec cannot write; FailedPreconditionError if the rows do not "
           "continue their sequence: publish from row 0.");
  nb::class_<Publisher>(module, "Publisher")
      .def("__init__", &MakePublisher, "source"_a, "shape"_a, "code"_a, "store"_a, "max_waiting"_a,
           "max_sequences"_a, "source_timeout"_a.none(), "cpus"_a, "key"_a,
           nb::sig("def __init__(self, source: Source, shape: " WAYMARK_SHAPE
                   ", code: " WAYMARK_CODE ", store: str, max_waiting: int, max_sequences: int, "
                   "source_timeout: float | None, cpus: object, key: "
                   "object) -> None"))
      .def(
          "_publish",
          [](const Publisher& self, std::string sequence, const Rows& rows) {
            return std::make_unique<Ticket>(
                Unlocked([&] { return self.publisher->Publish(std::move(sequence), rows.rows); }));
          },
          "sequence"_a, "rows"_a, nb::keep_alive<0, 1>())
      .def(
          "forget",
          [](const Publisher& self, std::string sequence) {
            Check(self.publisher->Forget(std::move(sequence)));
          },
          "sequence"_a,
          "Forgets what is remembered of a sequence, a request that ended: its name can then go to "
          "another request. Takes its turn after the publications in the queue; rows that are "
          "published after it begin at row 0. Handles and objects stay as they are. Never waits.")
      .def(
          "stats", [](const Publisher& self) { return self.here().GetStats(); }, "The counters.");
  BindFetcher(module);
}

}  // namespace waymark_python

// Page sources of the library, publishers and fetchers.
#include <pthread.h>

#include <future>
#include <system_error>

#include "plugin/python/module.h"
#include "plugin/python/reading.h"
#include "plugin/python/source.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

// `of`: the path of a file (str), or the most bytes of memory.
void MakeSource(Source* self, nb::handle of, bool memory_map) {
  wm_source* source = nullptr;
  Message why;
  wm_status status;
  if (PyUnicode_Check(of.ptr())) {
    const auto path = nb::cast<std::string>(of);
    wm_read_limits limits = {};
    limits.struct_size = sizeof(limits);
    limits.flags = memory_map ? WM_READ_MAP : 0;
    const GilReleased released;
    status = Api().wire->source_file_open(path.c_str(), &limits, &source, why.get());
  } else {
    status = Api().wire->source_memory_create(nb::cast<std::uint64_t>(of), &source, why.get());
  }
  Check(status, why);
  new (self) Source;
  self->source = source;
}

struct RedisSource : Source {};

// texts: host, unix_socket, user, password, key_prefix, and the CA's file, the certificate's, the
// key's and the server's name of TLS. numbers: as wm_redis_options has them, from `port` on.
void MakeRedisSource(RedisSource* self, const nb::tuple& texts, bool tls, const nb::tuple& numbers,
                     std::uint64_t presence_cache_entries) {
  std::vector<std::string> kept;
  for (const nb::handle text : texts)
    kept.push_back(nb::cast<std::string>(text));
  wm_redis_options options = {};
  options.struct_size = sizeof(options);
  options.flags = tls ? WM_REDIS_TLS : 0;
  const char** const to_texts[] = {&options.host,
                                   &options.unix_socket,
                                   &options.user,
                                   &options.password,
                                   &options.key_prefix,
                                   &options.tls_ca_file,
                                   &options.tls_certificate_file,
                                   &options.tls_key_file,
                                   &options.tls_server_name};
  for (std::size_t i = 0; i < std::size(to_texts); ++i)
    *to_texts[i] = kept.at(i).c_str();
  std::int32_t* const to_numbers[] = {&options.port,
                                      &options.database,
                                      &options.time_to_live_s,
                                      &options.connect_timeout_ms,
                                      &options.command_timeout_ms,
                                      &options.initial_back_off_ms,
                                      &options.max_back_off_ms,
                                      &options.presence_cache_ms};
  for (std::size_t i = 0; i < std::size(to_numbers); ++i)
    *to_numbers[i] = nb::cast<std::int32_t>(numbers[i]);
  options.presence_cache_entries = presence_cache_entries;
  wm_source* source = nullptr;
  Message why;
  Check(Api().wire->source_redis_create(&options, &source, why.get()), why);
  new (self) RedisSource;
  self->source = source;
  self->waits = true;
}

struct Ticket {
  explicit Ticket(wm_ticket* owned) : ticket(owned) {}
  ~Ticket() { Api().wire->ticket_release(ticket); }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  wm_ticket* ticket;
};

nb::bytes WaitForHandle(const Ticket& self, nb::handle timeout) {
  const std::int64_t ns = Nanoseconds(timeout);
  wm_bytes* handle = nullptr;
  Message why;
  wm_status result = WM_OK;
  const wm_status status = WaitInSlices(ns, [&](std::int64_t slice) {
    result = Api().wire->ticket_wait(self.ticket, slice, &handle, why.get());
    if (result != WM_DEADLINE_EXCEEDED) return wm_status{WM_OK};
    // Of the slice, or of the publication itself.
    if (Api().wire->ticket_ready(self.ticket) != WM_OK) return wm_status{WM_DEADLINE_EXCEEDED};
    result = Api().wire->ticket_wait(self.ticket, 0, &handle, why.get());
    return wm_status{WM_OK};
  });
  if (status != WM_OK) RaiseDeadline("the rows are not published", timeout);
  Check(result, why);
  return BytesOf(handle);
}

struct Publisher {
  wm_publisher* publisher = nullptr;

  Publisher() = default;
  // The last release waits for what is being published.
  ~Publisher() {
    const GilReleased released(Alive());
    Api().wire->publisher_release(publisher);
  }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
};

void MakePublisher(Publisher* self, const Source& source, const nb::tuple& given_shape,
                   const nb::tuple& given_code, const std::string& store, std::uint64_t max_waiting,
                   std::uint64_t max_pages, std::uint64_t max_sequences, nb::handle landing_timeout,
                   nb::handle source_timeout, nb::handle given_cpus, nb::handle given_key) {
  const Integers<std::int32_t> cpus(given_cpus, "cpus");
  const Integers<std::int32_t> layers(given_shape[6], "layer_ids");
  wm_shape shape = {};
  shape.struct_size = sizeof(shape);
  shape.num_layers = nb::cast<std::int32_t>(given_shape[0]);
  shape.top_k = nb::cast<std::int32_t>(given_shape[1]);
  shape.num_experts = nb::cast<std::int32_t>(given_shape[2]);
  shape.page_tokens = nb::cast<std::int32_t>(given_shape[3]);
  if (layers.size() != 0 && layers.size() != static_cast<std::size_t>(shape.num_layers)) {
    Raise(WM_INVALID_ARGUMENT, "shape.layer_ids: as many as layers, got " +
                                   std::to_string(layers.size()) + " of " +
                                   std::to_string(shape.num_layers));
  }
  shape.layer_ids = layers.size() != 0 ? layers.data() : nullptr;
  const Code code(given_code);
  wm_publisher_options options = {};
  options.struct_size = sizeof(options);
  options.source = source.source;
  options.shape = &shape;
  options.code = &code.code;
  options.store_name = store.c_str();
  options.max_waiting = max_waiting;
  options.max_pages = max_pages;
  options.max_sequences = max_sequences;
  // None is as long as it takes; 0 is the default of the library, so a wait of nothing is 1 ns.
  const auto timeout = [](nb::handle seconds) {
    const std::int64_t ns = Nanoseconds(seconds);
    return ns < 0 ? INT64_MAX : ns == 0 ? std::int64_t{1} : ns;
  };
  options.landing_timeout_ns = timeout(landing_timeout);
  options.source_timeout_ns = timeout(source_timeout);
  options.cpus = cpus.data();
  options.num_cpus = cpus.size();
  const Bytes key = ReadableBytes(given_key, "key");
  options.key = key.data;
  options.key_size = key.size;
  wm_publisher* publisher = nullptr;
  Message why;
  Check(Api().wire->publisher_create(&options, &publisher, why.get()), why);
  new (self) Publisher;
  self->publisher = publisher;
}

std::unique_ptr<Ticket> PublishRows(const Publisher& self, const std::string& sequence,
                                    const Rows& rows) {
  wm_ticket* ticket = nullptr;
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Api().wire->publisher_publish_rows(self.publisher, sequence.c_str(), rows.rows,
                                                &ticket, why.get());
  }
  Check(status, why);
  return std::make_unique<Ticket>(ticket);
}

std::unique_ptr<Ticket> PublishSnapshot(const Publisher& self, const std::string& sequence,
                                        Snapshot& snapshot) {
  wm_ticket* ticket = nullptr;
  Message why;
  wm_status status = WM_OK;
  bool released = false;
  Use(snapshot, false, [&](wm_snapshot* of) {
    released = of == nullptr;
    if (released) return;
    status = Api().wire->publisher_publish_snapshot(self.publisher, sequence.c_str(), of, &ticket,
                                                    why.get());
    if (status != WM_OK) return;
    Api().snapshot_release(of);
    snapshot.snapshot = nullptr;
  });
  if (released) RaiseReleased();
  Check(status, why);
  return std::make_unique<Ticket>(ticket);
}

void ForgetSequence(const Publisher& self, const std::string& sequence) {
  Message why;
  Check(Api().wire->publisher_forget(self.publisher, sequence.c_str(), why.get()), why);
}

nb::tuple Stats(const Publisher& self) {
  wm_publisher_stats stats = {};
  stats.struct_size = sizeof(stats);
  const wm_status status = Api().wire->publisher_stats(self.publisher, &stats);
  if (status != WM_OK) Raise(status, "publisher_stats");
  return nb::make_tuple(stats.published, stats.dropped, stats.failed, stats.pages,
                        stats.pages_encoded, stats.objects_held, stats.objects_put, stats.bytes_put,
                        stats.puts_failed, stats.exceptions);
}

void MakeFetcher(Fetcher* self, const Source& source, std::uint64_t cache_bytes,
                 std::uint64_t batch_bytes, std::uint64_t max_rows, std::uint64_t max_bytes,
                 bool whole_chunks, nb::handle given_key) {
  const Bytes key = ReadableBytes(given_key, "key");
  wm_fetcher_options options = {};
  options.struct_size = sizeof(options);
  options.flags = whole_chunks ? WM_FETCHER_WHOLE_CHUNKS : 0;
  options.source = source.source;
  options.cache_bytes = cache_bytes;
  options.batch_bytes = batch_bytes;
  options.max_rows = max_rows;
  options.max_bytes = max_bytes;
  options.key = key.data;
  options.key_size = key.size;
  wm_fetcher* fetcher = nullptr;
  Message why;
  Check(Api().wire->fetcher_create(&options, &fetcher, why.get()), why);
  new (self) Fetcher;
  self->fetcher = fetcher;
  self->waits = source.waits;
}

// A call of fetcher_fetch and its results.
struct Fetching {
  Fetching(wm_fetcher* of, const Bytes& handle)
      : fetcher(of), data(handle.data), size(handle.size) {
    report.struct_size = sizeof(report);
  }
  ~Fetching() { Api().rows_release(rows); }
  Fetching(const Fetching&) = delete;
  Fetching& operator=(const Fetching&) = delete;
  void Run() {
    status = Api().wire->fetcher_fetch(fetcher, data, size, &part, timeout_ns, &rows, &report,
                                       why.get());
  }
  wm_fetcher* fetcher;
  const std::uint8_t* data;
  std::size_t size;
  wm_part part = {};
  std::int64_t timeout_ns = -1;
  wm_rows* rows = nullptr;
  wm_fetch_report report = {};
  Message why;
  wm_status status = WM_OK;
};

// Runs it on its own thread, because no call of the library can be interrupted, and checks for
// Ctrl-C meanwhile. An abandoned call ends when its timeout is over or its source returns, and
// keeps what it needs until then.
void RunBeside(const std::shared_ptr<Fetching>& fetching) {
  const std::vector<std::uint8_t> handle(fetching->data, fetching->data + fetching->size);
  std::packaged_task<void()> run([fetching, handle] {
    fetching->data = handle.data();
    fetching->Run();
    Api().wire->fetcher_release(fetching->fetcher);
  });
  const std::future<void> done = run.get_future();
  Api().wire->fetcher_retain(fetching->fetcher);
  try {
    std::thread thread(std::move(run));
    (void)pthread_setname_np(thread.native_handle(), "wm-fetch");
    thread.detach();
  } catch (const std::system_error&) {  // no more threads
    Api().wire->fetcher_release(fetching->fetcher);
    const GilReleased released;
    fetching->Run();
    return;
  }
  WaitInSlices(-1, [&](std::int64_t slice) {
    const auto state = done.wait_for(std::chrono::nanoseconds(slice));
    return wm_status{state == std::future_status::ready ? WM_OK : WM_DEADLINE_EXCEEDED};
  });
}

nb::tuple ReportTuple(const wm_fetch_report& report, const char* source) {
  return nb::make_tuple(report.fetched, report.fetched_bytes, report.hits, report.absent,
                        report.damaged, report.source_status, source);
}

nb::tuple Fetch(const Fetcher& self, nb::handle given, std::int64_t begin, std::int64_t end,
                std::int32_t layer_begin, std::int32_t layer_end, nb::handle timeout) {
  const Bytes handle = ReadableBytes(given, "handle");
  const auto fetching = std::make_shared<Fetching>(self.fetcher, handle);
  fetching->part = PartOf(begin, end, layer_begin, layer_end);
  fetching->timeout_ns = Nanoseconds(timeout);
  if (self.waits) {
    RunBeside(fetching);
  } else {
    const GilReleased released;
    fetching->Run();
  }
  Check(fetching->status, fetching->why);
  auto rows = std::make_unique<Rows>(std::exchange(fetching->rows, nullptr));
  return nb::make_tuple(std::move(rows), ReportTuple(fetching->report, fetching->why.text()));
}

nb::tuple Counts(const Fetcher& self) {
  wm_fetch_report report = {};
  report.struct_size = sizeof(report);
  const wm_status status = Api().wire->fetcher_counts(self.fetcher, &report);
  if (status != WM_OK) Raise(status, "fetcher_counts");
  return ReportTuple(report, "");
}

// (rows, num_tail, head, num_layers, top_k, num_experts, page_tokens, store, keyed).
nb::tuple HandleInfo(nb::handle given) {
  const Bytes handle = ReadableBytes(given, "handle");
  wm_handle_info info = {};
  info.struct_size = sizeof(info);
  Message why;
  const nb::str store = Text([&](wm_message* text) {
    const wm_status status =
        Api().wire->handle_info(handle.data, handle.size, &info, text, why.get());
    Check(status, why);
    return status;
  });
  return nb::make_tuple(info.rows, info.num_tail,
                        nb::bytes(info.head.bytes, sizeof(info.head.bytes)), info.num_layers,
                        info.top_k, info.num_experts, info.page_tokens, store,
                        (info.flags & WM_HANDLE_KEYED) != 0);
}

#define WAYMARK_REPORT "tuple[int, int, int, int, int, int, str]"

}  // namespace

void BindFetching(nb::module_& module) {
  module.def("handle_info", &HandleInfo, "handle"_a,
             nb::sig("def handle_info(handle: object) -> "
                     "tuple[int, int, bytes, int, int, int, int, str, bool]"));
  nb::class_<Source>(module, "Source").def("__init__", &MakeSource, "of"_a, "memory_map"_a);
  nb::class_<RedisSource, Source>(module, "RedisSource")
      .def("__init__", &MakeRedisSource, "texts"_a, "tls"_a, "numbers"_a,
           "presence_cache_entries"_a,
           nb::sig("def __init__(self, texts: tuple[str, str, str, str, str, str, str, str, str], "
                   "tls: bool, numbers: tuple[int, int, int, int, int, int, int, int], "
                   "presence_cache_entries: int) -> None"));
  nb::class_<Ticket>(module, "Ticket")
      .def(
          "ready",
          [](const Ticket& self) { return Api().wire->ticket_ready(self.ticket) == WM_OK; },
          "Whether it has its result, a handle or an error. Never waits.")
      .def("_wait", &WaitForHandle, "timeout"_a.none());
  nb::class_<Publisher>(module, "Publisher")
      .def(
          "__init__", &MakePublisher, "source"_a, "shape"_a, "code"_a, "store"_a, "max_waiting"_a,
          "max_pages"_a, "max_sequences"_a, "landing_timeout"_a.none(), "source_timeout"_a.none(),
          "cpus"_a, "key"_a,
          nb::sig("def __init__(self, source: Source, shape: " WAYMARK_SHAPE ", code: " WAYMARK_CODE
                  ", store: str, max_waiting: int, max_pages: int, max_sequences: int, "
                  "landing_timeout: float | None, source_timeout: float | None, cpus: object, key: "
                  "object) -> None"))
      .def("_publish_rows", &PublishRows, "sequence"_a, "rows"_a)
      .def("_publish_snapshot", &PublishSnapshot, "sequence"_a, "snapshot"_a)
      .def("forget", &ForgetSequence, "sequence"_a,
           "Forgets what is remembered of a sequence, a request that ended: its name can then be "
           "that "
           "of another request. Takes its turn after the publications in the queue; rows that are "
           "published after it begin at row 0. Handles and objects stay as they are. Never waits.")
      .def("_stats", &Stats,
           nb::sig("def _stats(self) -> tuple[int, int, int, int, int, int, int, int, int, int]"));
  nb::class_<Fetcher>(module, "Fetcher")
      .def("__init__", &MakeFetcher, "source"_a, "cache_bytes"_a, "batch_bytes"_a, "max_rows"_a,
           "max_bytes"_a, "whole_chunks"_a, "key"_a)
      .def("_fetch", &Fetch, "handle"_a, "begin"_a, "end"_a, "layer_begin"_a, "layer_end"_a,
           "timeout"_a.none(),
           nb::sig("def _fetch(self, handle: object, begin: int, end: int, layer_begin: int, "
                   "layer_end: int, timeout: float | None) -> tuple[Rows, " WAYMARK_REPORT "]"))
      .def("_counts", &Counts, nb::sig("def _counts(self) -> " WAYMARK_REPORT));
}

}  // namespace waymark_python

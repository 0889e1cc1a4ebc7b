// Rows of a long sequence to a document and back, against one memcpy of as many bytes in the same
// run. All pages complete but the last: 32,767 rows.
//
// All of it runs on one thread, and a call of some milliseconds seldom runs through on a machine
// that others use: beside the time on the clock there is the processor time of the thread, which
// `memcpys` compares.
#include <sys/mman.h>
#include <sys/resource.h>

#include <numeric>
#include <utility>

#include "adapters/bench/wire_workload.h"
#include "blockstore/huge_pages.h"
#include "blockstore/wire/crc32c.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

enum class Code { kRaw, kSorted, kSets };

wire::DocumentOptions Options(Code code) {
  wire::DocumentOptions options;
  if (code == Code::kSorted) options.code.ordered = false;
  if (code == Code::kSets) options.code = wire::ChunkCode::SetCodeFor(Shape(16));
  return options;
}

double PageFaults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return static_cast<double>(usage.ru_minflt);
}

enum class Way { kWriteInto, kReadInto, kRoundTrip, kRoundTripAnew };

// kWriteInto, kReadInto: memory of the caller, touched before. kRoundTrip: Rows to bytes to Rows,
// in memory that was used before; kRoundTripAnew: everything allocated anew, page faults and all.
void Document(benchmark::State& state, Way way, Code code) {
  const wire::DocumentOptions options = Options(code);
  DocumentTurns turns(options, Clock::kProcessor);
  const Rows& rows = turns.rows();
  std::vector<std::uint8_t> written(turns.bytes().size(), 1);
  std::vector<std::uint8_t> ids(rows.ids.size(), 1);
  std::vector<RowInfo> infos(rows.infos.size());
  const ReadSpec spec{Layout::kTokensLayersK, IdType::kUint8, Fill::kZeros};
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times processor(static_cast<std::size_t>(state.max_iterations));
  Times copies(static_cast<std::size_t>(state.max_iterations));
  double faults = 0;
  bool ok = true;
  for (auto _ : state) {
    const double faults_before = PageFaults();
    const double processor_before = Now(Clock::kProcessor);
    const double time = Time([&] {
      switch (way) {
        case Way::kWriteInto: {
          const auto writer = wire::DocumentWriter::Create(rows, options);
          ok = ok && writer.ok() && writer->WriteTo(written).ok();
          break;
        }
        case Way::kReadInto: {
          const auto opened = wire::Document::Open(turns.bytes());
          ok = ok && opened.ok() && opened->Read(opened->All(), spec, ids, infos).ok();
          break;
        }
        case Way::kRoundTrip:
          turns.RoundTrip();
          break;
        case Way::kRoundTripAnew: {
          const auto sent = wire::WriteDocument(rows, options);
          const auto received = wire::Document::Open(*sent);
          const auto read = received->ReadRows(received->All());
          ok = ok && read.ok() && read->size() == rows.size();
          benchmark::DoNotOptimize(read->ids.data());
          break;
        }
      }
      benchmark::ClobberMemory();
    });
    processor.Add(Now(Clock::kProcessor) - processor_before);
    faults += PageFaults() - faults_before;
    times.Add(time);
    copies.Add(turns.Copy());
    state.SetIterationTime(time / 1e9);
  }
  Demand(ok, "a document failed");
  Report(state, times);
  state.counters["MB"] = static_cast<double>(turns.bytes().size()) / 1e6;
  state.counters["cpu_us"] = processor.Micros(0.1);
  state.counters["memcpy_us"] = copies.Micros(0.1);
  state.counters["memcpys"] = processor.Micros(0.1) / copies.Micros(0.1);
  state.counters["faults"] = faults / static_cast<double>(state.iterations());
}

// New memory for the ids of the rows, each small page of it written once, and given back: what the
// system takes before anything is in it.
void Fresh(benchmark::State& state, bool huge) {
  const auto size = static_cast<std::size_t>(kLongRows) * Shape(16).row_bytes();
  Times processor(static_cast<std::size_t>(state.max_iterations));
  double faults = 0;
  for (auto _ : state) {
    const double faults_before = PageFaults();
    const double begin = Now(Clock::kProcessor);
    void* const memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Demand(memory != MAP_FAILED, "no memory");
    if (huge) AskForHugePages(memory, size);
    for (std::size_t at = 0; at < size; at += 4096)
      static_cast<volatile std::uint8_t*>(memory)[at] = 1;
    munmap(memory, size);
    processor.Add(Now(Clock::kProcessor) - begin);
    faults += PageFaults() - faults_before;
  }
  state.counters["cpu_us"] = processor.Micros(0.1);
  state.counters["faults"] = faults / static_cast<double>(state.iterations());
}

// One chunk's crc (1920 bytes), and one of a megabyte; warm.
void Crc(benchmark::State& state) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(state.range(0)));
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  for (auto _ : state)
    benchmark::DoNotOptimize(wire::Crc32c(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

BENCHMARK(Crc)->Arg(1920)->Arg(1 << 20);
WAYMARK_BENCH(raw_write_into, Document, 100, Way::kWriteInto, Code::kRaw);
WAYMARK_BENCH(raw_read_into, Document, 100, Way::kReadInto, Code::kRaw);
WAYMARK_BENCH(raw_round_trip, Document, 100, Way::kRoundTrip, Code::kRaw);
WAYMARK_BENCH(raw_round_trip_anew, Document, 50, Way::kRoundTripAnew, Code::kRaw);
WAYMARK_BENCH(sorted_write_into, Document, 50, Way::kWriteInto, Code::kSorted);
WAYMARK_BENCH(sets_write_into, Document, 50, Way::kWriteInto, Code::kSets);
WAYMARK_BENCH(sets_read_into, Document, 50, Way::kReadInto, Code::kSets);
WAYMARK_BENCH(sets_round_trip, Document, 50, Way::kRoundTrip, Code::kSets);
BENCHMARK_CAPTURE(Fresh, small_pages, false)->Iterations(50);
BENCHMARK_CAPTURE(Fresh, huge_pages, true)->Iterations(50);

}  // namespace
}  // namespace waymark::bench

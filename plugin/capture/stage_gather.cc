#include "plugin/capture/stage_gather.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <xxhash.h>

#include "absl/status/status.h"

namespace waymark {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 36;
constexpr std::uint64_t kMagic = 0x656761'74732d6d77;  // "wm-stage"; another one on other machines
constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kInfoBytes = 8 + 8 + 1 + 1;  // step, version, reason, provenance

// How the rows of the ranks become one.
enum class Merge : std::uint32_t { kLayers, kTokens };
constexpr std::uint32_t kSorted = 1;  // not in the router's order
constexpr std::uint32_t kTokens = 2;  // Merge::kTokens

// What a rank has, and whether it can go on. Sent again, with the code of that time, in the second
// exchange.
struct Header {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::int32_t code = 0;  // an absl::StatusCode; 0: it can
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  std::int32_t num_layers = 0;
  std::int32_t top_k = 0;
  std::int32_t num_experts = 0;
  std::int32_t page_tokens = 0;
  std::int32_t num_layer_ids = 0;
  std::uint32_t flags = 0;  // kSorted, kTokens
  std::int64_t first = 0;
  std::int64_t count = 0;
  // Of the payload: layer ids, then of all rows the steps, versions, reasons, provenances, ids.
  std::uint64_t bytes = 0;
  std::uint64_t payload_check = 0;  // XXH3-64
  std::uint64_t check = 0;          // XXH3-64 of what stands before
};
static_assert(sizeof(Header) == 88, "no gaps: it travels as it stands");

std::uint64_t CheckOf(const Header& header) {
  return XXH3_64bits(&header, offsetof(Header, check));
}

std::string RankName(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

absl::Status Unequal(std::size_t rank, const char* field, std::int64_t wanted, std::int64_t given) {
  return absl::InvalidArgumentError(RankName(rank) + ": " + field + " must be " +
                                    std::to_string(wanted) + ", as on rank 0; it is " +
                                    std::to_string(given));
}

absl::Status CheckInfos(const std::string& name, std::span<const RowInfo> infos) {
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const int reason = static_cast<int>(infos[i].reason);
    const int provenance = static_cast<int>(infos[i].provenance);
    if (reason < kNumReasons && provenance < kNumProvenances) continue;
    return absl::InvalidArgumentError(
        name + ".infos[" + std::to_string(i) + "]: reason must be below " +
        std::to_string(kNumReasons) + " and provenance below " + std::to_string(kNumProvenances) +
        "; they are " + std::to_string(reason) + " and " + std::to_string(provenance));
  }
  return absl::OkStatus();
}

// ---- payloads

template <class T>
void Put(std::vector<std::uint8_t>& out, T value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof(T));
  std::memcpy(out.data() + at, &value, sizeof(T));
}

std::vector<std::uint8_t> ToPayload(const Rows& stage) {
  std::vector<std::uint8_t> out;
  out.reserve(stage.shape.layer_ids.size() * sizeof(std::int32_t) +
              stage.infos.size() * kInfoBytes + stage.ids.size());
  for (const std::int32_t id : stage.shape.layer_ids)
    Put(out, id);
  for (const RowInfo& info : stage.infos)
    Put(out, info.step);
  for (const RowInfo& info : stage.infos)
    Put(out, info.version);
  for (const RowInfo& info : stage.infos)
    Put(out, info.reason);
  for (const RowInfo& info : stage.infos)
    Put(out, info.provenance);
  out.insert(out.end(), stage.ids.begin(), stage.ids.end());
  return out;
}

template <class T>
T Take(const std::uint8_t*& at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  at += sizeof(T);
  return value;
}

// REQUIRES: `header` was checked, and `at` has its bytes.
Rows FromPayload(const Header& header, const std::uint8_t* at) {
  const std::uint8_t* const end = at + header.bytes;
  Rows rows;
  rows.first = header.first;
  rows.ordered = (header.flags & kSorted) == 0;
  rows.shape = {.num_layers = header.num_layers,
                .top_k = header.top_k,
                .num_experts = header.num_experts,
                .page_tokens = header.page_tokens,
                .layer_ids = {}};
  for (std::int32_t i = 0; i < header.num_layer_ids; ++i)
    rows.shape.layer_ids.push_back(Take<std::int32_t>(at));
  rows.infos.resize(static_cast<std::size_t>(header.count));
  for (RowInfo& info : rows.infos)
    info.step = Take<std::uint64_t>(at);
  for (RowInfo& info : rows.infos)
    info.version = Take<std::uint64_t>(at);
  for (RowInfo& info : rows.infos)
    info.reason = static_cast<Reason>(Take<std::uint8_t>(at));
  for (RowInfo& info : rows.infos)
    info.provenance = static_cast<Provenance>(Take<std::uint8_t>(at));
  rows.ids.assign(at, end);
  return rows;
}

// ---- headers

// OK if every header is undamaged and from the rank at its index, and no rank has a problem.
absl::Status CheckSent(std::span<const Header> headers) {
  for (std::size_t r = 0; r < headers.size(); ++r) {
    const Header& header = headers[r];
    if (header.magic != kMagic || header.check != CheckOf(header)) {
      return absl::DataLossError(RankName(r) + ": its header is not what it sent");
    }
    if (header.version != kVersion) {
      return absl::InvalidArgumentError(RankName(r) + ": version of its header must be " +
                                        std::to_string(kVersion) + "; it is " +
                                        std::to_string(header.version));
    }
    const auto ranks = static_cast<std::int32_t>(headers.size());
    if (header.rank != static_cast<std::int32_t>(r) || header.ranks != ranks) {
      return absl::InvalidArgumentError(
          RankName(r) + ": collective.rank and collective.ranks there must be " +
          std::to_string(r) + " and " + std::to_string(ranks) + "; they are " +
          std::to_string(header.rank) + " and " + std::to_string(header.ranks));
    }
  }
  for (std::size_t r = 0; r < headers.size(); ++r) {
    if (headers[r].code == 0) continue;
    return absl::AbortedError(
        RankName(r) + " could not take part: " +
        absl::StatusCodeToString(static_cast<absl::StatusCode>(headers[r].code)) + " there");
  }
  return absl::OkStatus();
}

// That the stages fit together, and payloads have the bytes that their headers make them have.
absl::Status CheckFit(std::span<const Header> headers) {
  const Header& front = headers[0];
  std::uint64_t largest = 0;
  for (std::size_t r = 0; r < headers.size(); ++r) {
    const Header& header = headers[r];
    if ((header.flags & kTokens) != (front.flags & kTokens)) {
      return Unequal(r, "GatherRows (2) or GatherLayers (0)", front.flags & kTokens,
                     header.flags & kTokens);
    }
    if (header.first != front.first) return Unequal(r, "first", front.first, header.first);
    if (header.count != front.count) return Unequal(r, "rows", front.count, header.count);
    if (header.top_k != front.top_k) return Unequal(r, "top_k", front.top_k, header.top_k);
    if (header.num_experts != front.num_experts) {
      return Unequal(r, "num_experts", front.num_experts, header.num_experts);
    }
    RoutingShape shape;
    shape.num_layers = header.num_layers;
    shape.top_k = header.top_k;
    shape.num_experts = header.num_experts;
    shape.page_tokens = header.page_tokens;
    // Below 2^50 with all that the shape and a 31-bit count allow.
    constexpr std::int64_t kMostRows = 0x7fffffff;
    if (!shape.Validate().ok() || header.flags > (kSorted | kTokens) || header.count < 0 ||
        header.count > kMostRows ||
        (header.num_layer_ids != 0 && header.num_layer_ids != header.num_layers) ||
        header.bytes !=
            static_cast<std::uint64_t>(header.num_layer_ids) * sizeof(std::int32_t) +
                static_cast<std::uint64_t>(header.count) * (kInfoBytes + shape.row_bytes())) {
      return absl::DataLossError(RankName(r) + ": its header contradicts itself");
    }
    largest = std::max(largest, header.bytes);
  }
  if (largest > kMostBytes / headers.size()) {
    return absl::ResourceExhaustedError("payloads of " + std::to_string(headers.size()) +
                                        " ranks must be at most " + std::to_string(kMostBytes) +
                                        " bytes in all; the largest is " + std::to_string(largest));
  }
  return absl::OkStatus();
}

absl::Status NoMemory(const char* what) {
  return absl::ResourceExhaustedError(std::string("no memory for the payloads to ") + what);
}

// Runs `work`, which may run out of memory.
template <class Work>
absl::Status WithMemory(const char* what, Work work) {
  try {
    work();
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return NoMemory(what);
  } catch (const std::length_error&) {
    return NoMemory(what);
  }
}

absl::StatusOr<Rows> MergeAll(Merge merge, std::span<const Rows* const> parts) {
  return merge == Merge::kLayers ? JoinLayers(parts) : Join(parts);
}

absl::StatusOr<Rows> JoinPayloads(Merge merge, std::span<const Header> headers,
                                  std::span<const std::uint8_t> received, std::size_t stride) {
  std::vector<Rows> stages;
  for (std::size_t r = 0; r < headers.size(); ++r) {
    const std::uint8_t* const payload = received.data() + r * stride;
    if (XXH3_64bits(payload, headers[r].bytes) != headers[r].payload_check) {
      return absl::DataLossError(RankName(r) + ": its payload is not what it sent");
    }
    stages.push_back(FromPayload(headers[r], payload));
    if (absl::Status status = CheckInfos(RankName(r), stages.back().infos); !status.ok()) {
      return status;
    }
  }
  std::vector<const Rows*> pointers;
  for (const Rows& stage : stages)
    pointers.push_back(&stage);
  return MergeAll(merge, pointers);
}

absl::StatusOr<Rows> Exchange(Merge merge, const Rows& stage, const Collective& collective) {
  std::vector<Header> headers(static_cast<std::size_t>(collective.ranks));
  std::vector<Header> answers(headers.size());
  std::vector<std::uint8_t> payload;
  std::vector<std::uint8_t> received;
  Header mine;
  mine.rank = collective.rank;
  mine.ranks = collective.ranks;

  absl::Status status = CheckRows("stage", stage);
  if (status.ok()) status = CheckInfos("stage", stage.infos);
  if (status.ok()) status = WithMemory("send", [&] { payload = ToPayload(stage); });
  if (status.ok()) {
    mine.num_layers = stage.shape.num_layers;
    mine.top_k = stage.shape.top_k;
    mine.num_experts = stage.shape.num_experts;
    mine.page_tokens = stage.shape.page_tokens;
    mine.num_layer_ids = static_cast<std::int32_t>(stage.shape.layer_ids.size());
    mine.flags = (stage.ordered ? 0 : kSorted) | (merge == Merge::kTokens ? kTokens : 0);
    mine.first = stage.first;
    mine.count = stage.size();
    mine.bytes = payload.size();
    mine.payload_check = XXH3_64bits(payload.data(), payload.size());
  }

  mine.code = static_cast<std::int32_t>(status.code());
  mine.check = CheckOf(mine);
  if (absl::Status failed = AllGather(collective, "headers", &mine, headers.data(), sizeof(Header));
      !failed.ok()) {
    return failed;
  }
  if (status.ok()) status = CheckSent(headers);
  if (status.ok()) status = CheckFit(headers);
  std::size_t largest = 0;
  if (status.ok()) {
    for (const Header& header : headers)
      largest = std::max<std::size_t>(largest, header.bytes);
    status = WithMemory("receive", [&] {
      payload.resize(largest);
      received.resize(largest * headers.size());
    });
  }

  // A rank that cannot go on reports it before the others wait for its payload.
  mine.code = static_cast<std::int32_t>(status.code());
  mine.check = CheckOf(mine);
  if (absl::Status failed = AllGather(collective, "answers", &mine, answers.data(), sizeof(Header));
      !failed.ok()) {
    return failed;
  }
  if (status.ok()) status = CheckSent(answers);
  if (!status.ok()) return status;

  if (largest > 0) {
    if (absl::Status failed =
            AllGather(collective, "payloads", payload.data(), received.data(), largest);
        !failed.ok()) {
      return failed;
    }
  }
  absl::StatusOr<Rows> joined = absl::InternalError("not joined");
  status = WithMemory("join", [&] { joined = JoinPayloads(merge, headers, received, largest); });
  if (!status.ok()) return status;
  return joined;
}

absl::StatusOr<Rows> Gather(Merge merge, const Rows& stage, const Collective& collective) {
  if (absl::Status status = CheckCollective(collective); !status.ok()) return status;
  absl::StatusOr<Rows> gathered = absl::InternalError("not gathered");
  const absl::Status status = WithMemory("exchange", [&] {
    const Rows* const alone = &stage;
    gathered =
        collective.ranks == 1 ? MergeAll(merge, {&alone, 1}) : Exchange(merge, stage, collective);
  });
  if (!status.ok()) return status;
  return gathered;
}

}  // namespace

absl::StatusOr<Rows> GatherLayers(const Rows& stage, const Collective& collective) {
  return Gather(Merge::kLayers, stage, collective);
}

absl::StatusOr<Rows> GatherRows(const Rows& rows, const Collective& collective) {
  return Gather(Merge::kTokens, rows, collective);
}

}  // namespace waymark

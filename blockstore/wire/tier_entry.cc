#include "blockstore/wire/tier_entry.h"

#include <array>
#include <utility>

#include "blockstore/byte_io.h"
#include "blockstore/wire/coverage.h"

namespace waymark::wire {
namespace {

using Magic = std::array<char, 4>;
constexpr Magic kSpaceMagic = {'W', 'M', 'T', 'S'};
constexpr Magic kNameMagic = {'W', 'M', 'T', 'N'};
constexpr Magic kEntryMagic = {'W', 'M', 'T', '1'};
constexpr std::uint64_t kOfAnotherStore = std::uint64_t{1} << 63;
constexpr std::uint64_t kStepMask = (std::uint64_t{1} << 56) - 1;

// What a page is of, as names and entries have it.
struct PageId {
  Digest128 space;
  std::uint64_t shape_digest = 0;
  std::array<std::uint8_t, BlockKey::kMaxBytes> key{};
  std::uint32_t key_bytes = 0;
  std::uint32_t ordinal = 0;
};
static_assert(sizeof(PageId) == 64);

// The beginning of an entry; behind it the steps (coverage.h), the code and the chunk.
struct Head {
  Magic magic = kEntryMagic;
  std::uint32_t step_bytes = 0;
  PageId page;
  std::uint64_t publisher = 0;
  Digest128 chunk;
};
static_assert(sizeof(Head) == 96);

PageId IdOf(const Digest128& space, const TierPage& page, std::uint64_t shape_digest) {
  return {space, shape_digest, page.key.bytes, page.key.size, page.ordinal};
}

template <class T>
std::span<const std::uint8_t> BytesOf(const T& value) {
  return {reinterpret_cast<const std::uint8_t*>(&value), sizeof(value)};
}

std::span<const std::uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

absl::StatusOr<TierCodec> TierCodec::Create(const RoutingShape& shape, std::string space,
                                            const DigestKey& key) {
  absl::StatusOr<ChunkCodec> chunks = ChunkCodec::Create({.rows = shape, .code = {}}, key);
  if (!chunks.ok()) return chunks.status();
  return TierCodec(*std::move(chunks), std::move(space));
}

Digest128 TierCodec::Space(std::string_view weights) const {
  std::string front(kSpaceMagic.begin(), kSpaceMagic.end());
  ByteWriter(front).Put(std::uint64_t{space_.size()});
  front += space_;
  return chunks_.key().Digest(BytesOf(std::string_view(front)), BytesOf(weights));
}

Digest128 TierCodec::Name(const Digest128& space, const TierPage& page) const {
  return chunks_.key().Digest(BytesOf(kNameMagic),
                              BytesOf(IdOf(space, page, chunks_.shape_digest())));
}

std::vector<std::uint8_t> TierCodec::Encode(const Digest128& space, const TierPage& page,
                                            std::uint64_t publisher,
                                            std::span<const std::uint64_t> steps,
                                            std::span<const std::uint8_t> ids) const {
  std::vector<RowInfo> infos(steps.size());
  for (std::size_t i = 0; i < infos.size(); ++i)
    infos[i] = {.step = steps[i], .reason = Reason::kNone};
  std::vector<std::uint8_t> step_runs;
  AppendSteps(infos, step_runs);
  const auto rows = static_cast<std::int64_t>(steps.size());
  const std::size_t chunk_at = sizeof(Head) + step_runs.size() + sizeof(Digest128);
  std::vector<std::uint8_t> entry(chunk_at + chunks_.ChunkBytes(rows));
  const std::span<std::uint8_t> chunk = std::span(entry).subspan(chunk_at);
  chunks_.Encode(infos, ids, chunk).IgnoreError();  // raw, and of the codec's own sizes
  RawWriter writer(entry.data());
  writer.Put(Head{.step_bytes = static_cast<std::uint32_t>(step_runs.size()),
                  .page = IdOf(space, page, chunks_.shape_digest()),
                  .publisher = publisher,
                  .chunk = chunks_.Digest(rows, chunk)});
  writer.PutBytes(step_runs.data(), step_runs.size());
  writer.Put(chunks_.key().Digest(std::span(entry).first(chunk_at - sizeof(Digest128))));
  return entry;
}

TierEntryState TierCodec::Decode(std::span<const std::uint8_t> bytes, const Digest128& name,
                                 std::span<std::uint64_t> steps,
                                 std::span<std::uint8_t> ids) const {
  const auto rows = static_cast<std::int64_t>(steps.size());
  ByteReader reader(bytes);
  const auto head = reader.Get<Head>();
  const std::uint8_t* const step_runs = reader.Take(head.step_bytes);
  const auto code = reader.Get<Digest128>();
  if (!reader.ok() || head.magic != kEntryMagic) return TierEntryState::kDamaged;
  const std::size_t coded = bytes.size() - reader.left() - sizeof(Digest128);
  if (chunks_.key().Digest(bytes.first(coded)) != code) return TierEntryState::kDamaged;
  // The name is of all that the page id has.
  const bool asked = chunks_.key().Digest(BytesOf(kNameMagic), BytesOf(head.page)) == name;
  if (!asked || head.page.shape_digest != chunks_.shape_digest()) return TierEntryState::kRefused;
  const std::span<const std::uint8_t> chunk = reader.rest();
  if (chunk.size() != chunks_.ChunkBytes(rows) || chunks_.Digest(rows, chunk) != head.chunk) {
    return TierEntryState::kDamaged;
  }
  // Every row is valid, of no version: it has its own meaning in each process.
  std::vector<std::uint8_t> coverage;
  std::vector<RowInfo> infos(steps.size(), RowInfo{.reason = Reason::kNone});
  AppendCoverage(infos, WithProvenance::kNo, coverage);
  const absl::StatusOr<RowRuns> runs =
      RowRuns::Parse(coverage, std::span(step_runs, head.step_bytes), rows, std::size_t{1} << 20);
  if (!runs.ok()) return TierEntryState::kDamaged;
  runs->Infos(0, infos);
  for (std::size_t i = 0; i < infos.size(); ++i)
    steps[i] = kOfAnotherStore + (head.publisher >> 2) + (infos[i].step & kStepMask);
  std::vector<std::uint8_t> invalid(steps.size());
  const RowsAndLayers whole{0, rows, 0, shape().num_layers};
  return chunks_.Decode(infos, chunk, whole, ids, invalid) == ChunkState::kGood
             ? TierEntryState::kGood
             : TierEntryState::kDamaged;
}

}  // namespace waymark::wire

// Entries of a tier (blockstore/wire/tier_entry.h): as they come, and with the digests made right,
// so that steps and chunk are read.
#include "blockstore/wire/tier_entry.h"

#include <cstring>

#include "tests/fuzz/fuzz_target.h"
#include "tests/support/wire_golden.h"

namespace waymark::fuzz {
namespace {

constexpr std::size_t kHead = 96;
const RoutingShape& Shape() {
  static const RoutingShape shape = wire_samples::GoldenShape(3, 2, 256, 4);
  return shape;
}
const wire::TierCodec& Codec() {
  static const wire::TierCodec codec = *wire::TierCodec::Create(Shape(), "space", {});
  return codec;
}
const wire::TierPage kPage = {BlockKey::FromInteger(5), 1};

std::vector<std::uint8_t> Entry(std::uint64_t step) {
  const std::uint64_t steps[] = {step, step, step + 1, step + 2};
  std::vector<std::uint8_t> ids(Shape().page_bytes());
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::uint8_t>(i);
  return Codec().Encode(Codec().Space("w"), kPage, 77, steps, ids);
}

// Writes the page id and both digests of an entry that is long enough.
void MakeRight(std::vector<std::uint8_t>& bytes) {
  if (bytes.size() < kHead) return;
  std::memcpy(bytes.data(), Entry(1).data(), 4);
  std::memcpy(bytes.data() + 8, Entry(1).data() + 8, 64);
  std::uint32_t step_bytes = 0;
  std::memcpy(&step_bytes, bytes.data() + 4, 4);
  step_bytes %= 64;
  std::memcpy(bytes.data() + 4, &step_bytes, 4);
  const std::size_t code_at = kHead + step_bytes;
  static const wire::ChunkCodec chunks = *wire::ChunkCodec::Create({Shape(), {}});
  if (bytes.size() != code_at + 16 + chunks.ChunkBytes(4)) return;
  const Digest128 chunk = chunks.Digest(4, std::span(bytes).subspan(code_at + 16));
  std::memcpy(bytes.data() + 80, &chunk, 16);
  const Digest128 code = ContentDigest(std::span(bytes).first(code_at));
  std::memcpy(bytes.data() + code_at, &code, 16);
}

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  std::vector<std::uint8_t> bytes(input.begin() + 1, input.end());
  if (input[0] % 2 == 1) MakeRight(bytes);
  std::vector<std::uint64_t> steps(4);
  std::vector<std::uint8_t> ids(Shape().page_bytes());
  const Digest128 space = Codec().Space("w");
  const wire::TierEntryState state = Codec().Decode(bytes, Codec().Name(space, kPage), steps, ids);
  if (state != wire::TierEntryState::kGood) return;
  for (const std::uint64_t step : steps)
    Require(step >= std::uint64_t{1} << 63, "steps of other stores are told from its own");
  const Digest128 other = Codec().Name(space, {BlockKey::FromInteger(6), 1});
  Require(Codec().Decode(bytes, other, steps, ids) == wire::TierEntryState::kRefused,
          "an entry is of one page");
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const char first : {char{0}, char{1}}) {
    corpus.push_back(first + AsText(Entry(3)));
    corpus.push_back(first + AsText(Entry(std::uint64_t{1} << 50)));
  }
  return corpus;
}

}  // namespace waymark::fuzz

// KnownRoutes: sequences whose routing is a function of sequence, position and layer, and the steps
// of an engine that computes them. For tests in which ranks share that work.
#ifndef WAYMARK_TESTS_CONFORMANCE_PARALLEL_KNOWN_ROUTES_H_
#define WAYMARK_TESTS_CONFORMANCE_PARALLEL_KNOWN_ROUTES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "blockstore/rows.h"
#include "blockstore/store/store.h"
#include "tests/support/rank_processes.h"

namespace waymark::conformance {

struct Token {
  std::int32_t sequence = 0;
  std::int32_t position = 0;
};

class KnownRoutes {
 public:
  static constexpr std::int32_t kLayers = 4;
  static constexpr std::int32_t kTopK = 2;
  static constexpr std::int32_t kExperts = 64;
  static constexpr std::int32_t kPageTokens = 4;
  static constexpr std::int32_t kSequences = 7;
  static constexpr std::int32_t kPrompt = 6;   // tokens that step 1 computes of each sequence
  static constexpr std::int32_t kTokens = 26;  // every later step computes one of each
  static constexpr std::int32_t kSteps = 1 + kTokens - kPrompt;
  static constexpr std::int32_t kBlocks = (kTokens + kPageTokens - 1) / kPageTokens;

  // The ids of a token in a layer of the model, in the router's order: kTopK different ones.
  static void Ids(const Token& token, std::int32_t layer, std::int16_t* out);
  // The tokens of `step`, 1 ... kSteps, by row of its batch.
  [[nodiscard]] static std::vector<Token> TokensOf(std::uint64_t step);
  // The KV slot of a token, those of the rows of a batch, padded to a multiple of `pad_to`, and the
  // blocks of a sequence.
  [[nodiscard]] static std::int64_t SlotOf(const Token& token);
  [[nodiscard]] static std::vector<std::int64_t> SlotsOf(const std::vector<Token>& tokens,
                                                         std::size_t pad_to = 1);
  [[nodiscard]] static std::vector<BlockId> BlocksOf(std::int32_t sequence);

  // A batch of version 1 with these slots, which it lends.
  [[nodiscard]] static StepBatch BatchOf(std::uint64_t step,
                                         const std::vector<std::int64_t>& slots);

  // A store for model layers [first_layer, last_layer), with a landing thread.
  [[nodiscard]] static StoreOptions OptionsOf(std::int32_t first_layer = 0,
                                              std::int32_t last_layer = kLayers);
  // It, with the blocks of all sequences bound.
  [[nodiscard]] static std::unique_ptr<RoutingStore> MakeStore(const StoreOptions& options);
  // Reads a sequence when all steps that have begun have ended. Throws if that takes a minute.
  [[nodiscard]] static Rows Read(RoutingStore& store, std::int32_t sequence);

  // One character for each row, in order of position: '.' if it is valid and right, 'W' if it is
  // valid and wrong, the number of its reason if it is missing.
  [[nodiscard]] static std::string Judge(const Rows& rows, std::int32_t sequence);
  // Judge of all sequences, a line each.
  [[nodiscard]] static std::string JudgeSequences(RoutingStore& store);
  // That, then "digest=" of the bytes and steps of all rows.
  [[nodiscard]] static std::string JudgeAll(RoutingStore& store);
};

constexpr std::uint64_t kFaultStep = 9;      // in which something goes wrong
constexpr std::size_t kMostBytes = 1 << 16;  // of a rank in a collective

// A failure in the process of a rank, which the test sees in its report.
inline void Must(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}
// A line of Judge whose columns from that of `step` on are `other`; and lines.
inline std::string LineFrom(std::uint64_t step, char other) {
  const std::size_t before = KnownRoutes::kPrompt + step - 2;
  return std::string(before, '.') + std::string(KnownRoutes::kTokens - before, other);
}
inline std::string Times(int times, const std::string& line) {
  std::string text;
  for (int i = 0; i < times; ++i)
    text += line;
  return text;
}
inline void ExpectNothingHangs(const std::vector<RankReport>& reports) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    EXPECT_FALSE(reports[rank].hung) << "rank " << rank << " hangs";
    EXPECT_EQ(reports[rank].text.find("exception"), std::string::npos)
        << "rank " << rank << ": " << reports[rank].text;
  }
}

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_PARALLEL_KNOWN_ROUTES_H_

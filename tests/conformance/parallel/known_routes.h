// KnownRoutes: sequences whose routing is a function of sequence, position and layer, and the steps
// of an engine that computes them. For tests in which ranks share that work.
#ifndef WAYMARK_TESTS_CONFORMANCE_PARALLEL_KNOWN_ROUTES_H_
#define WAYMARK_TESTS_CONFORMANCE_PARALLEL_KNOWN_ROUTES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blockstore/rows.h"
#include "blockstore/store/store.h"

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
  // The KV slot of a token, and the blocks of a sequence.
  [[nodiscard]] static std::int64_t SlotOf(const Token& token);
  [[nodiscard]] static std::vector<BlockId> BlocksOf(std::int32_t sequence);

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
  // Judge of all sequences, a line each, then "digest=" of the bytes and steps of all rows.
  [[nodiscard]] static std::string JudgeAll(RoutingStore& store);
};

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_PARALLEL_KNOWN_ROUTES_H_

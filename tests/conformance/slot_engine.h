// A small engine with an oracle: it knows which token's KV is in each slot, and under which weights
// it was computed. A row that the store returns as valid must be the routing of that token.
//
// It imitates no scheduler. A few blocks hold sequences that are cut off, copied, moved, bound by
// their keys and computed again; steps compute tokens and drafts in them, and end in any order,
// submitted, dropped or cancelled; records are applied one by one, and rows land late.
#ifndef WAYMARK_TESTS_CONFORMANCE_SLOT_ENGINE_H_
#define WAYMARK_TESTS_CONFORMANCE_SLOT_ENGINE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace waymark::conformance {

// What an engine may do. Of the features that are on, the seed draws about half.
struct SlotFeatures {
  bool draft = true;      // steps have drafts, of which some are rejected
  bool again = true;      // rows are computed a second time
  bool bump = true;       // the weights change, and the KV stays
  bool key = true;        // blocks are sealed with keys, and bound by them
  bool copy = true;       // blocks are copied, whole and in part
  bool move = true;       // blocks move
  bool truncate = true;   // tokens are taken back
  bool late = true;       // steps end late
  bool mute = true;       // rows that did not ask for routing
  bool silent = true;     // rows that are not captured
  bool few_pages = true;  // fewer pages than blocks
  bool audit = true;      // ignored writes are compared
  bool drop = true;       // steps are dropped, when they begin or later
  bool cancel = true;     // steps are cancelled
  bool small_log = true;  // the log is small, so that records are lost

  // Sets the feature with this name; false if there is none.
  bool Set(std::string_view name, bool on);
  // The names of the features that are on; of all.
  [[nodiscard]] std::string ToString() const;
  [[nodiscard]] static std::string Names();
};

// What a run came to; also the sums of several.
struct SlotCounts {
  std::uint64_t snapshots = 0;
  std::uint64_t rows = 0;     // that were read
  std::uint64_t valid = 0;    // of these
  std::uint64_t wrong = 0;    // valid, and not what was routed for the KV in the slot
  std::uint64_t voided = 0;   // by the audit, though no event is missing
  std::uint64_t refused = 0;  // calls that failed
  std::uint64_t ignored = 0, by_key = 0, copies_on_write = 0, without_page = 0;
  std::uint64_t log_losses = 0;
  std::string features;  // that the seed drew
  std::string finding;   // the first wrong row or refused call

  [[nodiscard]] bool clean() const { return wrong + voided + refused == 0; }
  void Add(const SlotCounts& other);
  [[nodiscard]] std::string ToString() const;
};

// Runs the engine of a seed with some of these features.
[[nodiscard]] SlotCounts RunSlotEngine(std::uint64_t seed, const SlotFeatures& features = {});

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_SLOT_ENGINE_H_

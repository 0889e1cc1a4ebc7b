// Seeded faults: one compile-time switch for the whole set, one name a fault.
//
// In every build that ships, WAYMARK_FAULT(name) is the constant false and leaves nothing behind.
// In a build with WAYMARK_SEEDED_FAULTS the tests select one fault by name, and the store then
// breaks exactly that rule; a test that names the fault must notice (tests/conformance).
#ifndef WAYMARK_BLOCKSTORE_FAULT_H_
#define WAYMARK_BLOCKSTORE_FAULT_H_

#ifdef WAYMARK_SEEDED_FAULTS

#include <string>
#include <string_view>

namespace waymark::fault {

// The fault that is on; empty: none. Set it while no store exists.
inline std::string& Selected() {
  static std::string selected;
  return selected;
}
inline void Select(std::string_view name) {
  Selected() = std::string(name);
}
inline bool On(std::string_view name) {
  return Selected() == name;
}

}  // namespace waymark::fault

#define WAYMARK_FAULT(name) (::waymark::fault::On(#name))
#else
#define WAYMARK_FAULT(name) false
#endif

#endif  // WAYMARK_BLOCKSTORE_FAULT_H_

// The switch of the seeded faults, included by every source of the copy that has them.
#ifndef WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULT_ON_H_
#define WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULT_ON_H_

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace waymark {

// The name of the fault that is on; empty: none. Set it while no store exists.
inline std::string& SelectedFault() {
  static std::string selected;
  return selected;
}

inline bool FaultOn(std::string_view name) {
  return SelectedFault() == name;
}

// What the engine's thread does while another one is between the two loads of StoreLog::LoadEnd,
// once; null: nothing. Of stores whose calls come from one thread.
inline std::function<void()>& BetweenTheLoadsHook() {
  static std::function<void()> hook;
  return hook;
}

inline void BetweenTheLoads() {
  if (BetweenTheLoadsHook()) std::exchange(BetweenTheLoadsHook(), nullptr)();
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULT_ON_H_

// The switch of the seeded faults, included by every source of the copy that has them.
#ifndef WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULT_ON_H_
#define WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULT_ON_H_

#include <string>
#include <string_view>

namespace waymark {

// The name of the fault that is on; empty: none. Set it while no store exists.
inline std::string& SelectedFault() {
  static std::string selected;
  return selected;
}

inline bool FaultOn(std::string_view name) {
  return SelectedFault() == name;
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULT_ON_H_

// The contract of transports: typed suites, one a theme, that each transport passes. A transport's
// program includes this, has traits (contract_engine.h says which) and instantiates every theme;
// the program fails when it leaves one out. host_transport_contract_test.cc is an instance.
#ifndef WAYMARK_TESTS_CONTRACT_TRANSPORT_CONTRACT_H_
#define WAYMARK_TESTS_CONTRACT_TRANSPORT_CONTRACT_H_

#include "tests/contract/allocation_contract.h"
#include "tests/contract/buffer_contract.h"
#include "tests/contract/capture_contract.h"
#include "tests/contract/hand_over_contract.h"
#include "tests/contract/packed_ids_contract.h"
#include "tests/contract/step_contract.h"

#endif  // WAYMARK_TESTS_CONTRACT_TRANSPORT_CONTRACT_H_

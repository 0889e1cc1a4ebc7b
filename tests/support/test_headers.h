// What is compiled once for the tests of `ci` and of a build under a sanitizer (waymark_test).
#ifndef WAYMARK_TESTS_SUPPORT_TEST_HEADERS_H_
#define WAYMARK_TESTS_SUPPORT_TEST_HEADERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#endif  // WAYMARK_TESTS_SUPPORT_TEST_HEADERS_H_

// docs/internals/kernels.md has tables of what the code has as data. Prints them as the page must
// have them, and compares.
//
// To change a table on the page: run this, and copy what it prints between the table's two marks.
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/routing_policy.h"
#include "tests/support/routing_method_name.h"
#include "tests/unit/kernels/routing_oracle.h"

namespace waymark::kernels {
namespace {

using routing::Methods;
using routing::Tiers;

// What lies between "<!-- begin NAME -->" and "<!-- end NAME -->", lines of their own.
std::string OfThePage(const std::string& name) {
  std::ifstream file(WAYMARK_KERNELS_PAGE);
  std::ostringstream all;
  all << file.rdbuf();
  const std::string page = all.str();
  const std::string begin = "<!-- begin " + name + " -->\n";
  const std::size_t from = page.find(begin);
  const std::size_t to = page.find("<!-- end " + name + " -->\n");
  if (from == std::string::npos || to == std::string::npos) return "no such table";
  return page.substr(from + begin.size(), to - from - begin.size());
}

void Compare(const std::string& name, const std::string& table) {
  if (OfThePage(name) != table) std::cout << table;
  EXPECT_EQ(OfThePage(name), table);
}

TEST(KernelsPage, HasTheMethods) {
  std::ostringstream table;
  table << "| number | method | selects by | weight | bias | groups | scale | K up to |\n"
        << "|---:|---|---|---|---|---|---|---:|\n";
  const auto yes = [](bool allowed) { return allowed ? "yes" : ""; };
  Methods::ForEach([&]<class M>() {
    table << "| " << int{static_cast<std::uint8_t>(M::kId)} << " | " << RoutingMethodName(M::kId)
          << " | `" << M::Score::kFormula << "` | `" << M::Weight::kFormula << "` | "
          << yes(M::kTakesBias) << " | " << yes(M::kTakesGroups) << " | " << yes(M::kTakesScale)
          << " | " << M::kMaxK << " |\n";
  });
  Compare("methods", table.str());
}

// Methods that are the same pair of policies share their kernels.
TEST(KernelsPage, HasTheVariants) {
  std::vector<std::pair<std::string, std::string>> variants;  // of methods: their pair, their names
  const auto add = [&](const std::string& pair, RoutingMethod method) {
    for (auto& [known, names] : variants) {
      if (known != pair) continue;
      names += std::string(", ") + RoutingMethodName(method);
      return;
    }
    variants.emplace_back(pair, RoutingMethodName(method));
  };
  Methods::ForEach([&]<class M>() {
    const std::string pair =
        std::string("`") + M::Score::kFormula + "` | `" + M::Weight::kFormula + "` | ";
    add(pair, M::kId);
    if (M::kTakesGroups) add(pair + "yes", M::kId);
  });
  std::ostringstream table;
  table << "| methods | key | weight | groups |\n|---|---|---|---|\n";
  for (const auto& [pair, names] : variants)
    table << "| " << names << " | " << pair << " |\n";
  table << "\n| tier | E up to | logits per lane |\n|---:|---:|---:|\n";
  std::size_t tiers = 0;
  for (const std::int32_t quads : Tiers::kAll) {
    table << "| " << quads << " | " << quads * routing::kQuadExperts << " | " << 4 * quads
          << " |\n";
    ++tiers;
  }
  const std::size_t types = std::size(kLogitTypes);
  table << "\n"
        << variants.size() << " rows x " << tiers << " tiers x " << types
        << " types of logits = " << variants.size() * tiers * types << " kernels.\n";
  Compare("variants", table.str());
}

TEST(KernelsPage, HasTheLimits) {
  std::ostringstream table;
  table << "E up to " << kMaxExperts << ", K up to " << kMaxTopK << ", up to " << kMaxGroups
        << " groups.\n";
  Compare("limits", table.str());
}

TEST(KernelsPage, HasTheBounds) {
  std::ostringstream table;
  table << "| | ulp of the exact result |\n|---|---:|\n"
        << "| key `x`, weight `x` | 0 |\n"
        << "| `sigmoid(x)` | " << kUlpBounds.sigmoid << " |\n"
        << "| softmax over all | " << kUlpBounds.softmax_all << " |\n"
        << "| softmax over the selected | " << kUlpBounds.softmax_selected << " |\n"
        << "| the same, of replayed ids | " << kUlpBounds.softmax_replayed << " |\n"
        << "| SigmoidRenorm | " << kUlpBounds.sigmoid_renorm << " |\n"
        << "| DeepSeekV3, MiniMax2 | " << kUlpBounds.scaled_sigmoid << " |\n";
  Compare("bounds", table.str());
}

}  // namespace
}  // namespace waymark::kernels

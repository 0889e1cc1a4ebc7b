#include "adapters/cli/diff_page.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "adapters/cli/console.h"

namespace waymark::cli {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #f9f9f7; --ink: #14171a; --soft: #5a6169;
  --same: #e8ebee; --none: #ffffff;
  --d1: #f3b07f; --d2: #e98a45; --d3: #d0641b; --d4: #a3470d; --d5: #6d2b04; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1214; --ink: #eceff2; --soft: #a0a8b0;
  --same: #252b31; --none: #0f1214;
  --d1: #a65a24; --d2: #c96e30; --d3: #e88a48; --d4: #f6ad78; --d5: #ffd9bd; } }
body { margin: 24px auto; max-width: 1100px; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
svg { width: 100%; } svg text { font-size: 11px; fill: var(--soft); }
.same { fill: var(--same); } .none { fill: var(--none); stroke: var(--same); }
.d1 { fill: var(--d1); } .d2 { fill: var(--d2); } .d3 { fill: var(--d3); }
.d4 { fill: var(--d4); } .d5 { fill: var(--d5); } .split { stroke: var(--ink); }
)";

// Sizes are in the units of the svg's viewBox.
constexpr std::int64_t kMostColumns = 480;
constexpr double kLeft = 48;
constexpr double kTop = 20;
constexpr double kMapWidth = 1000;
constexpr int kClasses = 5;  // number of colours for cells that differ
// If a column is several rows: the upper bound of each class, in percent of pairs that differ.
constexpr std::int64_t kPairsClasses[kClasses] = {2, 5, 10, 25, 100};

// `text` escaped for HTML; control characters become spaces.
std::string Escaped(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Number(double value) {
  return FixedDigits(value, 1);
}

std::vector<std::int32_t> IdsOf(const Rows& rows, std::int64_t row, std::int32_t layer) {
  const RoutingShape& shape = rows.shape;
  const std::uint8_t* from = rows.row(row - rows.first).data();
  std::vector<std::int32_t> ids;
  for (std::int32_t k = 0; k < shape.top_k; ++k)
    ids.push_back(shape.id_at(from, static_cast<std::size_t>(layer * shape.top_k + k)));
  std::sort(ids.begin(), ids.end());
  return ids;
}

// The ids of a row and layer that are in `a` but not in `b`, ascending: "12, 40".
std::string OnlyIn(const Rows& a, const Rows& b, std::int64_t row, std::int32_t layer) {
  const std::vector<std::int32_t> others = IdsOf(b, row, layer);
  std::string list;
  for (const std::int32_t id : IdsOf(a, row, layer)) {
    if (std::binary_search(others.begin(), others.end(), id)) continue;
    absl::StrAppend(&list, list.empty() ? "" : ", ", id);
  }
  return list;
}

class Page {
 public:
  Page(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff)
      : a_(a), b_(b), diff_(diff), layers_(diff.shape.num_layers) {
    const std::int64_t rows = diff.end - diff.begin;
    rows_a_column_ = (rows + kMostColumns - 1) / kMostColumns;
    columns_ = (rows + rows_a_column_ - 1) / rows_a_column_;
    cell_width_ = std::min(kMapWidth / static_cast<double>(columns_), 24.0);
    cell_height_ = std::clamp(420.0 / layers_, 4.0, 18.0);
  }

  std::string Make() {
    absl::StrAppend(&out_,
                    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                    "<title>waymark diff</title>\n<style>",
                    kStyle, "</style>\n</head>\n<body>\n");
    Heading();
    Map();
    out_ += "</body>\n</html>\n";
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool HasPrompt() const { return diff_.prompt_end > diff_.begin; }

  void Heading() {
    const PairCounts total = diff_.all.Total();
    absl::StrAppend(&out_, "<h1>", Escaped(a_.name), " (A) and ", Escaped(b_.name), " (B)</h1>\n");
    absl::StrAppend(&out_, "<p>The same experts in ", Percent(total.same_set_share()), " of ",
                    Count(total.pairs), " (row, layer) pairs; ", Count(diff_.all.same_rows), " of ",
                    Count(diff_.all.rows), " rows agree in every layer. ",
                    Percent(total.shared_id_share()), " of ids were chosen by both. Rows ",
                    diff_.begin, " to ", diff_.end - 1, ", ", layers_, " layers, top-",
                    diff_.shape.top_k, "; the order within a layer is ignored.");
    if (HasPrompt()) {
      for (const auto& [name, part] :
           {std::pair{"prompt", &diff_.prompt}, std::pair{"generated", &diff_.generated}}) {
        absl::StrAppend(&out_, " ", Count(part->rows - part->same_rows), " of ", Count(part->rows),
                        " ", name, " rows differ in some layer.");
      }
    }
    for (const auto& [rows, what] :
         {std::pair{diff_.only_a, "in A only"}, std::pair{diff_.only_b, "in B only"},
          std::pair{diff_.missing_a, "missing in A"}, std::pair{diff_.missing_b, "missing in B"},
          std::pair{diff_.missing_both, "missing in both"}}) {
      if (rows > 0) absl::StrAppend(&out_, " Rows ", what, ": ", Count(rows), ".");
    }
    out_ += "</p>\n";
  }

  void Map() {
    const double width = cell_width_ * static_cast<double>(columns_);
    const double height = cell_height_ * layers_;
    absl::StrAppend(&out_, "<svg viewBox=\"0 0 ", Number(kLeft + kMapWidth + 8), " ",
                    Number(kTop + height + 24),
                    "\" role=\"img\" aria-label=\"A map of rows and "
                    "layers; darker cells differ more.\">\n");
    Rect("same", kLeft, kTop, width, height, "");
    for (std::int64_t column = 0; column < columns_; ++column)
      Column(column);
    for (std::int32_t layer = 0; layer < layers_; layer += cell_height_ >= 11 ? 1 : 5) {
      Text("end", kLeft - 6, kTop + cell_height_ * (layer + 0.5) + 4,
           absl::StrCat(diff_.shape.layer_id(layer)));
    }
    Text("start", kLeft, kTop + height + 16, absl::StrCat("row ", diff_.begin));
    Text("end", kLeft + width, kTop + height + 16, absl::StrCat(diff_.end - 1));
    if (HasPrompt()) {
      const double x = kLeft + cell_width_ * static_cast<double>(diff_.prompt_end - diff_.begin) /
                                   static_cast<double>(rows_a_column_);
      absl::StrAppend(&out_, "<line class=\"split\" x1=\"", Number(x), "\" y1=\"4\" x2=\"",
                      Number(x), "\" y2=\"", Number(kTop + height + 4), "\"/>\n");
      Text("end", x - 6, kTop - 6, "prompt");
      Text("start", x + 6, kTop - 6, "generated");
    }
    absl::StrAppend(
        &out_, "</svg>\n<p>Darker: more of a row's ids differ in a layer",
        rows_a_column_ > 1
            ? absl::StrCat(", or of the rows of a column. A column is ", rows_a_column_, " rows")
            : "",
        ". White: missing in A, in B, or in both. Point at a cell for its numbers. Builds of one "
        "engine "
        "that differ agree in more than 90 % of ids, as a rule. Made by waymark diff.</p>\n");
  }

  void Rect(const char* css, double x, double y, double width, double height,
            const std::string& title) {
    absl::StrAppend(&out_, "<rect class=\"", css, "\" x=\"", Number(x), "\" y=\"", Number(y),
                    "\" width=\"", Number(width), "\" height=\"", Number(height), "\"><title>",
                    title, "</title></rect>\n");
  }
  void Text(const char* anchor, double x, double y, const std::string& text) {
    absl::StrAppend(&out_, "<text text-anchor=\"", anchor, "\" x=\"", Number(x), "\" y=\"",
                    Number(y), "\">", text, "</text>\n");
  }

  // Draws the cells of a column that differ, or an empty column if no row of it is in both.
  void Column(std::int64_t column) {
    const std::int64_t begin = diff_.begin + column * rows_a_column_;
    const std::int64_t end = std::min(diff_.end, begin + rows_a_column_);
    const double x = kLeft + cell_width_ * static_cast<double>(column);
    std::string name = end == begin + 1 ? absl::StrCat("row ", begin)
                                        : absl::StrCat("rows ", begin, " to ", end - 1);
    if (HasPrompt()) {
      absl::StrAppend(&name, end <= diff_.prompt_end     ? " (prompt)"
                             : begin >= diff_.prompt_end ? " (generated)"
                                                         : " (prompt and generated)");
    }
    for (std::int32_t layer = 0; layer < layers_; ++layer) {
      std::int64_t pairs = 0;
      std::int64_t differing = 0;  // ids, if the column is one row; else pairs
      for (std::int64_t row = begin; row < end; ++row) {
        const std::uint8_t ids = diff_.differing_at(row, layer);
        if (ids == RoutingDiff::kNotCompared) continue;
        ++pairs;
        differing += rows_a_column_ == 1 ? ids : ids > 0 ? 1 : 0;
      }
      if (pairs == 0) {  // so in every layer
        return Rect("none", x, kTop, cell_width_, cell_height_ * layers_, name + ": missing");
      }
      if (differing > 0) Cell(x, layer, name, begin, pairs, differing);
    }
  }

  void Cell(double x, std::int32_t layer, const std::string& column, std::int64_t row,
            std::int64_t pairs, std::int64_t differing) {
    const bool one = rows_a_column_ == 1;
    const std::int64_t of = one ? diff_.shape.top_k : pairs;
    std::int64_t level = (differing * kClasses - 1) / of;
    if (!one) {
      for (level = 0; 100 * differing > kPairsClasses[level] * pairs;)
        ++level;
    }
    std::string title = absl::StrCat(column, ", layer ", diff_.shape.layer_id(layer), ": ",
                                     differing, " of ", of, one ? " ids differ" : " rows differ");
    if (one) {
      absl::StrAppend(&title, "; only A: ", OnlyIn(*a_.rows, *b_.rows, row, layer),
                      "; only B: ", OnlyIn(*b_.rows, *a_.rows, row, layer));
    }
    Rect(absl::StrCat("d", level + 1).c_str(), x, kTop + cell_height_ * layer, cell_width_,
         cell_height_, title);
  }

  const DiffSide& a_;
  const DiffSide& b_;
  const RoutingDiff& diff_;
  const std::int32_t layers_;
  std::int64_t rows_a_column_ = 1;
  std::int64_t columns_ = 1;
  double cell_width_ = 1;
  double cell_height_ = 1;
  std::string out_;
};

}  // namespace

std::string DiffPage(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff) {
  return Page(a, b, diff).Make();
}

}  // namespace waymark::cli

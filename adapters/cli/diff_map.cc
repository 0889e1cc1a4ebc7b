#include "adapters/cli/diff_map.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "adapters/cli/console.h"

namespace waymark::cli {
namespace {

// Sizes are in the units of the svg's viewBox.
constexpr std::int64_t kMostColumns = 480;
constexpr double kMapLeft = 56;
constexpr double kMapWidth = 900;
constexpr double kStripTop = 34;
constexpr double kStripHeight = 72;
constexpr double kMapTop = kStripTop + kStripHeight + 24;
constexpr double kBarsLeft = kMapLeft + kMapWidth + 18;
constexpr double kBarsWidth = 150;
constexpr double kWidth = kBarsLeft + kBarsWidth + 56;
constexpr int kClasses = 5;  // number of colours for cells that differ
// If a column is several rows: the upper bound of each class, in percent of pairs that differ.
constexpr std::array<std::int64_t, kClasses> kPairsClasses = {2, 5, 10, 25, 100};

std::string Number(double value) {
  std::string text = FixedDigits(value, 1);
  if (text.size() > 2 && text.substr(text.size() - 2) == ".0") text.resize(text.size() - 2);
  return text;
}

std::string RowsName(std::int64_t first, std::int64_t last) {
  if (first == last) return absl::StrCat("row ", first);
  return absl::StrCat("rows ", first, " to ", last);
}

int PairsLevel(std::int64_t differing, std::int64_t pairs) {
  int level = 0;
  while (100 * differing > kPairsClasses[static_cast<std::size_t>(level)] * pairs)
    ++level;
  return level;
}

class Map {
 public:
  Map(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff, std::string& out)
      : a_(a), b_(b), diff_(diff), layers_(diff.shape.num_layers), out_(out) {
    const std::int64_t rows = diff.end - diff.begin;
    rows_a_column_ = (rows + kMostColumns - 1) / kMostColumns;
    columns_ = (rows + rows_a_column_ - 1) / rows_a_column_;
    cell_width_ = std::min(kMapWidth / static_cast<double>(columns_), 24.0);
    cell_height_ = std::clamp(420.0 / layers_, 4.0, 18.0);
  }

  void Append() {
    absl::StrAppend(&out_, "<svg viewBox=\"0 0 ", Number(kWidth), " ", Number(MapBottom() + 44),
                    "\" role=\"img\" aria-label=\"A map of rows and layers; darker cells differ in "
                    "more ids. The tables below have the same numbers.\">\n<defs><pattern "
                    "id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
                    "patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" "
                    "x2=\"0\" y2=\"5\"/></pattern></defs>\n");
    Rect("same", kMapLeft, kMapTop, MapRight() - kMapLeft, cell_height_ * layers_, "");
    Strip();
    for (std::int64_t column = 0; column < columns_; ++column)
      Column(column);
    Axes();
    LayerBars();
    out_ += "</svg>\n";
    Legend();
  }

 private:
  [[nodiscard]] bool HasPrompt() const { return diff_.prompt_end > diff_.begin; }
  [[nodiscard]] double MapRight() const {
    return kMapLeft + cell_width_ * static_cast<double>(columns_);
  }
  [[nodiscard]] double MapBottom() const { return kMapTop + cell_height_ * layers_; }
  [[nodiscard]] std::int64_t RowBegin(std::int64_t column) const {
    return diff_.begin + column * rows_a_column_;
  }
  [[nodiscard]] std::int64_t RowEnd(std::int64_t column) const {
    return std::min(diff_.end, RowBegin(column) + rows_a_column_);
  }
  // The x coordinate at which row `row` begins.
  [[nodiscard]] double XOf(std::int64_t row) const {
    return kMapLeft + cell_width_ * static_cast<double>(row - diff_.begin) /
                          static_cast<double>(rows_a_column_);
  }

  void Rect(const char* css, double x, double y, double width, double height,
            const std::string& title) {
    absl::StrAppend(&out_, "<rect class=\"", css, "\" x=\"", Number(x), "\" y=\"", Number(y),
                    "\" width=\"", Number(width), "\" height=\"", Number(height), "\"");
    if (title.empty()) {
      out_ += "/>\n";
    } else {
      absl::StrAppend(&out_, "><title>", title, "</title></rect>\n");
    }
  }
  void Line(const char* css, double x1, double y1, double x2, double y2) {
    absl::StrAppend(&out_, "<line class=\"", css, "\" x1=\"", Number(x1), "\" y1=\"", Number(y1),
                    "\" x2=\"", Number(x2), "\" y2=\"", Number(y2), "\"/>\n");
  }
  void Text(const char* css, const char* anchor, double x, double y, const std::string& text) {
    absl::StrAppend(&out_, "<text class=\"", css, "\" text-anchor=\"", anchor, "\" x=\"", Number(x),
                    "\" y=\"", Number(y), "\">", text, "</text>\n");
  }

  // Above the map, one bar per column: the share of its (row, layer) pairs that differ.
  void Strip() {
    std::vector<std::pair<std::int64_t, std::int64_t>> counts;  // pairs, differing
    double most = 0;
    for (std::int64_t column = 0; column < columns_; ++column) {
      auto& [pairs, differing] = counts.emplace_back(0, 0);
      for (std::int64_t row = RowBegin(column); row < RowEnd(column); ++row) {
        for (std::int32_t layer = 0; layer < layers_; ++layer) {
          const std::uint8_t ids = diff_.differing_at(row, layer);
          if (ids == RoutingDiff::kNotCompared) continue;
          ++pairs;
          differing += ids > 0 ? 1 : 0;
        }
      }
      if (pairs > 0) most = std::max(most, Share(differing, pairs));
    }
    const double bottom = kStripTop + kStripHeight;
    Line("axis", kMapLeft, kStripTop, MapRight(), kStripTop);
    Line("axis", kMapLeft, bottom, MapRight(), bottom);
    if (most == 0) return;
    Text("", "end", kMapLeft - 8, kStripTop + 4, PercentText(most));
    Text("", "end", kMapLeft - 8, bottom + 4, "0 %");
    for (std::int64_t column = 0; column < columns_; ++column) {
      const auto& [pairs, differing] = counts[static_cast<std::size_t>(column)];
      if (differing == 0) continue;
      const double height = std::max(1.0, Share(differing, pairs) / most * kStripHeight);
      Rect("bar", kMapLeft + cell_width_ * static_cast<double>(column), bottom - height,
           std::max(0.6, cell_width_ * 0.86), height,
           absl::StrCat(ColumnName(column), ": ", differing, " of ", pairs,
                        rows_a_column_ == 1 ? " layers differ" : " pairs differ"));
    }
  }

  [[nodiscard]] std::string ColumnName(std::int64_t column) const {
    std::string name = RowsName(RowBegin(column), RowEnd(column) - 1);
    if (HasPrompt()) {
      absl::StrAppend(&name, RowEnd(column) <= diff_.prompt_end     ? " (prompt)"
                             : RowBegin(column) >= diff_.prompt_end ? " (generated)"
                                                                    : " (prompt and generated)");
    }
    return name;
  }

  // Draws the cells of a column that differ, or a hatched column if no row of it is in both.
  void Column(std::int64_t column) {
    const double x = kMapLeft + cell_width_ * static_cast<double>(column);
    const double gap = cell_width_ > 4 ? 0.8 : 0;
    std::int64_t compared = 0;
    for (std::int64_t row = RowBegin(column); row < RowEnd(column); ++row)
      compared += diff_.differing_at(row, 0) != RoutingDiff::kNotCompared ? 1 : 0;
    if (compared == 0) {
      Rect("none", x, kMapTop, cell_width_, cell_height_ * layers_,
           ColumnName(column) + ": missing in A, in B, or in both");
      return;
    }
    for (std::int32_t layer = 0; layer < layers_; ++layer) {
      std::int64_t pairs = 0;
      std::int64_t differing = 0;  // ids, if the column is one row; else pairs
      for (std::int64_t row = RowBegin(column); row < RowEnd(column); ++row) {
        const std::uint8_t ids = diff_.differing_at(row, layer);
        if (ids == RoutingDiff::kNotCompared) continue;
        ++pairs;
        differing += rows_a_column_ == 1 ? ids : ids > 0 ? 1 : 0;
      }
      if (differing == 0) continue;
      static constexpr std::array<const char*, kClasses> kCss = {"d1", "d2", "d3", "d4", "d5"};
      const std::int64_t of = rows_a_column_ == 1 ? diff_.shape.top_k : pairs;
      const int level = rows_a_column_ == 1 ? static_cast<int>((differing * kClasses - 1) / of)
                                            : PairsLevel(differing, pairs);
      std::string title =
          absl::StrCat(ColumnName(column), ", layer ", diff_.shape.layer_id(layer), ": ", differing,
                       " of ", of, rows_a_column_ == 1 ? " ids differ" : " rows differ");
      if (rows_a_column_ == 1) {
        const std::int64_t row = RowBegin(column);
        absl::StrAppend(&title, "; only A: ", OnlyIn(*a_.rows, *b_.rows, row, layer),
                        "; only B: ", OnlyIn(*b_.rows, *a_.rows, row, layer));
      }
      Rect(kCss[static_cast<std::size_t>(level)], x, kMapTop + cell_height_ * layer,
           cell_width_ - gap, cell_height_ - (cell_height_ > 6 ? 0.8 : 0), title);
    }
  }

  void Axes() {
    const std::int64_t every_layer = cell_height_ >= 11 ? 1 : cell_height_ >= 6 ? 2 : 5;
    for (std::int32_t layer = 0; layer < layers_; layer += static_cast<std::int32_t>(every_layer)) {
      Text("", "end", kMapLeft - 8, kMapTop + cell_height_ * (layer + 0.5) + 4,
           absl::StrCat(diff_.shape.layer_id(layer)));
    }
    Text("strong", "end", kMapLeft - 8, kMapTop - 4, "layer");
    // About ten round row numbers.
    const std::int64_t step = RoundStep(diff_.end - diff_.begin);
    const std::int64_t start = (diff_.begin + step - 1) / step * step;
    for (std::int64_t row = start; row < diff_.end; row += step) {
      const double x = XOf(row) + (rows_a_column_ == 1 ? cell_width_ / 2 : 0);
      Line("axis", x, MapBottom() + 2, x, MapBottom() + 6);
      Text("", "middle", x, MapBottom() + 18, CountText(row));
    }
    Text("strong", "middle", (kMapLeft + MapRight()) / 2, MapBottom() + 36, "row (token position)");
    Text("strong", "start", kMapLeft, kStripTop - 20,
         rows_a_column_ == 1 ? "share of layers that differ" : "share of pairs that differ");
    if (!HasPrompt()) return;
    const double x = XOf(diff_.prompt_end);
    if (diff_.prompt_end < diff_.end) Line("split", x, kStripTop - 12, x, MapBottom() + 4);
    Text("strong", "end", x - 6, kStripTop - 5, "prompt");
    if (diff_.prompt_end < diff_.end) Text("strong", "start", x + 6, kStripTop - 5, "generated");
  }

  // The smallest 1, 2 or 5 times a power of ten that divides `rows` into at most a dozen intervals.
  static std::int64_t RoundStep(std::int64_t rows) {
    for (std::int64_t power = 1;; power *= 10) {
      for (const std::int64_t times : {1, 2, 5}) {
        if (rows / (times * power) <= 12) return times * power;
      }
    }
  }

  // Beside the map, one bar per layer.
  void LayerBars() {
    double most = 0;
    for (const PairCounts& layer : diff_.all.layers)
      most = std::max(most, 1 - layer.same_set_share());
    const double left = std::min(MapRight() + 18, kBarsLeft);
    Text("strong", "start", left, kMapTop - 4, "pairs that differ");
    Line("axis", left, kMapTop, left, MapBottom());
    for (std::int32_t layer = 0; layer < layers_; ++layer) {
      const PairCounts& counts = diff_.all.layers[static_cast<std::size_t>(layer)];
      const double share = 1 - counts.same_set_share();
      const double y = kMapTop + cell_height_ * layer;
      if (share > 0) {
        const double width = std::max(1.0, share / most * kBarsWidth);
        Rect("bar", left, y + 1, width, std::max(1.0, cell_height_ - 2.5),
             absl::StrCat("layer ", diff_.shape.layer_id(layer), ": ", counts.differing(), " of ",
                          counts.pairs, " pairs differ (", PercentText(share), ")"));
        if (cell_height_ >= 11) {
          Text("", "start", left + width + 5, y + cell_height_ / 2 + 4, PercentText(share));
        }
      }
    }
  }

  void Legend() {
    out_ += "<div class=\"legend\"><span><i class=\"k0\"></i>the same experts</span>";
    const double part = static_cast<double>(diff_.shape.top_k) / kClasses;
    std::int64_t last = 0;
    for (int level = 1; level <= kClasses; ++level) {
      const auto most = static_cast<std::int64_t>(part * level);
      if (rows_a_column_ > 1) {
        absl::StrAppend(&out_, "<span><i class=\"k", level, "\"></i>",
                        level < kClasses ? "up to " : "more ",
                        level < kClasses
                            ? absl::StrCat(kPairsClasses[static_cast<std::size_t>(level - 1)], " %")
                            : "",
                        level == 1 ? " of rows differ" : "", "</span>");
      } else if (most > last) {
        absl::StrAppend(&out_, "<span><i class=\"k", level, "\"></i>", last + 1,
                        most > last + 1 ? absl::StrCat(" to ", most) : "", " of ",
                        diff_.shape.top_k, " ids differ</span>");
        last = most;
      }
    }
    out_ += "<span><i class=\"kn\"></i>a row is missing</span></div>\n";
    absl::StrAppend(&out_, "<p class=\"soft\" style=\"margin-top:8px\">",
                    rows_a_column_ > 1 ? absl::StrCat("A column is ", rows_a_column_, " rows. ")
                                       : std::string(),
                    "Point at a cell or a bar for its numbers.</p>\n");
  }

  const DiffSide& a_;
  const DiffSide& b_;
  const RoutingDiff& diff_;
  const std::int32_t layers_;
  std::string& out_;
  std::int64_t rows_a_column_ = 1;
  std::int64_t columns_ = 1;
  double cell_width_ = 1;
  double cell_height_ = 1;
};

}  // namespace

void AppendDiffMap(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff,
                   std::string& out) {
  Map(a, b, diff, out).Append();
}

}  // namespace waymark::cli

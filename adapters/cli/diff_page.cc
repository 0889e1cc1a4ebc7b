#include "adapters/cli/diff_page.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "adapters/cli/console.h"

namespace waymark::cli {
namespace {

// Of the drawing, in its own units.
constexpr std::int64_t kMostColumns = 480;
constexpr double kMapLeft = 56;
constexpr double kMapWidth = 900;
constexpr double kStripTop = 34;
constexpr double kStripHeight = 72;
constexpr double kMapTop = kStripTop + kStripHeight + 24;
constexpr double kBarsLeft = kMapLeft + kMapWidth + 18;
constexpr double kBarsWidth = 150;
constexpr double kWidth = kBarsLeft + kBarsWidth + 56;
constexpr int kClasses = 5;  // of how far a cell differs
constexpr std::int64_t kMostTableRows = 200;
// Where a column is several rows: each class ends at this share of pairs that differ, in percent.
constexpr std::array<std::int64_t, kClasses> kPairsClasses = {2, 5, 10, 25, 100};

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark;
  --page: #f9f9f7; --card: #ffffff; --ink: #14171a; --soft: #5a6169; --line: #dfe2e6;
  --same: #e8ebee; --none: #ffffff; --edge: #aab0b7;
  --d1: #f3b07f; --d2: #e98a45; --d3: #d0641b; --d4: #a3470d; --d5: #6d2b04; }
@media (prefers-color-scheme: dark) { :root {
  --page: #0f1214; --card: #171b1f; --ink: #eceff2; --soft: #a0a8b0; --line: #2c3238;
  --same: #252b31; --none: #171b1f; --edge: #59626b;
  --d1: #a65a24; --d2: #c96e30; --d3: #e88a48; --d4: #f6ad78; --d5: #ffd9bd; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 23px; line-height: 1.25; margin: 0 0 6px; font-weight: 650; }
h2 { font-size: 16px; margin: 30px 0 8px; font-weight: 650; }
p { margin: 0 0 8px; max-width: 80ch; }
.soft, .files { color: var(--soft); }
.files dt { display: inline-block; width: 1.6em; font-weight: 650; color: var(--ink); }
.files dd { display: inline; margin: 0; overflow-wrap: anywhere; }
.files { margin: 10px 0 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px;
  margin: 20px 0 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 14px; }
.tile b { display: block; font-size: 26px; line-height: 1.2; font-weight: 650; }
.tile span { color: var(--soft); font-size: 13px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 14px; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 860px; height: auto; }
svg text { font: 11px system-ui, "DejaVu Sans", sans-serif; fill: var(--soft); }
svg text.strong { fill: var(--ink); font-weight: 600; }
.same { fill: var(--same); } .none { fill: url(#hatch); stroke: none; }
.d1 { fill: var(--d1); } .d2 { fill: var(--d2); } .d3 { fill: var(--d3); }
.d4 { fill: var(--d4); } .d5 { fill: var(--d5); }
.bar { fill: var(--d3); } .axis { stroke: var(--line); } .split { stroke: var(--ink); }
.hatch { stroke: var(--edge); }
rect[class^="d"]:hover, .bar:hover { stroke: var(--ink); }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; margin: 10px 0 0; font-size: 13px;
  color: var(--soft); }
.legend i { display: inline-block; width: 14px; height: 14px; border-radius: 3px;
  margin-right: 6px; vertical-align: -2px; border: 1px solid var(--line); }
.k0 { background: var(--same); } .k1 { background: var(--d1); } .k2 { background: var(--d2); }
.k3 { background: var(--d3); } .k4 { background: var(--d4); } .k5 { background: var(--d5); }
.kn { background: repeating-linear-gradient(45deg, var(--none) 0 3px, var(--edge) 3px 4px); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: 3px 12px 3px 0; text-align: right; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
td.left, th.left { text-align: left; }
summary { cursor: pointer; font-weight: 650; margin: 22px 0 8px; }
)";

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
    }
  }
  return out;
}

// At most 64 bytes of a path's last part: what headings call a file.
std::string ShortName(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  if (const std::size_t dot = name.find_last_of('.'); dot != std::string::npos && dot > 0) {
    name.resize(dot);
  }
  return Escaped(name.substr(0, 64));
}

std::string Number(double value) {
  std::string text = FixedDigits(value, 1);
  if (text.size() > 2 && text.substr(text.size() - 2) == ".0") text.resize(text.size() - 2);
  return text;
}

double Share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

// Never "100 %" of what is not all, nor "0 %" of what is not nothing.
std::string Percent(double share) {
  if (share < 1 && share >= 0.9995) return "&gt; 99.9 %";
  if (share > 0 && share < 0.0005) return "&lt; 0.1 %";
  return FixedDigits(100 * share, 1) + " %";
}

std::string Count(std::int64_t value) {
  return WithCommas(static_cast<std::uint64_t>(value));
}

std::string RowsName(std::int64_t first, std::int64_t last) {
  if (first == last) return absl::StrCat("row ", first);
  return absl::StrCat("rows ", first, " to ", last);
}

std::vector<std::int32_t> IdsOf(const waymark::Rows& rows, std::int64_t row, std::int32_t layer) {
  const RoutingShape& shape = rows.shape;
  const std::uint8_t* from = rows.row(row - rows.first).data();
  std::vector<std::int32_t> ids;
  for (std::int32_t k = 0; k < shape.top_k; ++k) {
    const std::size_t at = static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape.top_k) +
                           static_cast<std::size_t>(k);
    std::uint16_t id = shape.id_bytes() == 1 ? from[at] : 0;
    if (shape.id_bytes() == 2) std::memcpy(&id, from + 2 * at, 2);
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

// The ids of `ids` that are not in `others`, "12, 40".
std::string Only(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& others) {
  std::string list;
  for (const std::int32_t id : ids) {
    if (std::binary_search(others.begin(), others.end(), id)) continue;
    absl::StrAppend(&list, list.empty() ? "" : ", ", id);
  }
  return list;
}

int PairsLevel(std::int64_t differing, std::int64_t pairs) {
  int level = 0;
  while (100 * differing > kPairsClasses[static_cast<std::size_t>(level)] * pairs)
    ++level;
  return level;
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
                    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                    "<title>",
                    ShortName(a_.name), " and ", ShortName(b_.name), "</title>\n<style>",
                    std::string(kStyle), "</style>\n</head>\n<body>\n<main>\n");
    Heading();
    Tiles();
    Map();
    LayerTable();
    RowTable();
    out_ += "</main>\n</body>\n</html>\n";
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool HasPrompt() const { return diff_.prompt_end > diff_.begin; }
  [[nodiscard]] std::int64_t FirstDifferingRow() const {
    for (std::int64_t row = diff_.begin; row < diff_.end; ++row) {
      if (diff_.RowDiffers(row)) return row;
    }
    return -1;
  }

  void Heading() {
    const PairCounts total = diff_.all.Total();
    absl::StrAppend(&out_, "<h1>", ShortName(a_.name), " and ", ShortName(b_.name), "</h1>\n<p>");
    if (total.pairs == 0) {
      out_ += "No row is there in both.";
    } else if (total.differing() == 0) {
      absl::StrAppend(&out_, "Both chose the same experts in all ", Count(total.pairs),
                      " (row, layer) pairs.");
    } else {
      absl::StrAppend(&out_, "Both chose the same experts in ", Percent(total.same_set_share()),
                      " of ", Count(total.pairs), " (row, layer) pairs; ", Count(total.differing()),
                      total.differing() == 1 ? " differs." : " differ.");
    }
    if (HasPrompt() && total.differing() > 0) {
      absl::StrAppend(&out_, " ", PartSentence(diff_.prompt, "prompt"), " ",
                      PartSentence(diff_.generated, "generated"));
    }
    absl::StrAppend(&out_, "</p>\n<dl class=\"files\"><div><dt>A</dt><dd>", Escaped(a_.name),
                    "</dd></div><div><dt>B</dt><dd>", Escaped(b_.name),
                    "</dd></div></dl>\n<p class=\"soft\">", Count(diff_.end - diff_.begin),
                    " rows (", diff_.begin, " to ", diff_.end - 1, "), ", layers_, " layers, top-",
                    diff_.shape.top_k,
                    ". Order within a layer does "
                    "not count.",
                    OutsideSentence(), "</p>\n");
  }

  static std::string PartSentence(const PartDiff& part, const char* name) {
    if (part.rows == part.same_rows) {
      return absl::StrCat("All ", Count(part.rows), " ", name, " rows agree in every layer.");
    }
    return absl::StrCat(Count(part.rows - part.same_rows), " of ", Count(part.rows), " ", name,
                        " rows differ in some layer.");
  }

  [[nodiscard]] std::string OutsideSentence() const {
    std::string text;
    const auto add = [&](std::int64_t rows, const char* what) {
      if (rows > 0)
        absl::StrAppend(&text, " ", Count(rows), rows == 1 ? " row is " : " rows are ", what);
    };
    add(diff_.only_a, "in A only.");
    add(diff_.only_b, "in B only.");
    add(diff_.missing_a, "missing in A.");
    add(diff_.missing_b, "missing in B.");
    add(diff_.missing_both, "missing in both.");
    return text;
  }

  void Tile(const std::string& value, const std::string& what) {
    absl::StrAppend(&out_, "<div class=\"tile\"><b>", value, "</b><span>", what, "</span></div>\n");
  }

  void Tiles() {
    const PairCounts total = diff_.all.Total();
    out_ += "<div class=\"tiles\">\n";
    Tile(Percent(total.same_set_share()), "of pairs: the same experts");
    if (HasPrompt()) {
      Tile(Percent(diff_.prompt.Total().same_set_share()),
           absl::StrCat("of the prompt's (", Count(diff_.prompt.rows), " rows)"));
      Tile(Percent(diff_.generated.Total().same_set_share()),
           absl::StrCat("of what was generated (", Count(diff_.generated.rows), " rows)"));
    }
    Tile(Percent(diff_.all.rows == 0 ? 1 : Share(diff_.all.same_rows, diff_.all.rows)),
         absl::StrCat("of rows: the same in every layer (", Count(diff_.all.same_rows), " of ",
                      Count(diff_.all.rows), ")"));
    Tile(Percent(total.shared_id_share()), "of ids: chosen by both");
    const std::int64_t first = FirstDifferingRow();
    Tile(first < 0 ? "none" : absl::StrCat("row ", first), "the first that differs");
    out_ += "</div>\n";
  }

  // ---- the drawing

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
  // Where row `row` begins.
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

  void Map() {
    out_ += "<h2>Where they differ</h2>\n<div class=\"card\">\n";
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
    out_ += "</div>\n";
  }

  // Above the map, a bar a column: the share of its (row, layer) pairs that differ.
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
    Text("", "end", kMapLeft - 8, kStripTop + 4, Percent(most));
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

  // The cells of a column that differ, and a column that is not there in both.
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
      std::int64_t differing = 0;  // of one row: its ids; of several: their pairs
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
        const std::vector<std::int32_t> in_a = IdsOf(*a_.rows, row, layer);
        const std::vector<std::int32_t> in_b = IdsOf(*b_.rows, row, layer);
        absl::StrAppend(&title, "; only A: ", Only(in_a, in_b), "; only B: ", Only(in_b, in_a));
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
      Text("", "middle", x, MapBottom() + 18, Count(row));
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

  // 1, 2 or 5 times a power of ten, so that there are at most a dozen of them in `rows`.
  static std::int64_t RoundStep(std::int64_t rows) {
    for (std::int64_t power = 1;; power *= 10) {
      for (const std::int64_t times : {1, 2, 5}) {
        if (rows / (times * power) <= 12) return times * power;
      }
    }
  }

  // Beside the map, a bar a layer.
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
                          counts.pairs, " pairs differ (", Percent(share), ")"));
        if (cell_height_ >= 11) {
          Text("", "start", left + width + 5, y + cell_height_ / 2 + 4, Percent(share));
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

  // ---- the same in tables

  void LayerTable() {
    out_ +=
        "<details><summary>Layer by layer</summary>\n<div class=\"card\"><table>\n<tr>"
        "<th>layer</th><th>pairs</th><th>differ</th><th>same experts</th>";
    if (HasPrompt()) out_ += "<th>prompt</th><th>generated</th>";
    out_ += "<th>same order</th><th>ids both chose</th></tr>\n";
    for (std::size_t i = 0; i < diff_.all.layers.size(); ++i) {
      const PairCounts& layer = diff_.all.layers[i];
      absl::StrAppend(&out_, "<tr><td>", diff_.shape.layer_id(static_cast<std::int32_t>(i)),
                      "</td><td>", Count(layer.pairs), "</td><td>", Count(layer.differing()),
                      "</td><td>", Percent(layer.same_set_share()), "</td>");
      if (HasPrompt()) {
        absl::StrAppend(&out_, "<td>", Percent(diff_.prompt.layers[i].same_set_share()),
                        "</td><td>", Percent(diff_.generated.layers[i].same_set_share()), "</td>");
      }
      absl::StrAppend(&out_, "<td>", Percent(layer.same_order_share()), "</td><td>",
                      Percent(layer.shared_id_share()), "</td></tr>\n");
    }
    out_ += "</table></div></details>\n";
  }

  void RowTable() {
    const std::int64_t differing = diff_.all.rows - diff_.all.same_rows;
    if (differing == 0) return;
    absl::StrAppend(&out_, "<details><summary>",
                    differing > kMostTableRows
                        ? absl::StrCat("The first ", kMostTableRows, " of ", Count(differing),
                                       " rows that differ")
                        : absl::StrCat("The ", Count(differing),
                                       differing == 1 ? " row that differs" : " rows that differ"),
                    "</summary>\n<div class=\"card\"><table>\n<tr><th>row</th>",
                    HasPrompt() ? "<th class=\"left\">part</th>" : "",
                    "<th>layers</th><th class=\"left\">layer: only A / only B</th></tr>\n");
    std::int64_t shown = 0;
    for (std::int64_t row = diff_.begin; row < diff_.end && shown < kMostTableRows; ++row) {
      if (!diff_.RowDiffers(row)) continue;
      ++shown;
      std::string list;
      int layers = 0;
      for (std::int32_t layer = 0; layer < layers_; ++layer) {
        if (diff_.differing_at(row, layer) == 0) continue;
        ++layers;
        const std::vector<std::int32_t> in_a = IdsOf(*a_.rows, row, layer);
        const std::vector<std::int32_t> in_b = IdsOf(*b_.rows, row, layer);
        absl::StrAppend(&list, list.empty() ? "" : " &middot; ", "<b>", diff_.shape.layer_id(layer),
                        "</b>: ", Only(in_a, in_b), " / ", Only(in_b, in_a));
      }
      absl::StrAppend(&out_, "<tr><td>", row, "</td>",
                      !HasPrompt()             ? ""
                      : row < diff_.prompt_end ? "<td class=\"left\">prompt</td>"
                                               : "<td class=\"left\">generated</td>",
                      "<td>", layers, "</td><td class=\"left\">", list, "</td></tr>\n");
    }
    out_ += "</table></div></details>\n";
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

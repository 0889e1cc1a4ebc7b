#include "adapters/cli/diff_page.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "adapters/cli/diff_map.h"

namespace waymark::cli {
namespace {

constexpr std::int64_t kMostTableRows = 200;

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

class Page {
 public:
  Page(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff)
      : a_(a), b_(b), diff_(diff), layers_(diff.shape.num_layers) {}

  std::string Make() {
    absl::StrAppend(&out_,
                    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                    "<title>",
                    ShortName(a_.name), " and ", ShortName(b_.name), "</title>\n<style>",
                    std::string(kStyle), "</style>\n</head>\n<body>\n<main>\n");
    Heading();
    Tiles();
    out_ += "<h2>Where they differ</h2>\n<div class=\"card\">\n";
    AppendDiffMap(a_, b_, diff_, out_);
    out_ += "</div>\n";
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
      out_ += "No row is valid in both.";
    } else if (total.differing() == 0) {
      absl::StrAppend(&out_, "Both chose the same experts in all ", CountText(total.pairs),
                      " (row, layer) pairs.");
    } else {
      absl::StrAppend(&out_, "Both chose the same experts in ", PercentText(total.same_set_share()),
                      " of ", CountText(total.pairs), " (row, layer) pairs; ",
                      CountText(total.differing()),
                      total.differing() == 1 ? " differs." : " differ.");
    }
    if (HasPrompt() && total.differing() > 0) {
      absl::StrAppend(&out_, " ", SectionSentence(diff_.prompt, "prompt"), " ",
                      SectionSentence(diff_.generated, "generated"));
    }
    absl::StrAppend(&out_, "</p>\n<dl class=\"files\"><div><dt>A</dt><dd>", Escaped(a_.name),
                    "</dd></div><div><dt>B</dt><dd>", Escaped(b_.name),
                    "</dd></div></dl>\n<p class=\"soft\">", CountText(diff_.end - diff_.begin),
                    " rows (", diff_.begin, " to ", diff_.end - 1, "), ", layers_, " layers, top-",
                    diff_.shape.top_k,
                    ". The order within a layer is "
                    "ignored.",
                    OutsideSentence(), "</p>\n");
  }

  static std::string SectionSentence(const SectionDiff& part, const char* name) {
    if (part.rows == part.same_rows) {
      return absl::StrCat("All ", CountText(part.rows), " ", name, " rows agree in every layer.");
    }
    return absl::StrCat(CountText(part.rows - part.same_rows), " of ", CountText(part.rows), " ",
                        name, " rows differ in some layer.");
  }

  [[nodiscard]] std::string OutsideSentence() const {
    std::string text;
    const auto add = [&](std::int64_t rows, const char* what) {
      if (rows > 0)
        absl::StrAppend(&text, " ", CountText(rows), rows == 1 ? " row is " : " rows are ", what);
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
    Tile(PercentText(total.same_set_share()), "of pairs have the same experts");
    if (HasPrompt()) {
      Tile(PercentText(diff_.prompt.Total().same_set_share()),
           absl::StrCat("of the prompt's pairs (", CountText(diff_.prompt.rows), " rows)"));
      Tile(PercentText(diff_.generated.Total().same_set_share()),
           absl::StrCat("of the generated pairs (", CountText(diff_.generated.rows), " rows)"));
    }
    Tile(PercentText(diff_.all.rows == 0 ? 1 : Share(diff_.all.same_rows, diff_.all.rows)),
         absl::StrCat("of rows are the same in every layer (", CountText(diff_.all.same_rows),
                      " of ", CountText(diff_.all.rows), ")"));
    Tile(PercentText(total.shared_id_share()), "of ids were chosen by both");
    const std::int64_t first = FirstDifferingRow();
    Tile(first < 0 ? "none" : absl::StrCat("row ", first), "is the first that differs");
    out_ += "</div>\n";
  }

  void LayerTable() {
    out_ +=
        "<details><summary>Layer by layer</summary>\n<div class=\"card\"><table>\n<tr>"
        "<th>layer</th><th>pairs</th><th>differ</th><th>same experts</th>";
    if (HasPrompt()) out_ += "<th>prompt</th><th>generated</th>";
    out_ += "<th>same order</th><th>ids both chose</th></tr>\n";
    for (std::size_t i = 0; i < diff_.all.layers.size(); ++i) {
      const PairCounts& layer = diff_.all.layers[i];
      absl::StrAppend(&out_, "<tr><td>", diff_.shape.layer_id(static_cast<std::int32_t>(i)),
                      "</td><td>", CountText(layer.pairs), "</td><td>",
                      CountText(layer.differing()), "</td><td>",
                      PercentText(layer.same_set_share()), "</td>");
      if (HasPrompt()) {
        absl::StrAppend(&out_, "<td>", PercentText(diff_.prompt.layers[i].same_set_share()),
                        "</td><td>", PercentText(diff_.generated.layers[i].same_set_share()),
                        "</td>");
      }
      absl::StrAppend(&out_, "<td>", PercentText(layer.same_order_share()), "</td><td>",
                      PercentText(layer.shared_id_share()), "</td></tr>\n");
    }
    out_ += "</table></div></details>\n";
  }

  void RowTable() {
    const std::int64_t differing = diff_.all.rows - diff_.all.same_rows;
    if (differing == 0) return;
    absl::StrAppend(&out_, "<details><summary>",
                    differing > kMostTableRows
                        ? absl::StrCat("The first ", kMostTableRows, " of ", CountText(differing),
                                       " rows that differ")
                        : absl::StrCat("The ", CountText(differing),
                                       differing == 1 ? " row that differs" : " rows that differ"),
                    "</summary>\n<div class=\"card\"><table>\n<tr><th>row</th>",
                    HasPrompt() ? "<th class=\"left\">section</th>" : "",
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
        absl::StrAppend(&list, list.empty() ? "" : " &middot; ", "<b>", diff_.shape.layer_id(layer),
                        "</b>: ", OnlyIn(*a_.rows, *b_.rows, row, layer), " / ",
                        OnlyIn(*b_.rows, *a_.rows, row, layer));
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
  std::string out_;
};

}  // namespace

std::string DiffPage(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff) {
  return Page(a, b, diff).Make();
}

}  // namespace waymark::cli

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/json_table.h"
#include "adapters/cli/routing_input.h"
#include "adapters/trainer/routing_diff.h"

namespace waymark::cli {
namespace {

constexpr std::size_t kShownRows = 10;

// The first rows that differ.
std::vector<std::int64_t> DifferingRows(const RoutingDiff& diff) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = diff.begin; row < diff.end && rows.size() < kShownRows; ++row) {
    if (diff.RowDiffers(row)) rows.push_back(row);
  }
  return rows;
}

std::vector<std::int32_t> DifferingLayers(const RoutingDiff& diff, std::int64_t row) {
  std::vector<std::int32_t> layers;
  for (std::int32_t layer = 0; layer < diff.shape.num_layers; ++layer) {
    if (diff.differing_at(row, layer) != 0) layers.push_back(diff.shape.layer_id(layer));
  }
  return layers;
}

Json ToJson(const PairCounts& counts) {
  return Json{{"pairs", counts.pairs},
              {"same_set", counts.same_set},
              {"same_set_share", counts.same_set_share()},
              {"same_order_share", counts.same_order_share()},
              {"shared_id_share", counts.shared_id_share()}};
}

Json ToJson(const SectionDiff& part) {
  Json json = ToJson(part.Total());
  json["rows"] = part.rows;
  json["same_rows"] = part.same_rows;
  return json;
}

Json ToJson(const RoutingDiff& diff) {
  Json json = ToJson(diff.all);
  json["same"] = diff.same();
  json["begin"] = diff.begin;
  json["end"] = diff.end;
  json["only_in_a"] = diff.only_a;
  json["only_in_b"] = diff.only_b;
  json["missing_in_a"] = diff.missing_a;
  json["missing_in_b"] = diff.missing_b;
  json["missing_in_both"] = diff.missing_both;
  if (diff.prompt_end > diff.begin) {
    json["prompt"] = ToJson(diff.prompt);
    json["generated"] = ToJson(diff.generated);
  }
  json["layers"] = Json::array();
  for (std::size_t i = 0; i < diff.all.layers.size(); ++i) {
    Json layer = ToJson(diff.all.layers[i]);
    layer["layer"] = diff.shape.layer_id(static_cast<std::int32_t>(i));
    json["layers"].push_back(std::move(layer));
  }
  json["first_differing"] = Json::array();
  for (const std::int64_t row : DifferingRows(diff))
    json["first_differing"].push_back({{"row", row}, {"layers", DifferingLayers(diff, row)}});
  return json;
}

void Print(const RoutingDiff& diff) {
  std::printf("%s\n", JsonTable(ToJson(diff)).c_str());
  std::printf("  layer  same experts  ids both chose\n");
  for (std::size_t i = 0; i < diff.all.layers.size(); ++i) {
    const PairCounts& layer = diff.all.layers[i];
    std::printf("  %5d  %12s  %14s\n", diff.shape.layer_id(static_cast<std::int32_t>(i)),
                Percent(layer.same_set_share()).c_str(), Percent(layer.shared_id_share()).c_str());
  }
  const std::vector<std::int64_t> rows = DifferingRows(diff);
  if (!rows.empty()) std::printf("\n  The first rows that differ\n");
  for (const std::int64_t row : rows) {
    std::string list;
    for (const std::int32_t layer : DifferingLayers(diff, row))
      list += (list.empty() ? "" : ", ") + std::to_string(layer);
    std::printf("  row %lld, layers %s\n", static_cast<long long>(row), list.c_str());
  }
  std::printf("\n%s\n",
              diff.same() ? "The same experts in every row and layer." : "The two differ.");
}

class DiffCommand final : public Command {
 public:
  DiffCommand()
      : Command("diff", "Compare two captures of the same tokens, layer by layer and row by row") {}
  void AddOptions(CLI::App& app) override {
    app.add_option("A", a_, "A Waymark document, or routing of another format")->required();
    app.add_option("B", b_, "The same")->required();
    AddInputOptions(app, "--format", input_);
    app.add_option("--prompt-tokens", prompt_tokens_,
                   "Length of the prompt: its rows are counted separately")
        ->type_name("N")
        ->check(CLI::Range(1, 0x7fffffff));
    app.add_flag("--json", json_, "Print one JSON object");
    app.footer(
        "The order of the experts within a layer is ignored.\n"
        "Options that describe a file apply to both where they fit: none to Waymark documents,\n"
        "--dtype to ids without a type, --sentinel to arrays whose type has such an id.\n"
        "Exits 0 if both are the same, 1 if not, 2 if a file or an option cannot be used.");
  }

  ExitCode Run() override {
    const formats::ReadRowsOptions read = {
        .assume_moe_columns = true, .assume_experts = true, .skip_options_that_do_not_fit = true};
    const absl::StatusOr<RoutingFile> a = LoadRouting(a_, input_, read);
    if (!a.ok()) return Fail(name(), std::string(a.status().message()));
    const absl::StatusOr<RoutingFile> b = LoadRouting(b_, input_, read);
    if (!b.ok()) return Fail(name(), std::string(b.status().message()));
    Progress comparing("comparing rows");
    const std::int64_t rows = std::min(a->rows.size(), b->rows.size());
    const absl::StatusOr<RoutingDiff> diff =
        Compare(a->rows, b->rows, prompt_tokens_, [&](std::int64_t done) {
          comparing.Show(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(rows));
        });
    comparing.Clear();
    if (!diff.ok()) return Fail(name(), std::string(diff.status().message()));
    for (const auto& [path, file] : {std::pair{&a_, &*a}, {&b_, &*b}}) {
      for (const std::string& note : file->notes)
        std::fprintf(stderr, "note: '%s': %s\n", path->c_str(), note.c_str());
    }
    json_ ? PrintJson(ToJson(*diff)) : Print(*diff);
    return diff->same() ? kExitOk : kExitFoundWrong;
  }

 private:
  std::string a_;
  std::string b_;
  InputOptions input_;
  std::int64_t prompt_tokens_ = 0;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeDiffCommand() {
  return std::make_unique<DiffCommand>();
}

}  // namespace waymark::cli

// `waymark inspect`, `diff` and `convert`, run as a person runs them.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/tool_test.h"

namespace waymark {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RoutingCli : public ToolTest {
 protected:
  static std::string Golden(const std::string& name) {
    return std::string(WAYMARK_FORMATS_DATA) + "/" + name;
  }
  // A copy of the golden v1_u1.npy with byte `at` of its ids changed to `id`.
  std::string Changed(std::size_t at, char id) {
    std::string bytes = Slurp(Golden("v1_u1.npy"));
    bytes[128 + at] = id;
    const std::string path = Path("changed.npy");
    Write(path, bytes);
    return path;
  }
  static std::size_t CountOf(const std::string& text, const std::string& word) {
    std::size_t count = 0;
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
      ++count;
    return count;
  }
};

TEST_F(RoutingCli, InspectTellsAFileByItsContent) {
  const std::pair<const char*, const char*> files[] = {
      {"v1_u1.npy", "npy"},
      {"vllm.json", "vllm"},
      {"megatron_ndarray.json", "megatron-ndarray"},
      {"nemo_rl.txt", "nemo-rl"}};
  for (const auto& [file, format] : files) {
    const Json json = RunJson({"inspect", Golden(file)}, 0);
    ASSERT_TRUE(json.is_object()) << file;
    EXPECT_EQ(json["format"], format) << file;
    EXPECT_EQ(json["rows"], 5) << file;
    EXPECT_EQ(json["valid"], 5) << file;
    EXPECT_EQ(json["layers"], 3) << file;
    EXPECT_EQ(json["top_k"], 2) << file;
    EXPECT_EQ(json["experts_known"], false) << file;
    EXPECT_EQ(json["coverage"].size(), 1u) << file;
    EXPECT_EQ(json["load"].size(), 3u) << file;
  }
  const Json delta = RunJson({"inspect", Golden("prime_rl.json")}, 0);
  EXPECT_EQ(delta["first"], 2);
  const Json raw = RunJson({"inspect", Golden("sglang_u2.json"), "--format", "sglang",
                            "--num-layers", "3", "--top-k", "2", "--experts", "300"},
                           0);
  EXPECT_EQ(raw["first"], 2);
  EXPECT_EQ(raw["rows"], 3);
  EXPECT_EQ(raw["experts"], 300);
}

TEST_F(RoutingCli, InspectCountsTheLoad) {
  // Two rows, one layer, top-2 of 4: experts 0 and 1, then 0 and 2.
  const std::string path = Path("a.json");
  Write(path, "[[[0, 1]], [[0, 2]]]");
  const Json json = RunJson({"inspect", path, "--experts", "4"}, 0);
  const Json& load = json["load"][0];
  EXPECT_EQ(load["most_used"]["expert"], 0);
  EXPECT_EQ(load["most_used"]["share"], 0.5);
  EXPECT_EQ(load["least_used"]["expert"], 3);
  EXPECT_EQ(load["least_used"]["share"], 0);
  EXPECT_EQ(load["unused_experts"], 1);
  EXPECT_DOUBLE_EQ(load["entropy"].get<double>(), 0.75);  // 1.5 bits of 2
  const Outcome outcome = RunTo(0, {"inspect", path});
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("nested JSON lists"), HasSubstr("experts known"),
                                 HasSubstr("rows 0 to 1: valid\n")));
}

TEST_F(RoutingCli, InspectShowsWhatIsMissing) {
  const std::string path = Path("a.json");
  Write(path, "[[[0, 1]], [[-1, -1]], [[0, 2]]]");
  const Json json = RunJson({"inspect", path, "--sentinel", "-1"}, 0);
  EXPECT_EQ(json["valid"], 2);
  ASSERT_EQ(json["coverage"].size(), 3u);
  EXPECT_EQ(json["coverage"][1]["missing"], "not told");
  EXPECT_EQ(json["load"][0]["most_used"]["share"], 0.5);  // of the rows that are there
  // The same bytes without the sentinel are refused, not guessed at.
  const Outcome outcome = RunTo(2, {"inspect", path});
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("row 1"), HasSubstr("it is -1")));
}

TEST_F(RoutingCli, FilesThatCannotBeUsedExitWithTwoAndOneLine) {
  const std::string bad = Path("bad");
  Write(bad, "hello");
  const std::string flight = Path("a.flight");
  Write(flight, "WMFLIGHT");
  const std::string document = Path("cut.wmk");
  Write(document, "\x89WMK\r\n");
  const std::string dense = Golden("vllm_all_layers.json");
  const std::string good = Golden("v1_u1.npy");
  const std::string out = Path("out");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"inspect", "/nonexistent"}, "'/nonexistent' cannot be read: No such file or directory"},
      {{"inspect", "/"}, "'/' cannot be read: Is a directory"},
      {{"inspect", flight}, "is a recording, not routing: `waymark check` replays it"},
      {{"inspect", bad}, "no format"},
      {{"inspect", document}, "cut.wmk"},
      {{"inspect", good, "--experts", "3"}, "[0, 3)"},
      {{"inspect", good, "--moe-layers", "1-"}, "--moe-layers"},
      {{"inspect", good, "--moe-layers", "0-1"}, "they are 2"},
      {{"inspect", good, "--sentinel", "7"}, "--sentinel"},
      {{"inspect", good, "--top-k", "3"}, "--top-k must be"},
      {{"inspect", good, "--dtype", "int32"}, "--dtype must be"},
      {{"inspect", good, "--rows", "some"}, "--rows"},
      {{"inspect", dense}, "set moe_layers"},
      {{"inspect", Golden("prime_rl.json"), "--start", "3"}, "--start"},
      {{"diff", good, bad}, "bad"},
      {{"diff", good, dense, "--moe-layers", "all"}, "column 0"},
      {{"diff", good}, "B"},
      {{"convert", bad, bad, "--to", "npy"}, "OUT must be another file than IN"},
      {{"convert", good, out}, "--to"},
      {{"convert", good, out, "--to", "nope"}, "'nope'"},
      {{"convert", good, out, "--to", "waymark", "--moe-layers", "all"}, "--experts is required"},
      {{"convert", good, out, "--to", "waymark", "--experts", "16"}, "--moe-layers is required"},
      {{"convert", good, out, "--to", "vllm", "--experts", "16"}, "--moe-layers is required"},
      {{"convert", good, out, "--to", "npy", "--to-dtype", "float32"}, "float32"},
      {{"convert", dense, out, "--to", "npy"}, "--moe-layers is required"},
      {{"convert", good, out, "--to", "npy", "--to-codec", "set"}, "--to-codec is for Waymark"},
      {{"convert", good, out, "--to", "npy", "--to-page-tokens", "8"}, "--to-page-tokens is for"},
      {{"convert", good, out, "--to", "npy", "--to-crc-layers", "1"}, "--to-crc-layers is for"},
      {{"convert", good, out, "--to", "waymark", "--to-codec", "best"}, "best"},
      {{"convert", good, out, "--to", "waymark", "--to-page-tokens", "5000"}, "5000"},
      {{"convert", good, out, "--to", "waymark", "--to-crc-layers", "0"}, "--to-crc-layers"},
      {{"convert", good, out, "--to", "waymark", "--experts", "16", "--moe-layers", "all",
        "--to-crc-layers", "4"},
       "--to-crc-layers must be in [1, 3]; it is 4"},
      {{"convert", good, "/nonexistent/x", "--to", "npy"}, "/nonexistent/x"},
  };
  for (const auto& [arguments, word] : cases) {
    const Outcome outcome = Run(arguments);
    std::string line;
    for (const std::string& argument : arguments)
      line += argument + " ";
    EXPECT_EQ(outcome.code, 2) << line << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(word)) << line;
    EXPECT_EQ(outcome.out, "") << line;
    EXPECT_NE(access(out.c_str(), F_OK), 0) << line;
    EXPECT_EQ(outcome.err.find("waymark " + arguments[0] + ": "), 0u) << outcome.err;
    EXPECT_EQ(CountOf(outcome.err, "\n"), 1u) << line;
  }
}

TEST_F(RoutingCli, DiffOfTheSameIsZeroAndOfOtherOrdersToo) {
  Outcome outcome = RunTo(0, {"diff", Golden("v1_u1.npy"), Golden("megatron.json")});
  EXPECT_THAT(outcome.out, HasSubstr("The same experts in every row and layer."));
  // Row 0 of layer 0 is 0, 7: turned round it is the same set.
  std::string bytes = Slurp(Golden("v1_u1.npy"));
  std::swap(bytes[128], bytes[129]);
  const std::string path = Path("turned.npy");
  Write(path, bytes);
  const Json json = RunJson({"diff", Golden("v1_u1.npy"), path}, 0);
  EXPECT_EQ(json["same"], true);
  EXPECT_EQ(json["pairs"], 15);
  EXPECT_EQ(json["same_set"], 15);
  EXPECT_DOUBLE_EQ(json["same_order_share"].get<double>(), 14.0 / 15);
}

TEST_F(RoutingCli, DiffOfADocumentAndAnArrayTakesTheArraysOptions) {
  const std::string document = Path("a.wmk");
  Outcome outcome = RunTo(0, {"convert", Golden("v1_u1.npy"), document, "--to", "waymark",
                              "--experts", "16", "--moe-layers", "all"});
  const std::vector<std::string> of_array = {"--experts", "16",       "--layers",     "all",
                                             "--rows",    "tokens-1", "--moe-layers", "1-3"};
  std::vector<std::string> arguments = {"diff", document, Golden("vllm_all_layers.json")};
  arguments.insert(arguments.end(), of_array.begin(), of_array.end());
  outcome = RunTo(2, arguments);
  EXPECT_THAT(outcome.err, HasSubstr("--moe-layers[0] must be the document's, 0; it is 1"));
  outcome = RunTo(0, {"diff", document, Golden("vllm.json"), "--experts", "16", "--layers", "moe",
                      "--rows", "tokens-1"});
  outcome = RunTo(2, {"diff", document, Golden("vllm.json"), "--experts", "17"});
  EXPECT_THAT(outcome.err, HasSubstr("--experts must be the document's, 16; it is 17"));
  EXPECT_EQ(Run({"inspect", document, "--layers", "moe"}).code, 2);
  EXPECT_EQ(Run({"inspect", document, "--experts", "16"}).code, 0);
}

TEST_F(RoutingCli, DiffNamesRowsAndLayers) {
  // Row 3, layer 1: 14 and 5 become 14 and 2.
  const std::string changed = Changed(3 * 6 + 2 + 1, 2);
  const Json json = RunJson({"diff", Golden("v1_u1.npy"), changed, "--prompt-tokens", "3"}, 1);
  EXPECT_EQ(json["same"], false);
  EXPECT_EQ(json["same_set"], 14);
  EXPECT_DOUBLE_EQ(json["shared_id_share"].get<double>(), 29.0 / 30);
  EXPECT_EQ(json["prompt"]["same_set"], 9);
  EXPECT_EQ(json["prompt"]["pairs"], 9);
  EXPECT_EQ(json["generated"]["same_set"], 5);
  EXPECT_EQ(json["generated"]["pairs"], 6);
  EXPECT_EQ(json["layers"][1]["same_set"], 4);
  EXPECT_EQ(json["layers"][0]["same_set"], 5);
  ASSERT_EQ(json["first_differing"].size(), 1u);
  EXPECT_EQ(json["first_differing"][0]["row"], 3);
  EXPECT_EQ(json["first_differing"][0]["layers"], Json::array({1}));
  const Outcome outcome = RunTo(1, {"diff", Golden("v1_u1.npy"), changed});
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("row 3, layers 1"), HasSubstr("The two differ")));
}

TEST_F(RoutingCli, DiffComparesTheRowsThatBothHave) {
  const Json json = RunJson({"diff", Golden("v1_u1.npy"), Golden("prime_rl.json")}, 1);
  EXPECT_EQ(json["begin"], 2);
  EXPECT_EQ(json["end"], 5);
  EXPECT_EQ(json["only_in_a"], 2);
  EXPECT_EQ(json["same_set"], 9);
  EXPECT_EQ(json["pairs"], 9);
  const std::string missing = Path("missing.json");
  Write(missing, "[[[0,7]],[[-1,-1]],[[2,3]]]");
  const std::string there = Path("there.json");
  Write(there, "[[[0,7]],[[1,4]],[[-1,-1]]]");
  const Json holes = RunJson({"diff", missing, there, "--sentinel", "-1"}, 1);
  EXPECT_EQ(holes["pairs"], 1);
  EXPECT_EQ(holes["same_set"], 1);
  EXPECT_EQ(holes["missing_in_a"], 1);
  EXPECT_EQ(holes["missing_in_b"], 1);
}

// An array of uint8 has no -1, and one of int16 is not made uint8.
TEST_F(RoutingCli, DiffAppliesOptionsToTheFilesThatTheyFit) {
  const std::string full = Path("full.json");
  Write(full, R"(["ndarray", {"data": [[[0,7]],[[1,4]]], "dtype": "uint8"}])");
  const std::string holes = Path("holes.json");
  Write(holes, R"(["ndarray", {"data": [[[0,7]],[[-1,-1]]], "dtype": "int16"}])");
  const Json json = RunJson({"diff", full, holes, "--sentinel", "-1"}, 1);
  EXPECT_EQ(json["missing_in_b"], 1);
  EXPECT_EQ(json["same_set"], 1);
  const std::string bare = Path("bare.json");
  Write(bare, R"({"routed_experts": "AAcBBA=="})");  // 0, 7, 1, 4 as bytes
  EXPECT_EQ(RunJson({"diff", holes, bare, "--sentinel", "-1", "--dtype", "uint8", "--num-layers",
                     "1", "--moe-layers", "all", "--top-k", "2", "--experts", "16"},
                    1)["missing_in_a"],
            1);
}

TEST_F(RoutingCli, ConvertWritesDocumentsAsTheyAreAskedFor) {
  const std::string raw = Path("raw.wmk");
  const std::string set = Path("set.wmk");
  const std::string again = Path("again.wmk");
  Outcome outcome = RunTo(0, {"convert", Golden("v1_u1.npy"), raw, "--to", "waymark", "--experts",
                              "16", "--moe-layers", "all"});
  EXPECT_EQ(outcome.err, "");
  outcome = RunTo(
      0, {"convert", raw, set, "--to", "waymark", "--to-codec", "set", "--to-page-tokens", "2"});
  EXPECT_THAT(outcome.err, HasSubstr("order of the experts within a layer is not kept"));
  EXPECT_EQ(Run({"diff", raw, set}).code, 0);
  EXPECT_THAT(Run({"inspect", raw}).out, Not(HasSubstr("ascending")));
  EXPECT_THAT(Run({"inspect", set}).out, HasSubstr("ascending"));
  // Byte 96 of a document: layers per crc, of 3 layers by default a quarter, rounded up.
  EXPECT_EQ(Slurp(raw)[96], 1);
  ASSERT_EQ(Run({"convert", raw, again, "--to", "waymark", "--to-crc-layers", "2"}).code, 0);
  EXPECT_EQ(Slurp(again)[96], 2);
  EXPECT_EQ(Run({"diff", raw, again}).code, 0);
  // What was lost is not claimed again.
  outcome = RunTo(0, {"convert", set, again, "--to", "waymark", "--to-codec", "raw"});
  EXPECT_THAT(Run({"inspect", again}).out, HasSubstr("ascending"));
}

TEST_F(RoutingCli, ConvertSaysWhatIsLost) {
  const std::string holes = Path("holes.txt");
  Write(holes, "[[[0,7]],[[-1,-1]],[[2,3]]]");
  const std::string out = Path("out.npy");
  // A missing row and no place for it.
  Outcome outcome = RunTo(2, {"convert", holes, out, "--sentinel", "-1", "--to", "npy"});
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("1 row (row 1)"), HasSubstr("choose a sentinel with --to-sentinel")));
  outcome = RunTo(
      0, {"convert", holes, out, "--sentinel", "-1", "--to", "npy", "--to-sentinel", "zeros"});
  EXPECT_THAT(outcome.err, HasSubstr("written as 'zeros'"));
  EXPECT_EQ(Slurp(out).substr(128), std::string("\0\7\0\0\2\3", 6));
  // The start row, where the format has no place.
  outcome =
      RunTo(0, {"convert", Golden("prime_rl.json"), out, "--to", "npy", "--moe-layers", "all"});
  EXPECT_THAT(outcome.err, HasSubstr("the first row is row 2, but npy has no field"));
  const std::string kept = Path("kept.json");
  outcome = RunTo(0, {"convert", Golden("prime_rl.json"), kept, "--to", "vllm", "--moe-layers",
                      "all", "--num-layers", "3"});
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(Slurp(kept), HasSubstr("\"routed_experts_prompt_start\":2"));
  // Dense columns come and go by the list of MoE layers.
  const std::string moe = Path("moe.npy");
  outcome = RunTo(
      0, {"convert", Golden("vllm_all_layers.json"), moe, "--moe-layers", "1-3", "--to", "npy"});
  EXPECT_EQ(Slurp(moe), Slurp(Golden("v1_u1.npy")));
  const std::string all = Path("all.json");
  outcome =
      RunTo(0, {"convert", moe, all, "--moe-layers", "1-3", "--num-layers", "5", "--to", "vllm"});
  EXPECT_EQ(Slurp(all), Slurp(Golden("vllm_all_layers.json")));
}

}  // namespace
}  // namespace waymark

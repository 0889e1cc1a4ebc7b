// JsonValue: what is a grid and what is not, and what is refused.
#include "adapters/formats/json_value.h"

#include <cstdint>
#include <random>
#include <span>
#include <string>

#include "adapters/formats/long_strings.h"
#include "adapters/formats/nested_lists.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/blockstore/test_seed.h"

namespace waymark::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<JsonValue> Parse(const std::string& text, std::size_t max_bytes = 1 << 20) {
  return ParseJson({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                   {.max_bytes = max_bytes});
}

JsonGrid GridOf(const std::string& text) {
  const auto value = Parse(text);
  if (!value.ok() || value->As<JsonGrid>() == nullptr) return {{-1}, {}};
  return *value->As<JsonGrid>();
}

std::string ListsError(const std::string& text) {
  const auto value = Parse(text);
  if (!value.ok()) return std::string(value.status().message());
  return std::string(ReadLists(*value, Dtype::kInt16, {}).status().message());
}

TEST(Json, RegularListsOfNumbersAreGrids) {
  EXPECT_THAT(GridOf("[]").shape, ElementsAre(0));
  EXPECT_THAT(GridOf("[1, -2]").shape, ElementsAre(2));
  EXPECT_THAT(GridOf("[1, -2]").numbers, ElementsAre(1, -2));
  EXPECT_THAT(GridOf("[[], []]").shape, ElementsAre(2, 0));
  const JsonGrid grid = GridOf("[[[1,2],[3,4],[5,6]],[[7,8],[9,10],[11,12]]]");
  EXPECT_THAT(grid.shape, ElementsAre(2, 3, 2));
  EXPECT_THAT(grid.numbers, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
}

TEST(Json, OtherListsAreListsOfWhatTheyHold) {
  const auto mixed = Parse(R"([[1, 2], "a", {"b": [3]}, 4.5, null, true, 5000000000])");
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  const auto* list = mixed->As<JsonValue::List>();
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->size(), 7u);
  EXPECT_THAT((*list)[0].As<JsonGrid>()->numbers, ElementsAre(1, 2));
  EXPECT_EQ(*(*list)[1].As<std::string>(), "a");
  EXPECT_THAT((*list)[2].Find("b")->As<JsonGrid>()->numbers, ElementsAre(3));
  EXPECT_EQ(*(*list)[3].As<double>(), 4.5);
  EXPECT_NE((*list)[4].As<JsonValue::Null>(), nullptr);
  EXPECT_TRUE(*(*list)[5].As<bool>());
  EXPECT_EQ(*(*list)[6].As<std::int64_t>(), 5000000000);
  // A number, then a list; a list, then a number.
  EXPECT_EQ(Parse("[1, [2]]")->As<JsonValue::List>()->size(), 2u);
  EXPECT_EQ(Parse("[[1], 2, 3]")->As<JsonValue::List>()->size(), 3u);
}

TEST(Json, IrregularListsAreRefusedByPlace) {
  EXPECT_THAT(ListsError("[[[1,2],[3,4]],[[5,6],[7]]]"),
              HasSubstr("lists[1][1]: lists of shape [1]"));
  EXPECT_THAT(ListsError("[[[1,2]],[[3,4],[5,6]]]"), HasSubstr("lists[1]: lists of shape [2, 2]"));
  EXPECT_THAT(ListsError("[[1,2],[3,4]]"), HasSubstr("three axes"));
  EXPECT_THAT(ListsError("[[[1,2],[3,\"4\"]]]"), HasSubstr("lists[0][1][1]: a string"));
  EXPECT_THAT(ListsError("[[[1,2],[3,4.5]]]"), HasSubstr("a number"));
  EXPECT_THAT(ListsError("[[[1,2],[3,40000]]]"), HasSubstr("int16"));
  EXPECT_THAT(ListsError("[[[1,2],[3,4000000000]]]"), HasSubstr("lists"));
  EXPECT_THAT(ListsError("[]"), HasSubstr("three axes"));
  EXPECT_THAT(ListsError("{}"), HasSubstr("an object"));
}

TEST(Json, RefusesWhatIsNotJsonOrTooMuch) {
  EXPECT_THAT(std::string(Parse("[1, 2").status().message()), HasSubstr("byte"));
  EXPECT_THAT(std::string(Parse("[1] 2").status().message()), HasSubstr("byte"));
  EXPECT_THAT(std::string(Parse("{\"a\":1,\"a\":2}").status().message()), HasSubstr("twice"));
  EXPECT_FALSE(Parse("\"\xff\"").ok());
  const std::string deep = std::string(65, '[') + std::string(65, ']');
  EXPECT_THAT(std::string(Parse(deep).status().message()), HasSubstr("64"));
  EXPECT_TRUE(Parse(deep.substr(1, 128)).ok());
  // Refused early, whatever follows.
  EXPECT_FALSE(Parse(std::string(1 << 20, '[')).ok());
  std::string many = "[";
  for (int i = 0; i < 100000; ++i)
    many += "[],";
  many += "[]]";
  EXPECT_EQ(Parse(many).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Parse("[" + std::string(20000, '0') + "]").status().code(),
            absl::StatusCode::kInvalidArgument);
  // The text counts, whatever it holds: the parser keeps as much of it as one token has.
  EXPECT_EQ(Parse("[1" + std::string(2000, ' ') + "]", 1000).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Parse('"' + std::string(2000, 'a') + '"', 1000).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// A key or a pointer was shown as it is, its line ends and control characters too.
TEST(Json, ErrorsAreOneLineWhateverTheKeysAre) {
  EXPECT_THAT(std::string(Parse(R"({"a\n":1,"a\n":2})").status().message()),
              HasSubstr(R"('a\n' is twice)"));
  const auto root = Parse("{}");
  ASSERT_TRUE(root.ok());
  EXPECT_THAT(std::string(AtPointer(*root, "/\x01\xff", nullptr).status().message()),
              HasSubstr(R"('\x01\xff' of '/\x01\xff')"));
  EXPECT_THAT(std::string(AtPointer(*root, "\r", nullptr).status().message()),
              HasSubstr(R"(it is '\r')"));
}

// ---- long strings, which are taken out before the text is parsed

using nlohmann::json;

// A string that is long, or nearly, and of every kind that a writer may make.
std::string SomeString(std::mt19937_64& random) {
  static const std::string kOdd[] = {"\"", "\\", "\n", "\x7f", "\x01", "é", "\xf0\x9f\x98\x80",
                                     "/"};
  const std::size_t lengths[] = {0, 1, 2, LongStrings::kLong - 1, LongStrings::kLong, 1000};
  std::string text;
  const std::size_t length = lengths[random() % 6];
  const bool odd = random() % 3 == 0;
  while (text.size() < length) {
    if (odd && random() % 100 == 0) {
      text += kOdd[random() % 8];
    } else {
      text += static_cast<char>("AZaz09+/= {}[]:,"[random() % 16]);
    }
  }
  return text;
}

json SomeJson(std::mt19937_64& random, int depth) {
  const auto kind = random() % (depth == 0 ? 3 : 5);
  if (kind == 0) return 1.5;
  if (kind <= 2) return SomeString(random);
  json value = kind == 3 ? json::array() : json::object();
  for (auto left = random() % 5; left > 0; --left) {
    if (kind == 3) {
      value.push_back(SomeJson(random, depth - 1));
    } else {
      value[SomeString(random)] = SomeJson(random, depth - 1);
    }
  }
  return value;
}

// A grid of nothing.
json Lists(std::span<const std::int64_t> shape) {
  json lists = json::array();
  for (std::int64_t i = 0; shape.size() > 1 && i < shape[0]; ++i)
    lists.push_back(Lists(shape.subspan(1)));
  return lists;
}

json AsJson(const JsonValue& value) {
  if (const auto* text = value.As<std::string>(); text != nullptr) return *text;
  if (const auto* number = value.As<double>(); number != nullptr) return *number;
  if (const auto* grid = value.As<JsonGrid>(); grid != nullptr) return Lists(grid->shape);
  json made;
  if (const auto* list = value.As<JsonValue::List>(); list != nullptr) {
    made = json::array();
    for (const JsonValue& item : *list)
      made.push_back(AsJson(item));
  } else {
    made = json::object();
    for (const JsonMember& member : *value.As<JsonValue::Object>())
      made[member.key] = AsJson(member.value);
  }
  return made;
}

TEST(Json, LongStringsAreWhatAnotherParserReads) {
  SCOPED_TRACE(::testing::Message() << "WAYMARK_SEED=" << TestSeed());
  std::mt19937_64 random(TestSeed());
  int texts = 0;
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const json value = SomeJson(random, 4);
    const char* const spaces = random() % 2 == 0 ? "" : " \n";
    std::string text = spaces + value.dump(random() % 2 == 0 ? -1 : 1, ' ', random() % 2 == 0);
    const auto parsed = Parse(text, 1 << 22);
    ASSERT_TRUE(parsed.ok()) << parsed.status() << text;
    ASSERT_EQ(AsJson(*parsed), value) << text;
    // And where a text is broken, both say so, at the same byte.
    for (int i = 0; i < 4 && !text.empty(); ++i) {
      std::string broken = text;
      const std::size_t at = random() % text.size();
      static constexpr char kBytes[] = {'"', '\\', '\n', '\x01', '\xff', 'a', ',', '}'};
      if (random() % 2 == 0) {
        broken[at] = kBytes[random() % 8];
      } else {
        broken.resize(at);
      }
      std::size_t byte = 0;
      try {
        const json read = json::parse(broken);
        ASSERT_FALSE(read.is_discarded());
      } catch (const json::parse_error& error) {
        byte = error.byte;
      }
      const auto again = Parse(broken, 1 << 22);
      const std::string why(again.status().message());
      if (why.find("is twice") != std::string::npos) continue;
      ++texts;
      refused += again.ok() ? 0 : 1;
      ASSERT_EQ(again.ok(), byte == 0) << why << "\n" << broken;
      if (byte != 0) {
        ASSERT_THAT(why, HasSubstr("byte " + std::to_string(byte) + ":")) << broken;
      }
    }
  }
  EXPECT_GT(texts, 4000);
  EXPECT_GT(refused, 1000);
}

// Each escape looked for the end of its string: minutes for a text of a few megabytes.
TEST(Json, EscapesDoNotMakeItSlow) {
  std::string text = "[\"";
  for (int i = 0; i < 2'000'000; ++i)
    text += "\\n";
  text += "\"]";
  const auto parsed = Parse(text, 1 << 24);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ((*parsed->As<JsonValue::List>())[0].As<std::string>()->size(), 2'000'000u);
}

TEST(Json, AStringThatIsTakenOutIsCounted) {
  const std::string text = "[\"" + std::string(2000, 'A') + "\"]";
  EXPECT_EQ(Parse(text, 3000).status().code(), absl::StatusCode::kOk);
  EXPECT_EQ(Parse(text, text.size()).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Json, PointersLeadToValuesAndTheirParents) {
  const auto root = Parse(R"({"choices": [{"a/b": 1, "m~n": 2}, {"x": [[[1]]]}]})");
  ASSERT_TRUE(root.ok());
  const JsonValue* parent = nullptr;
  auto value = AtPointer(*root, "/choices/1/x", &parent);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_THAT((*value)->As<JsonGrid>()->shape, ElementsAre(1, 1, 1));
  EXPECT_EQ(parent->Find("x"), *value);
  EXPECT_EQ(*(*AtPointer(*root, "/choices/0/a~1b", nullptr))->As<std::int64_t>(), 1);
  EXPECT_EQ(*(*AtPointer(*root, "/choices/0/m~0n", nullptr))->As<std::int64_t>(), 2);
  EXPECT_EQ(*AtPointer(*root, "", &parent), &*root);
  EXPECT_EQ(parent, nullptr);
  EXPECT_THAT(std::string(AtPointer(*root, "/choices/2/x", nullptr).status().message()),
              HasSubstr("'2'"));
  EXPECT_FALSE(AtPointer(*root, "choices", nullptr).ok());
  EXPECT_FALSE(AtPointer(*root, "/choices/-1", nullptr).ok());
  EXPECT_FALSE(AtPointer(*root, "/choices/99999999999999999999", nullptr).ok());
}

}  // namespace
}  // namespace waymark::formats

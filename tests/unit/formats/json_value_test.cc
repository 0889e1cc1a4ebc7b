// JsonValue: what is a grid and what is not, and what is refused.
#include "formats/json_value.h"

#include <string>

#include "formats/nested_lists.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

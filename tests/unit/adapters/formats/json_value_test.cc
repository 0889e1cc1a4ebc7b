// JSON and nested lists: what is read, and what is refused.
#include "adapters/formats/json_value.h"

#include <cstdint>
#include <random>
#include <string>

#include "adapters/formats/payloads.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_seed.h"

namespace waymark::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<Json> Parse(const std::string& text, std::size_t max_bytes = 1 << 20) {
  return ParseJson({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                   {.max_bytes = max_bytes});
}

std::string ListsError(const std::string& text) {
  const auto parsed = Parse(text);
  if (!parsed.ok()) return std::string(parsed.status().message());
  return std::string(ReadLists(*parsed, Dtype::kInt16, {}).status().message());
}

TEST(Json, ValuesOfEveryKind) {
  const auto list = Parse(
      R"([[1, -2], "a", {"b": [3], "c": {}}, 4.5, null, true, 5000000000, 9223372036854775808])");
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 8u);
  const auto at = [&](std::size_t i) { return &(*list)[i]; };
  EXPECT_THAT(*Integers(at(0)), ElementsAre(1, -2));
  EXPECT_EQ(*String(at(1)), "a");
  EXPECT_THAT(*Integers(Find(at(2), "b")), ElementsAre(3));
  EXPECT_EQ(Find(at(2), "d"), nullptr);
  EXPECT_EQ(Integer(at(6)), 5000000000);
  EXPECT_EQ(Integer(at(7)), std::nullopt);  // does not fit
  EXPECT_EQ(Integers(&*list), std::nullopt);
  std::vector<std::string_view> kinds;
  for (const Json& value : *list)
    kinds.push_back(KindName(value));
  EXPECT_THAT(kinds, ElementsAre("a list", "a string", "an object", "a number", "null",
                                 "a truth value", "a whole number", "a number"));
  // Of what is not there there is nothing, either.
  EXPECT_EQ(String(Find(Find(at(1), "a"), "b")), nullptr);
  EXPECT_EQ(Integers(nullptr), std::nullopt);
}

TEST(Json, IrregularListsAreRefusedByPlace) {
  EXPECT_THAT(ListsError("[[[1,2],[3,4]],[[5,6],[7]]]"),
              HasSubstr("lists[1][1]: must be a list of 2, as those before it; it is a list of 1"));
  EXPECT_THAT(ListsError("[[[1,2]],[[3,4],[5,6]]]"), HasSubstr("lists[1]: must be a list of 1"));
  EXPECT_THAT(ListsError("[[1,2],[3,4]]"), HasSubstr("three axes"));
  EXPECT_THAT(ListsError("[[[1,2],[3,\"4\"]]]"),
              HasSubstr("lists[0][1][1]: must be a number that int16 has; it is a string"));
  EXPECT_THAT(ListsError("[[[1,2],[3,4.5]]]"), HasSubstr("a number"));
  EXPECT_THAT(ListsError("[[[1,2],[3,40000]]]"), HasSubstr("int16"));
  EXPECT_THAT(ListsError("[[[1,2],[3,4000000000]]]"), HasSubstr("lists"));
  EXPECT_THAT(ListsError("[[[1,2],3]]"), HasSubstr("lists[0][1]: must be a list of 2"));
  EXPECT_THAT(ListsError("[[[1,2]],[[3,[]]]]"), HasSubstr("lists[1][0][1]: must be a number"));
  EXPECT_THAT(ListsError("[]"), HasSubstr("three axes"));
  EXPECT_THAT(ListsError("{}"), HasSubstr("an object"));
}

TEST(Json, RefusesWhatIsNotJsonOrTooMuch) {
  EXPECT_THAT(Parse("[1, 2").status().message(), HasSubstr("byte"));
  EXPECT_THAT(Parse("[1] 2").status().message(), HasSubstr("byte"));
  EXPECT_THAT(Parse("{\"a\":1,\"a\":2}").status().message(), HasSubstr("twice"));
  EXPECT_FALSE(Parse("\"\xff\"").ok());
  EXPECT_EQ(Parse("[1e999]").status().code(), absl::StatusCode::kInvalidArgument);
  const std::string deep = std::string(65, '[') + std::string(65, ']');
  EXPECT_THAT(Parse(deep).status().message(), HasSubstr("64"));
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
  EXPECT_THAT(Parse(R"({"a\n":1,"a\n":2})").status().message(), HasSubstr(R"('a\n' is twice)"));
  const Json* parent = nullptr;
  EXPECT_THAT(AtPointer(Json::object(), "/\x01\xff", parent).status().message(),
              HasSubstr(R"(nothing is at '/\x01\xff')"));
  EXPECT_THAT(AtPointer(Json::object(), "\r", parent).status().message(),
              HasSubstr(R"(it is '\r')"));
}

// ---- long strings, which are taken out before the text is parsed

// A string that is long, or nearly, and of every kind that a writer may make.
std::string SomeString(std::mt19937_64& random) {
  static const std::string kOdd[] = {"\"", "\\", "\n", "\x7f", "\x01", "é", "\xf0\x9f\x98\x80",
                                     "/"};
  const std::size_t lengths[] = {0, 1, 2, 255, 256, 1000};  // from 256 on they are taken out
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

Json SomeJson(std::mt19937_64& random, int depth) {
  const auto kind = random() % (depth == 0 ? 3 : 5);
  if (kind == 0) return 1.5;
  if (kind <= 2) return SomeString(random);
  Json value = kind == 3 ? Json::array() : Json::object();
  for (auto left = random() % 5; left > 0; --left) {
    if (kind == 3) {
      value.push_back(SomeJson(random, depth - 1));
    } else {
      value[SomeString(random)] = SomeJson(random, depth - 1);
    }
  }
  return value;
}

TEST(Json, LongStringsAreWhatAnotherParserReads) {
  TestRandom random;
  int texts = 0;
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const Json value = SomeJson(random, 4);
    const char* const spaces = random() % 2 == 0 ? "" : " \n";
    std::string text = spaces + value.dump(random() % 2 == 0 ? -1 : 1, ' ', random() % 2 == 0);
    const auto parsed = Parse(text, 1 << 22);
    ASSERT_TRUE(parsed.ok()) << parsed.status() << text;
    ASSERT_EQ(*parsed, value) << text;
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
        ASSERT_FALSE(Json::parse(broken).is_discarded());
      } catch (const Json::parse_error& error) {
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
  const auto parsed = Parse(text, 1 << 24).value();
  EXPECT_EQ(String(&parsed.front())->size(), 2'000'000u);
}

TEST(Json, AStringThatIsTakenOutIsCounted) {
  const std::string text = "[\"" + std::string(2000, 'A') + "\"]";
  EXPECT_EQ(Parse(text, 3000).status().code(), absl::StatusCode::kOk);
  EXPECT_EQ(Parse(text, text.size()).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Json, PointersLeadToValuesAndTheirParents) {
  const auto root = Parse(R"({"choices": [{"a/b": 1, "m~n": 2}, {"x": [7, 8]}]})").value();
  const Json* parent = nullptr;
  const auto at = [&](const std::string& pointer) { return AtPointer(root, pointer, parent); };
  const auto value = at("/choices/1/x").value();
  EXPECT_THAT(*Integers(value), ElementsAre(7, 8));
  EXPECT_EQ(Find(parent, "x"), value);
  EXPECT_EQ(Integer(*at("/choices/0/a~1b")), 1);
  EXPECT_EQ(Integer(*at("/choices/0/m~0n")), 2);
  EXPECT_EQ(*at(""), &root);
  EXPECT_EQ(parent, nullptr);
  for (const char* wrong : {"/choices/2/x", "/choices/-1", "/choices/-", "/choices/", "/choices/01",
                            "/choices/1a", "/choices/99999999999999999999", "/choices/1/x/0/0"}) {
    EXPECT_EQ(at(wrong).status().code(), absl::StatusCode::kNotFound) << wrong;
  }
  for (const char* wrong : {"choices", "/choices/~2"})
    EXPECT_EQ(at(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
}

}  // namespace
}  // namespace waymark::formats

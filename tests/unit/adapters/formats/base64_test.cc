// Base64: the vectors of RFC 4648, and texts that stand for nothing.
#include "adapters/formats/payloads.h"

#include <string>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_seed.h"

namespace waymark::formats {
namespace {

using ::testing::HasSubstr;

std::vector<std::uint8_t> Bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

std::string Encoded(std::string_view bytes) {
  std::string text;
  AppendBase64(Bytes(bytes), text);
  return text;
}

absl::StatusOr<std::vector<std::uint8_t>> Decoded(std::string_view text,
                                                  const Limits& limits = {}) {
  std::vector<std::uint8_t> bytes;
  if (absl::Status status = DecodeBase64(text, limits, bytes); !status.ok()) return status;
  EXPECT_EQ(bytes.size(), BytesOfBase64(text));
  return bytes;
}

std::string ErrorOf(std::string_view text) {
  return std::string(Decoded(text).status().message());
}

TEST(Base64, VectorsOfTheStandard) {
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : vectors) {
    EXPECT_EQ(Encoded(bytes), text);
    const auto decoded = Decoded(text);
    ASSERT_TRUE(decoded.ok()) << text;
    EXPECT_EQ(*decoded, Bytes(bytes));
  }
}

TEST(Base64, RefusesWhatNoEncoderWrites) {
  EXPECT_THAT(ErrorOf("Zg="), HasSubstr("multiple of 4; it is 3"));
  EXPECT_THAT(ErrorOf("Zm9v\n"), HasSubstr("multiple of 4"));
  EXPECT_THAT(ErrorOf("Zm 9v==="), HasSubstr("character 2"));
  EXPECT_THAT(ErrorOf("Zm9vZg_="), HasSubstr("character 6"));
  EXPECT_THAT(ErrorOf("Z-9v"), HasSubstr("character 1"));
  EXPECT_THAT(ErrorOf("===="), HasSubstr("character 0"));
  EXPECT_THAT(ErrorOf("Z==="), HasSubstr("character 1"));
  // Abseil takes these.
  EXPECT_THAT(ErrorOf("Zg.."), HasSubstr("character 2"));
  EXPECT_THAT(ErrorOf("Zm9v    "), HasSubstr("character 4"));
  EXPECT_THAT(ErrorOf("Zg\n=\n=\n="), HasSubstr("character 2"));
  EXPECT_THAT(ErrorOf("Zg==Zg=="), HasSubstr("character 2"));
  EXPECT_THAT(ErrorOf("Zh=="), HasSubstr("character 1"));  // bits below the last byte
  EXPECT_THAT(ErrorOf("Zm9="), HasSubstr("character 2"));
  EXPECT_EQ(Decoded("Zm9vYmFy", {.max_bytes = 5}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Decoded("Zm9vYmFy", {.max_bytes = 6}).ok());
}

TEST(Base64, RandomBytesComeBack) {
  TestRandom random;
  for (std::size_t size = 0; size < 200; ++size) {
    std::vector<std::uint8_t> bytes(size);
    for (std::uint8_t& byte : bytes)
      byte = static_cast<std::uint8_t>(random());
    std::string text;
    AppendBase64(bytes, text);
    const auto decoded = Decoded(text).value();
    EXPECT_EQ(decoded, bytes);
    // Another last character before the padding stands for other bytes, or for none.
    if (size == 0) continue;
    std::string other = text;
    char& last = other[other.find_last_not_of('=')];
    last = last == 'A' ? 'B' : 'A';
    const auto changed = Decoded(other);
    if (changed.ok()) {
      EXPECT_NE(*changed, bytes) << other;
    }
  }
}

}  // namespace
}  // namespace waymark::formats

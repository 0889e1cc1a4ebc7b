// .npy: headers as numpy writes them, and headers that lie.
#include "adapters/formats/payloads.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace waymark::formats {
namespace {

using ::testing::HasSubstr;

std::vector<std::uint8_t> Npy(const std::string& header, std::size_t bytes, int version = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  if (version > 1) file.append(2, '\0');
  file += header;
  file.append(bytes, '\x07');
  return {file.begin(), file.end()};
}

std::string ErrorOf(const std::vector<std::uint8_t>& bytes) {
  return std::string(ReadNpy(bytes, {}).status().message());
}

constexpr char kGood[] = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 1), }\n";

TEST(Npy, ReadsEveryVersionAndAnyOrderOfKeys) {
  for (const int version : {1, 2, 3}) {
    const auto array = ReadNpy(Npy(kGood, 6, version), {}).value();
    EXPECT_EQ(array.rows, 2);
    EXPECT_EQ(array.layers, 3);
    EXPECT_EQ(array.top_k, 1);
    EXPECT_EQ(array.ids.size(), 6u);
    EXPECT_FALSE(array.first.has_value());
  }
  EXPECT_TRUE(
      ReadNpy(Npy("{\"shape\":(2,3,1),\"descr\":\"<i4\",\"fortran_order\":True}", 24), {}).ok());
}

// Found by fuzzing: without rows there is no memory, and places in it were counted from null.
TEST(Npy, NoRowsInFortranOrder) {
  const auto array =
      ReadNpy(Npy("{'descr': '<i1', 'fortran_order': True, 'shape': (0,3 ,2), }", 0), {}).value();
  EXPECT_EQ(array.rows, 0);
  EXPECT_TRUE(array.ids.empty());
}

TEST(Npy, RefusesTheRestByName) {
  EXPECT_THAT(ErrorOf({'P', 'K'}), HasSubstr("does not begin"));
  EXPECT_THAT(ErrorOf(Npy(kGood, 6, 4)), HasSubstr("it is 4.0"));
  EXPECT_THAT(ErrorOf(Npy(kGood, 5)), HasSubstr("takes 6 bytes; the data has 5"));
  EXPECT_THAT(ErrorOf(Npy(kGood, 7)), HasSubstr("takes 6 bytes; the data has 7"));
  const auto with = [](const std::string& descr, const std::string& shape) {
    return Npy("{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }", 6);
  };
  EXPECT_THAT(ErrorOf(with("'<f4'", "(2, 3, 1)")), HasSubstr("'<f4'"));
  EXPECT_THAT(ErrorOf(with("'>i2'", "(2, 3, 1)")), HasSubstr("little-endian"));
  EXPECT_THAT(ErrorOf(with("'|u1'", "(2, 3)")), HasSubstr("three axes"));
  EXPECT_THAT(ErrorOf(with("'|u1'", "(2, -3, 1)")), HasSubstr("layers must be in [1, 4096]"));
  EXPECT_THAT(ErrorOf(with("'|u1'", "(2, 0, 1)")), HasSubstr("layers must be in [1, 4096]"));
  EXPECT_THAT(ErrorOf(with("'|u1'", "(99999999999, 1, 1)")), HasSubstr("rows must be in"));
  EXPECT_THAT(ErrorOf(with("'|u1'", "(99999999999999999999, 1, 1)")), HasSubstr("not a dict"));
  EXPECT_THAT(ErrorOf(with("'|u1'", "(2, 3, 1")), HasSubstr("not a dictionary"));
  EXPECT_THAT(ErrorOf(with("'|u1', 'x': 1", "(2, 3, 1)")), HasSubstr("not a dictionary"));
  EXPECT_THAT(ErrorOf(with("'|u1', 'descr': '|u1'", "(2, 3, 1)")), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf(Npy("{'descr': '|u1', 'shape': (2, 3, 1)}", 6)),
              HasSubstr("not a dictionary"));
  EXPECT_EQ(ReadNpy(Npy(kGood, 6), {.max_bytes = 5}).status().code(),
            absl::StatusCode::kResourceExhausted);
  // The shape alone asks for a lot: nothing of it is allocated.
  EXPECT_FALSE(ReadNpy(with("'<i8'", "(2000000000, 4096, 4096)"), {}).ok());
  const std::vector<std::uint8_t> whole = Npy(kGood, 6);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ReadNpy(std::span(whole).first(size), {}).ok()) << size;
  }
}

}  // namespace
}  // namespace waymark::formats

// Files of others: truncated while they are open, FIFOs, devices, folders.
#include "blockstore/wire/file_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace waymark::wire {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

class FileBytesTest : public ::testing::Test {
 protected:
  FileBytesTest() {
    std::string name = ::testing::TempDir() + "file_bytes.XXXXXX";
    folder_ = mkdtemp(name.data());
    path_ = folder_ + "/file";
    std::ofstream(path_) << std::string(100'000, 'a') << "end";
  }
  ~FileBytesTest() override { std::filesystem::remove_all(folder_); }

  static std::string Refused(const std::string& path, absl::StatusCode code,
                             std::size_t max_bytes = kMaxBytes) {
    const auto file = FileBytes::Open(path, FileAccess::kRead, max_bytes);
    EXPECT_EQ(file.status().code(), code) << file.status();
    return std::string(file.status().message());
  }

  std::string folder_;
  std::string path_;
};

TEST_F(FileBytesTest, ReadAndMapped) {
  for (const FileAccess access : {FileAccess::kRead, FileAccess::kMap}) {
    const auto file = FileBytes::Open(path_, access, kMaxBytes).value();
    const auto bytes = file->bytes();
    ASSERT_EQ(bytes.size(), 100'003u);
    EXPECT_EQ(std::string(bytes.end() - 4, bytes.end()), "aend");
  }
  std::filesystem::resize_file(path_, 0);
  EXPECT_TRUE((*FileBytes::Open(path_, FileAccess::kRead, kMaxBytes))->bytes().empty());
  EXPECT_TRUE((*FileBytes::Open(path_, FileAccess::kMap, kMaxBytes))->bytes().empty());
}

TEST_F(FileBytesTest, AFileThatIsTruncatedLaterKeepsItsBytes) {
  const auto read = *FileBytes::Open(path_, FileAccess::kRead, kMaxBytes);
  const auto mapped = *FileBytes::Open(path_, FileAccess::kMap, kMaxBytes);
  std::filesystem::resize_file(path_, 10);
  EXPECT_EQ(read->bytes().back(), 'd');
  // And this is why a file is mapped only if that is asked for.
#if defined(WAYMARK_SANITIZER_address) || defined(WAYMARK_SANITIZER_thread)
  EXPECT_DEATH(std::exit(mapped->bytes().back()), "Sanitizer: BUS");  // they report the signal
#else
  EXPECT_EXIT(std::exit(mapped->bytes().back()), ::testing::KilledBySignal(SIGBUS), "");
#endif
}

TEST_F(FileBytesTest, OnlyRegularFiles) {
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);  // nothing writes to it: an open would block
  EXPECT_THAT(Refused(fifo, absl::StatusCode::kInvalidArgument),
              HasSubstr("/fifo' must be a regular file; it is a FIFO"));
  EXPECT_THAT(Refused("/dev/zero", absl::StatusCode::kInvalidArgument),
              HasSubstr("it is a device"));
  EXPECT_THAT(Refused(folder_, absl::StatusCode::kInvalidArgument), HasSubstr("it is a folder"));
  const int made = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{AF_UNIX, {}};
  const std::string name = folder_ + "/s";
  ASSERT_LT(name.size(), sizeof(address.sun_path));
  name.copy(address.sun_path, name.size());
  ASSERT_EQ(bind(made, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(Refused(name, absl::StatusCode::kInvalidArgument), HasSubstr("it is a socket"));
  close(made);
  Refused(folder_ + "/none", absl::StatusCode::kNotFound);
}

TEST_F(FileBytesTest, MoreThanMaxBytesIsMappedOnly) {
  EXPECT_THAT(Refused(path_, absl::StatusCode::kResourceExhausted, 100'002),
              HasSubstr("at most max_bytes = 100002 bytes to be read into memory; it has 100003"));
  EXPECT_TRUE(FileBytes::Open(path_, FileAccess::kRead, 100'003).ok());
  EXPECT_TRUE(FileBytes::Open(path_, FileAccess::kMap, 10).ok());
}

}  // namespace
}  // namespace waymark::wire

// FolderSource: objects there and back, limits, what others leave in the folder, and full disks.
#include "plugin/sources/folder_source.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/blockstore/wire/fetch_support.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;
using wire::NamedObject;
using wire::Object;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

class Folder : public ::testing::Test {
 protected:
  Folder() {
    char name[] = "/tmp/waymark_folder_XXXXXX";
    base_ = mkdtemp(name) != nullptr ? name : "";
    path_ = base_ + "/objects";
  }
  ~Folder() override { fs::remove_all(base_); }

  [[nodiscard]] std::unique_ptr<FolderSource> Make(std::uint64_t max_bytes = 0,
                                                   std::chrono::seconds time_to_live = 0s) const {
    return FolderSource::Create({path_, max_bytes, time_to_live}).value();
  }
  [[nodiscard]] std::string FileOf(const Digest128& digest) const {
    std::string name;
    for (const std::uint32_t word : digest.w) {
      for (int byte = 0; byte < 4; ++byte) {
        for (const int shift : {4, 0})
          name += "0123456789abcdef"[(word >> (8 * byte + shift)) & 15];
      }
    }
    return path_ + "/" + name.substr(0, 2) + "/" + name.substr(2);
  }
  [[nodiscard]] std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (!entry.is_directory()) files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  std::string base_;
  std::string path_;
};

NamedObject Named(std::uint32_t n, std::size_t bytes) {
  std::vector<std::uint8_t> content(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    content[i] = static_cast<std::uint8_t>(n + i * 7);
  return {{{n, n + 1, 0x0a0b0c0d, 0xffffffff}}, Object::Of(std::move(content))};
}
std::vector<NamedObject> Many(std::uint32_t begin, std::uint32_t end, std::size_t bytes) {
  std::vector<NamedObject> objects;
  for (std::uint32_t n = begin; n < end; ++n)
    objects.push_back(Named(n, bytes));
  return objects;
}

Object GetOne(FolderSource& source, const Digest128& digest) {
  Object got;
  EXPECT_TRUE(source.Get({&digest, 1}, wire::Soon(), {&got, 1}).ok());
  return got;
}
bool Has(FolderSource& source, const NamedObject& object) {
  const Object got = GetOne(source, object.digest);
  return got.present() && std::equal(got.bytes.begin(), got.bytes.end(),
                                     object.object.bytes.begin(), object.object.bytes.end());
}
bool Held(FolderSource& source, const Digest128& digest) {
  std::uint8_t held = 9;
  EXPECT_TRUE(source.Holds({&digest, 1}, wire::Soon(), {&held, 1}).ok());
  return held == 1;
}

void MakeOlder(const std::string& file, std::int64_t seconds) {
  struct stat info {};
  ASSERT_EQ(stat(file.c_str(), &info), 0) << file;
  info.st_mtim.tv_sec -= seconds;
  const timespec times[] = {info.st_mtim, info.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
}
void Write(const std::string& file, const std::string& bytes) {
  fs::create_directories(fs::path(file).parent_path());
  std::ofstream(file) << bytes;
}
mode_t ModeOf(const std::string& file) {
  struct stat info {};
  EXPECT_EQ(lstat(file.c_str(), &info), 0) << file;
  return info.st_mode & 07777;
}

// ---- what it does

TEST_F(Folder, ManyObjectsThereAndBackThroughAnotherSource) {
  const auto source = Make();
  const std::vector<NamedObject> objects = Many(0, 600, 777);
  ASSERT_TRUE(source->Put(std::span(objects).first(400), wire::Soon()).ok());
  ASSERT_TRUE(source->Put({}, wire::Soon()).ok());
  const auto other = Make();
  std::vector<Digest128> digests;
  for (const NamedObject& object : objects)
    digests.push_back(object.digest);
  std::vector<Object> got(digests.size(), objects[0].object);
  ASSERT_TRUE(other->Get(digests, wire::Soon(), got).ok());
  std::vector<std::uint8_t> held(digests.size(), 9);
  ASSERT_TRUE(other->Holds(digests, wire::Soon(), held).ok());
  for (std::size_t n = 0; n < objects.size(); ++n) {
    ASSERT_EQ(got[n].present(), n < 400) << n;
    ASSERT_EQ(held[n], n < 400 ? 1 : 0) << n;
    if (n < 400) {
      ASSERT_TRUE(Has(*other, objects[n])) << n;
    }
  }
  const std::vector<wire::ObjectRange> ranges = {
      {digests[7], 5, 25}, {digests[7], 770, 778}, {digests[500], 0, 5}};
  std::vector<Object> ranged(ranges.size());
  ASSERT_TRUE(other->GetRanges(ranges, wire::Soon(), ranged).ok());
  ASSERT_EQ(ranged[0].bytes.size(), 20u);
  EXPECT_EQ(ranged[0].bytes[0], objects[7].object.bytes[5]);
  EXPECT_FALSE(ranged[1].present() || ranged[2].present());
  EXPECT_FALSE(source->read_only());
}

TEST_F(Folder, NamesAndModes) {
  const NamedObject object = Named(0x01020304, 10);
  const mode_t before = umask(0);
  const absl::Status put = Make()->Put({&object, 1}, wire::Soon());
  umask(before);
  ASSERT_TRUE(put.ok()) << put;
  const std::string file = path_ + "/04/030201" + "05030201" + "0d0c0b0a" + "ffffffff";
  EXPECT_THAT(Files(), ::testing::ElementsAre(file));
  EXPECT_EQ(file, FileOf(object.digest));
  EXPECT_EQ(ModeOf(file), 0600u);
  for (const char* folder : {"", "/04", "/waymark.new"})
    EXPECT_EQ(ModeOf(path_ + folder), 0700u) << folder;
}

TEST_F(Folder, TheFirstObjectStays) {
  const auto source = Make();
  const NamedObject first = Named(1, 100);
  NamedObject second = Named(2, 50);
  second.digest = first.digest;
  ASSERT_TRUE(source->Put({&first, 1}, wire::Soon()).ok());
  ASSERT_TRUE(Make()->Put({&second, 1}, wire::Soon()).ok());
  EXPECT_TRUE(Has(*source, first));
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(Folder, WritersOfOneDigestAndItsReadersSeeOneWholeObject) {
  constexpr int kWriters = 4;
  constexpr std::size_t kBytes = 200000;
  for (std::uint32_t round = 0; round < 20; ++round) {
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    std::vector<std::uint8_t> seen(2 * kWriters, 0);  // the content that each saw, + 1
    for (int i = 0; i < 2 * kWriters; ++i) {
      threads.emplace_back([&, i] {
        const auto source = Make();
        NamedObject object = Named(static_cast<std::uint32_t>(i), kBytes);
        object.digest = Named(1000 + round, 1).digest;
        ++ready;
        while (ready < 2 * kWriters)
          std::this_thread::yield();
        if (i < kWriters) {
          EXPECT_TRUE(source->Put({&object, 1}, wire::Soon()).ok());
        }
        Object got;
        while (!got.present())
          (void)source->Get({&object.digest, 1}, wire::Soon(), {&got, 1});  // perhaps no folder yet
        ASSERT_EQ(got.bytes.size(), kBytes);
        for (std::size_t at = 0; at < kBytes; ++at)
          ASSERT_EQ(got.bytes[at], static_cast<std::uint8_t>(got.bytes[0] + at * 7)) << at;
        seen[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(got.bytes[0] + 1);
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    EXPECT_EQ(std::count(seen.begin(), seen.end(), seen[0]), 2 * kWriters) << round;
  }
  EXPECT_EQ(Files().size(), 20u);
}

// ---- limits

TEST_F(Folder, ObjectsExpireUnlessTheyAreAskedForOrPutAgain) {
  const auto source = Make(0, 100s);
  const std::vector<NamedObject> objects = Many(0, 4, 10);
  ASSERT_TRUE(source->Put(objects, wire::Soon()).ok());
  for (const NamedObject& object : objects)
    MakeOlder(FileOf(object.digest), 90);
  EXPECT_TRUE(Held(*source, objects[0].digest));
  ASSERT_TRUE(source->Put({&objects[1], 1}, wire::Soon()).ok());
  EXPECT_TRUE(Has(*source, objects[2]));  // which renews nothing
  for (const NamedObject& object : objects)
    MakeOlder(FileOf(object.digest), 20);
  EXPECT_TRUE(Has(*Make(), objects[2]));  // another source, another time to live
  EXPECT_TRUE(Has(*source, objects[0]) && Has(*source, objects[1]));
  EXPECT_FALSE(GetOne(*source, objects[2].digest).present());
  EXPECT_FALSE(Held(*source, objects[3].digest));
  EXPECT_EQ(Files().size(), 2u);  // deleted
  // What has expired is put again.
  MakeOlder(FileOf(objects[0].digest), 101);
  NamedObject other = Named(7, 20);
  other.digest = objects[0].digest;
  ASSERT_TRUE(source->Put({&other, 1}, wire::Soon()).ok());
  EXPECT_TRUE(Has(*source, other));
}

TEST_F(Folder, WhatNobodyAsksForExpiresToo) {
  const std::vector<NamedObject> objects = Many(0, 50, 10);
  ASSERT_TRUE(Make()->Put(objects, wire::Soon()).ok());
  for (int n = 0; n < 40; ++n)
    MakeOlder(FileOf(objects[static_cast<std::size_t>(n)].digest), 11);
  const NamedObject one = Named(99, 10);
  ASSERT_TRUE(Make(0, 10s)->Put({&one, 1}, wire::Soon()).ok());
  EXPECT_EQ(Files().size(), 11u);
}

TEST_F(Folder, BeyondTheLimitTheOldestAreDeleted) {
  constexpr std::uint64_t kMost = 100 * 1000;
  const std::vector<NamedObject> old = Many(0, 80, 1000);
  ASSERT_TRUE(Make()->Put(old, wire::Soon()).ok());
  for (std::size_t n = 0; n < old.size(); ++n)
    MakeOlder(FileOf(old[n].digest), static_cast<std::int64_t>(1000 - n));
  const auto source = Make(kMost);
  EXPECT_TRUE(Held(*source, old[0].digest));  // a use
  for (std::uint32_t n = 0; n < 20; ++n) {
    const NamedObject one = Named(1000 + n, 1000);
    ASSERT_TRUE(source->Put({&one, 1}, wire::Soon()).ok());
  }
  EXPECT_EQ(Files().size(), 100u);
  const NamedObject one = Named(5000, 1000);
  ASSERT_TRUE(source->Put({&one, 1}, wire::Soon()).ok());
  EXPECT_EQ(Files().size(), 90u);  // nine tenths
  for (std::size_t n = 0; n < old.size(); ++n)
    EXPECT_EQ(Has(*source, old[n]), n == 0 || n > 11) << n;
  // The limit holds, whatever is put; a call that puts more than that loses its own.
  for (std::uint32_t n = 0; n < 300; ++n) {
    const NamedObject more = Named(2000 + n, 1000);
    ASSERT_TRUE(source->Put({&more, 1}, wire::Soon()).ok());
    ASSERT_LE(Files().size(), 100u);
    ASSERT_TRUE(Has(*source, more));
  }
  ASSERT_TRUE(source->Put(Many(7000, 7150, 1000), wire::Soon()).ok());
  EXPECT_EQ(Files().size(), 90u);
}

TEST_F(Folder, ManySourcesKeepTheLimitWithinATenthEach) {
  std::vector<std::unique_ptr<FolderSource>> sources;
  for (int i = 0; i < 3; ++i)
    sources.push_back(Make(50 * 1000));
  for (std::uint32_t n = 0; n < 400; ++n) {
    const NamedObject one = Named(n, 1000);
    ASSERT_TRUE(sources[n % 3]->Put({&one, 1}, wire::Soon()).ok());
    ASSERT_LE(Files().size(), 50u + 3 * 5 + 3) << n;
  }
}

// What one call has no time for, the next ones do: none could look at so many files alone.
TEST_F(Folder, ASweepGoesOnAfterADeadline) {
  ASSERT_TRUE(Make()->Put(Many(0, 500, 1000), wire::Soon()).ok());
  const auto source = Make(250 * 1000);
  for (int call = 0; call < 2000 && (call % 32 != 0 || Files().size() > 250); ++call)
    (void)source->Put({}, wire::After(200us));
  EXPECT_LE(Files().size(), 250u);
  EXPECT_GE(Files().size(), 225u);
}

// A slow disk leaves no call time for the sweep: each makes one step, so that it ends all the same.
TEST_F(Folder, ACallWhoseTimeIsOverStillMakesAStepOfTheSweep) {
  ASSERT_TRUE(Make()->Put(Many(0, 100, 1000), wire::Soon()).ok());
  const auto source = Make(50 * 1000);
  std::size_t calls = 0;
  for (std::size_t had = 100; calls < 1000 && had > 50; ++calls) {
    (void)source->Put({}, wire::After(0us));
    const std::size_t files = Files().size();
    EXPECT_GE(files + 1, had) << "more than one step in call " << calls;
    had = files;
  }
  EXPECT_EQ(Files().size(), 50u);
  EXPECT_LT(calls, 1000u);  // a look at each object and folder, and 50 deletions
}

// ---- what others leave

TEST_F(Folder, WhatDeadProcessesLeftIsDeletedAndNothingElse) {
  const auto file = [&](const std::string& name) { return path_ + "/" + name; };
  const std::string stale = file("waymark.new/0123456789abcdef-17-0");
  const std::string written = file("waymark.new/0123456789abcdef-18-0");
  const std::vector<std::string> foreign = {file("notes.txt"),
                                            file("aa/notes.txt"),
                                            file("new/notes.txt"),
                                            file("aa/bb/" + std::string(30, 'a')),
                                            file("aa/" + std::string(30, 'z')),
                                            file("aa/beef"),
                                            file("aaa/" + std::string(30, 'a'))};
  for (const std::string& one : foreign)
    Write(one, "mine");
  Write(stale, "half");
  Write(written, "half");
  for (const std::string& one : foreign)
    MakeOlder(one, 100000);
  MakeOlder(stale, 601);
  MakeOlder(written, 500);
  const NamedObject object = Named(1, 10);
  ASSERT_TRUE(Make(1, 1s)->Put({&object, 1}, wire::Soon()).ok());
  EXPECT_FALSE(fs::exists(stale));
  EXPECT_TRUE(fs::exists(written));
  for (const std::string& one : foreign)
    EXPECT_TRUE(fs::exists(one)) << one;
}

TEST_F(Folder, LinksFoldersAndEmptyFilesAreNoObjects) {
  const auto source = Make();
  const std::vector<NamedObject> objects = Many(0, 4, 10);
  Write(base_ + "/secret", "0123456789");
  fs::create_directories(fs::path(FileOf(objects[0].digest)).parent_path());
  fs::create_symlink(base_ + "/secret", FileOf(objects[0].digest));
  fs::create_directories(FileOf(objects[1].digest));
  Write(FileOf(objects[2].digest), "");
  fs::create_directories(fs::path(FileOf(objects[3].digest)).parent_path());
  ASSERT_EQ(mkfifo(FileOf(objects[3].digest).c_str(), 0600), 0);
  for (const NamedObject& object : objects) {
    EXPECT_FALSE(GetOne(*source, object.digest).present());
    EXPECT_FALSE(Held(*source, object.digest));
  }
  // Put does not write through a link; an empty file, which a loss of power left, is replaced.
  ASSERT_TRUE(source->Put(objects, wire::Soon()).ok());
  EXPECT_FALSE(GetOne(*source, objects[0].digest).present());
  EXPECT_TRUE(Has(*source, objects[2]));
  std::string secret;
  std::ifstream(base_ + "/secret") >> secret;
  EXPECT_EQ(secret, "0123456789");
  EXPECT_TRUE(fs::is_symlink(FileOf(objects[0].digest)));
}

TEST_F(Folder, AHugeFileIsNotRead) {
  const auto source = Make();
  const NamedObject objects[] = {Named(1, 10), Named(2, 10)};
  ASSERT_TRUE(source->Put(objects, wire::Soon()).ok());
  ASSERT_EQ(truncate(FileOf(objects[0].digest).c_str(), off_t{1} << 40), 0);
  const Digest128 digests[] = {objects[0].digest, objects[1].digest};
  Object got[2];
  const absl::Status status = source->Get(digests, wire::Soon(), got);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(got[0].present());
  EXPECT_TRUE(got[1].present());  // an error of one object does not cost the others
}

// ---- failures

TEST_F(Folder, AFolderThatIsNotThereOrCannotBe) {
  const auto source = Make();
  const NamedObject object = Named(1, 10);
  Object got = object.object;
  const absl::Status none = source->Get({&object.digest, 1}, wire::Soon(), {&got, 1});
  EXPECT_EQ(none.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(none.message(), HasSubstr("folder: '" + path_ + "': No such file"));
  EXPECT_FALSE(got.present());
  std::uint8_t held = 1;
  EXPECT_FALSE(source->Holds({&object.digest, 1}, wire::Soon(), {&held, 1}).ok());
  EXPECT_EQ(held, 0);
  EXPECT_TRUE(source->Check(wire::Soon()).ok());  // it can be made
  EXPECT_TRUE(Files().empty());
  EXPECT_TRUE(source->Get({&object.digest, 1}, wire::Soon(), {&got, 1}).ok());
  // It is lost, and made again.
  ASSERT_TRUE(source->Put({&object, 1}, wire::Soon()).ok());
  fs::remove_all(path_);
  EXPECT_FALSE(source->Get({&object.digest, 1}, wire::Soon(), {&got, 1}).ok());
  ASSERT_TRUE(source->Put({&object, 1}, wire::Soon()).ok());
  EXPECT_TRUE(Has(*source, object));

  Write(base_ + "/file", "");
  for (const char* path : {"/nowhere/objects", "/file", "/file/objects"}) {
    const auto other = FolderSource::Create({base_ + path}).value();
    for (const absl::Status& status :
         {other->Check(wire::Soon()), other->Put({&object, 1}, wire::Soon()),
          other->Get({&object.digest, 1}, wire::Soon(), {&got, 1})}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(status.message(), HasSubstr("folder: '" + base_ + path + "': N"));
    }
  }
}

// Regression: objects behind the moment counted as absent, with the status OK.
TEST_F(Folder, AFolderThatGoesDuringACallIsUnavailable) {
  const auto source = Make();
  const std::vector<NamedObject> objects = Many(0, 500, 100);
  ASSERT_TRUE(source->Put(objects, wire::Soon()).ok());
  std::vector<Digest128> digests;
  for (const NamedObject& object : objects)
    digests.push_back(object.digest);
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::thread goes([&, after = std::chrono::microseconds(random() % 4000)] {
      std::this_thread::sleep_for(after);
      fs::rename(path_, path_ + ".away");
    });
    std::vector<Object> got(digests.size());
    std::vector<std::uint8_t> held(digests.size());
    const absl::Status get = source->Get(digests, wire::Soon(), got);
    const absl::Status holds = source->Holds(digests, wire::Soon(), held);
    goes.join();
    fs::rename(path_ + ".away", path_);
    const bool all = std::all_of(got.begin(), got.end(), [](auto& one) { return one.present(); });
    EXPECT_EQ(get.code(), all ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable) << round;
    EXPECT_EQ(holds.ok(), std::count(held.begin(), held.end(), 0) == 0) << round;
  }
}

// Bug: objects before the moment were absent, with the status OK.
TEST_F(Folder, AFolderThatComesDuringACallIsUnavailable) {
  const auto source = Make();
  const std::vector<NamedObject> objects = Many(0, 500, 100);
  ASSERT_TRUE(source->Put(objects, wire::Soon()).ok());
  std::vector<Digest128> digests;
  for (const NamedObject& object : objects)
    digests.push_back(object.digest);
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    fs::rename(path_, path_ + ".away");
    std::thread comes([&, after = std::chrono::microseconds(random() % 2000)] {
      std::this_thread::sleep_for(after);
      fs::rename(path_ + ".away", path_);
    });
    std::vector<Object> got(digests.size());
    const absl::Status get = source->Get(digests, wire::Soon(), got);
    comes.join();
    const bool all = std::all_of(got.begin(), got.end(), [](auto& one) { return one.present(); });
    EXPECT_EQ(get.code(), all ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable) << round;
  }
}

TEST_F(Folder, OptionsAreChecked) {
  EXPECT_EQ(FolderSource::Create({}).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status status = FolderSource::Create({path_, 0, -1s}).status();
  EXPECT_EQ(status.message(), "time_to_live: at least 0 s; it is -1");
}

TEST_F(Folder, ARelativePathStaysWhereItWas) {
  const fs::path before = fs::current_path();
  fs::current_path(base_);
  const auto source = FolderSource::Create({"objects"}).value();
  fs::current_path("/");
  const NamedObject object = Named(1, 10);
  ASSERT_TRUE(source->Put({&object, 1}, wire::Soon()).ok());
  fs::current_path(before);
  EXPECT_TRUE(Has(*Make(), object));
}

TEST_F(Folder, NothingIsDoneAfterTheDeadline) {
  const auto source = Make();
  const std::vector<NamedObject> objects = Many(0, 3, 10);
  const wire::Deadline past = wire::After(0s);
  EXPECT_EQ(source->Put(objects, past).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Files().empty());
  ASSERT_TRUE(source->Put(objects, wire::Soon()).ok());
  Object got[1];
  std::uint8_t held = 0;
  const absl::Status status = source->Get({&objects[0].digest, 1}, past, got);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("0 of 1 objects"));
  EXPECT_FALSE(got[0].present());
  EXPECT_EQ(source->Holds({&objects[0].digest, 1}, past, {&held, 1}).code(),
            absl::StatusCode::kDeadlineExceeded);
}

// A disk that is full, for which a limit on the size of files stands: in a child, because it cannot
// be raised again.
TEST_F(Folder, AFullDiskFailsAndLeavesNothing) {
  const NamedObject objects[] = {Named(1, 4000), Named(2, 4000), Named(3, 100)};
  ASSERT_TRUE(Make()->Put(std::span(objects).first(1), wire::Soon()).ok());
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const absl::Status status = Make()->Put(objects, wire::Soon());
    _exit(status.code() == absl::StatusCode::kUnavailable &&
                  status.message().find("too large") != absl::string_view::npos
              ? 0
              : 1);
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  const auto source = Make();
  EXPECT_TRUE(Has(*source, objects[0]) && Has(*source, objects[2]));
  EXPECT_FALSE(Held(*source, objects[1].digest));
  EXPECT_EQ(Files().size(), 2u);
}

TEST_F(Folder, AWriterThatIsKilledLeavesNoPart) {
  const auto source = Make();
  ASSERT_TRUE(source->Check(wire::Soon()).ok());
  std::mt19937 random(1);
  for (std::uint32_t round = 0; round < 20; ++round) {
    const std::vector<NamedObject> objects = Many(round * 1000, round * 1000 + 200, 20000);
    const pid_t child = fork();
    if (child == 0) {
      (void)Make()->Put(objects, wire::Soon());
      _exit(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    for (const NamedObject& object : objects)
      ASSERT_TRUE(!GetOne(*source, object.digest).present() || Has(*source, object));
  }
  for (const std::string& file : Files()) {
    if (file.find("waymark.new") != std::string::npos) MakeOlder(file, 1000);
  }
  const NamedObject one = Named(999999, 10);
  ASSERT_TRUE(source->Put({&one, 1}, wire::Soon()).ok());
  for (const std::string& file : Files())
    EXPECT_EQ(file.find("waymark.new"), std::string::npos) << file;
}

// ---- with publishers and fetchers

}  // namespace
}  // namespace waymark

#include "plugin/sources/folder_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "blockstore/digest.h"
#include "blockstore/invalid.h"
#include "blockstore/timeout.h"

namespace waymark {
namespace {

using wire::Deadline;
using wire::Object;
using Clock = std::chrono::steady_clock;
using Walk = std::filesystem::recursive_directory_iterator;

constexpr char kNew[] = "waymark.new";
constexpr std::chrono::minutes kStale(10);
constexpr std::size_t kMostBytes = std::size_t{1} << 29;  // no object has so many

std::int64_t ChangedNs(const struct stat& info) {
  return std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

bool Older(const struct stat& info, std::chrono::nanoseconds age) {
  const std::chrono::nanoseconds now = std::chrono::system_clock::now().time_since_epoch();
  return now.count() - ChangedNs(info) > age.count();
}

// The functions below return 0, kAbsent or the system's error.
constexpr int kAbsent = -1;

int MakeFolder(const std::string& path) {
  return mkdir(path.c_str(), 0700) == 0 || errno == EEXIST ? 0 : errno;
}

int WriteFile(const std::string& path, std::span<const std::uint8_t> bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  int error = file < 0 ? errno : 0;
  while (error == 0 && !bytes.empty()) {
    const ssize_t n = write(file, bytes.data(), bytes.size());
    if (n >= 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR) error = errno;
  }
  if (file >= 0 && close(file) != 0 && error == 0) error = errno;
  return error;
}

int ReadFile(const std::string& path, std::size_t size, Object& object) {
  if (size > kMostBytes) return EFBIG;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return errno == ENOENT ? kAbsent : errno;
  std::vector<std::uint8_t> bytes(size);
  std::size_t got = 0;
  struct stat info {};
  // Another object may have come in the meantime.
  int error = fstat(file, &info) != 0 || info.st_size != static_cast<off_t>(size) ? kAbsent : 0;
  while (error == 0 && got < size) {
    const ssize_t n = read(file, bytes.data() + got, size - got);
    if (n > 0) got += static_cast<std::size_t>(n);
    if (n == 0) error = kAbsent;
    if (n < 0 && errno != EINTR) error = errno;
  }
  close(file);
  if (error == 0) object = Object::Of(std::move(bytes));
  return error;
}

class FilesSource final : public FolderSource {
 public:
  explicit FilesSource(FolderOptions options) : options_(std::move(options)) {}

  absl::Status Check(Deadline) override {
    constexpr std::uint8_t kByte[] = {1};
    const std::string probe = NewName();
    int error = MakeFolders();
    if (error == 0) error = Place(probe, kByte);
    unlink(probe.c_str());
    return Failed(error);
  }

  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    std::fill(objects.begin(), objects.end(), Object{});
    return Each(digests.size(), deadline, [&](std::size_t i) {
      const std::string path = PathOf(digests[i]);
      struct stat info {};
      const int error = Find(path, info);
      if (error != 0) return error;
      return ReadFile(path, static_cast<std::size_t>(info.st_size), objects[i]);
    });
  }

  absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                     std::span<std::uint8_t> held) override {
    std::fill(held.begin(), held.end(), std::uint8_t{0});
    return Each(digests.size(), deadline, [&](std::size_t i) {
      const int error = Renew(PathOf(digests[i]));
      held[i] = error == 0 ? 1 : 0;
      return error;
    });
  }

  absl::Status Put(std::span<const wire::NamedObject> objects, Deadline deadline) override {
    if (const int error = MakeFolders(); error != 0) return Failed(error);
    absl::Status status = Each(objects.size(), deadline, [&](std::size_t i) {
      const std::string path = PathOf(objects[i].digest);
      if (Renew(path) == 0) return 0;
      const int failed = Place(path, objects[i].object.bytes);
      if (failed == 0) put_ += objects[i].object.bytes.size();
      return failed;
    });
    const std::unique_lock<std::mutex> lock(sweep_mutex_, std::try_to_lock);
    if (lock) Sweep(deadline);
    return status;
  }

 private:
  struct Found {
    std::int64_t ns;  // when it changed
    std::uint64_t bytes;
    std::array<char, 34> name;
  };

  [[nodiscard]] int MakeFolders() const {
    const int error = MakeFolder(options_.path);
    return error != 0 ? error : MakeFolder(Below(kNew));
  }

  // Calls `act` with each i below `count`.
  template <class Act>
  absl::Status Each(std::size_t count, Deadline deadline, const Act& act) const {
    struct stat before = {};
    struct stat after = {};
    const int missing = StatFolder(before);
    int first_error = 0;
    bool absent = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (Clock::now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("folder: '", options_.path, "': ", i, " of ", count, " objects"));
      }
      const int error = act(i);
      absent |= error == kAbsent;
      if (first_error == 0 && error != kAbsent) first_error = error;
    }
    // So is everything if the folder was not there, or went in the meantime.
    if (absent && first_error == 0) first_error = missing != 0 ? missing : StatFolder(after);
    if (absent && first_error == 0 &&
        (before.st_dev != after.st_dev || before.st_ino != after.st_ino)) {
      first_error = ESTALE;
    }
    return Failed(first_error);
  }

  // Through the folder, so that it is an error if what is in it cannot be found.
  [[nodiscard]] int StatFolder(struct stat& info) const {
    return stat(Below(".").c_str(), &info) == 0 ? 0 : errno;
  }

  [[nodiscard]] absl::Status Failed(int error) const {
    if (error == 0) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("folder: '", options_.path, "': ", std::strerror(error)));
  }

  [[nodiscard]] std::string Below(const std::string& name) const {
    return absl::StrCat(options_.path, "/", name);
  }
  [[nodiscard]] std::string PathOf(const Digest128& digest) const {
    const char* const bytes = reinterpret_cast<const char*>(&digest);
    return Below(absl::BytesToHexString({bytes, sizeof(digest)}).insert(2, "/"));
  }
  // No other thread, process or machine makes this name.
  [[nodiscard]] std::string NewName() {
    return Below(absl::StrCat(kNew, "/", seed_, "-", getpid(), "-", names_++));
  }

  // An expired object is deleted, and absent.
  [[nodiscard]] int Find(const std::string& path, struct stat& info) const {
    if (lstat(path.c_str(), &info) != 0) {
      return errno == ENOENT || errno == ENOTDIR ? kAbsent : errno;
    }
    if (!S_ISREG(info.st_mode)) return kAbsent;
    if (info.st_size > 0 && !(expires() && Older(info, options_.time_to_live))) return 0;
    unlink(path.c_str());
    return kAbsent;
  }

  // The object, if it is there, lives from now on.
  [[nodiscard]] int Renew(const std::string& path) const {
    struct stat info {};
    const int error = Find(path, info);
    if (error != 0) return error;
    return utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
  }

  // Writes a file, unless there is one.
  int Place(const std::string& path, std::span<const std::uint8_t> bytes) {
    const std::string written = NewName();
    int error = WriteFile(written, bytes);
    const auto place = [&] { return link(written.c_str(), path.c_str()) == 0 ? 0 : errno; };
    if (error == 0) error = place();
    if (error == ENOENT) {
      (void)MakeFolder(path.substr(0, path.rfind('/')));
      error = place();
    }
    unlink(written.c_str());
    return error == EEXIST ? 0 : error;
  }

  [[nodiscard]] bool expires() const { return options_.time_to_live.count() > 0; }

  // Deletes what is expired, what dead processes left and, beyond max_bytes, the oldest objects.
  // Each call makes a step at least; after a deadline the next call goes on there. By the thread
  // that has sweep_mutex_.
  void Sweep(Deadline deadline) {
    const std::uint64_t most = options_.max_bytes;
    std::error_code error;
    if (!sweeping_) {
      if (put_ <= sweep_beyond_ && Clock::now() < sweep_at_) return;
      sweep_at_ = expires() ? Clock::now() + options_.time_to_live : Clock::time_point::max();
      sweep_beyond_ = put_;
      bytes_ = 0;
      walk_ = Walk(options_.path, error);
      sweeping_ = true;
    }
    bool stepped = false;
    const auto ends = [&] { return std::exchange(stepped, true) && Clock::now() >= deadline; };
    for (; walk_ != Walk(); walk_.increment(error)) {
      if (ends()) return;
      if (walk_.depth() == 0) continue;
      walk_.disable_recursion_pending();
      Look(walk_->path());
    }
    if (most > 0 && bytes_ > most) {
      std::sort(found_.begin(), found_.end(), [](auto& a, auto& b) { return a.ns > b.ns; });
      for (; bytes_ > most - most / 10; found_.pop_back()) {
        if (ends()) return;
        unlink(Below(found_.back().name.data()).c_str());
        bytes_ -= found_.back().bytes;
      }
    }
    sweep_beyond_ = most > 0 ? sweep_beyond_ + std::min(most / 10, most - bytes_) : UINT64_MAX;
    found_ = {};
    sweeping_ = false;
  }

  void Look(const std::filesystem::path& path) {
    const std::string name = path.filename().string();
    const std::string folder = path.parent_path().filename().string();
    struct stat info {};
    if (folder == kNew && lstat(path.c_str(), &info) == 0 && Older(info, kStale)) {
      unlink(path.c_str());
    }
    const bool named = folder.size() == 2 && name.size() == 30 &&
                       name.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!named || Find(path.string(), info) != 0) return;
    found_.push_back({ChangedNs(info), static_cast<std::uint64_t>(info.st_size), {}});
    absl::StrCat(folder, "/", name).copy(found_.back().name.data(), 33);
    bytes_ += found_.back().bytes;
  }

  const FolderOptions options_;
  const std::uint64_t seed_ = DrawSeed();
  std::atomic<std::uint64_t> names_{0};
  std::atomic<std::uint64_t> put_{0};  // bytes, by this source
  std::mutex sweep_mutex_;
  // All below: the thread that has it.
  std::uint64_t sweep_beyond_ = 0;  // sweep when put_ is more
  Clock::time_point sweep_at_;      // and from then on
  bool sweeping_ = false;
  Walk walk_;
  std::vector<Found> found_;
  std::uint64_t bytes_ = 0;  // of them
};

}  // namespace

absl::StatusOr<std::unique_ptr<FolderSource>> FolderSource::Create(const FolderOptions& options) {
  FolderOptions made = options;
  if (options.path.empty()) return Invalid("path: a folder; it is empty");
  if (options.time_to_live.count() < 0) {
    return Invalid("time_to_live: at least 0 s; it is ", options.time_to_live.count());
  }
  made.time_to_live = Clamped(options.time_to_live);
  std::error_code error;
  made.path = std::filesystem::absolute(options.path, error).string();
  if (error) return Invalid("path: '", options.path, "': ", error.message());
  return std::make_unique<FilesSource>(std::move(made));
}

}  // namespace waymark

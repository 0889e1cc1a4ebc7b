#include "plugin/abi/callback_source.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

namespace waymark {
namespace {

using wire::Deadline;
using wire::NamedObject;
using wire::Object;
using wire::ObjectRange;

// Requests go to the callbacks as they are.
static_assert(sizeof(wm_digest) == sizeof(Digest128));
static_assert(sizeof(wm_object_range) == sizeof(ObjectRange) &&
              offsetof(wm_object_range, digest) == offsetof(ObjectRange, digest) &&
              offsetof(wm_object_range, begin) == offsetof(ObjectRange, begin) &&
              offsetof(wm_object_range, end) == offsetof(ObjectRange, end));

const wm_digest* ToC(std::span<const Digest128> digests) {
  return reinterpret_cast<const wm_digest*>(digests.data());
}

// Calls `callback(timeout_ns, why)`, which returns a wm_status.
template <class F>
absl::Status Call(Deadline deadline, F&& callback) {
  const std::int64_t left =
      std::chrono::nanoseconds(deadline - std::chrono::steady_clock::now()).count();
  if (left <= 0) return absl::DeadlineExceededError("no time was left for the source");
  char text[512] = {};
  wm_message why = {text, sizeof(text), 0};
  wm_status status = WM_OK;
  try {
    status = callback(left, &why);
  } catch (...) {
    return absl::InternalError("a callback of the source threw");
  }
  if (status == WM_OK) return absl::OkStatus();
  if (status < WM_OK || status > WM_DATA_LOSS) status = WM_UNKNOWN;
  text[sizeof(text) - 1] = '\0';
  return absl::Status(static_cast<absl::StatusCode>(status), text);
}

}  // namespace

CallbackSource::~CallbackSource() {
  if (callbacks_.destroy == nullptr) return;
  try {
    callbacks_.destroy(callbacks_.context);
  } catch (...) {
  }
}

absl::Status CallbackSource::Get(std::span<const Digest128> digests, Deadline deadline,
                                 std::span<Object> objects) {
  std::fill(objects.begin(), objects.end(), Object{});
  if (digests.empty()) return absl::OkStatus();
  wm_reply reply(objects, {});
  return Call(deadline, [&](std::int64_t timeout_ns, wm_message* why) {
    return callbacks_.get(callbacks_.context, ToC(digests), digests.size(), timeout_ns, &reply,
                          why);
  });
}

absl::Status CallbackSource::GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                                       std::span<Object> objects) {
  std::fill(objects.begin(), objects.end(), Object{});
  if (ranges.empty()) return absl::OkStatus();
  if (callbacks_.get_ranges == nullptr) return absl::UnimplementedError("the source has no ranges");
  wm_reply reply(objects, ranges);
  return Call(deadline, [&](std::int64_t timeout_ns, wm_message* why) {
    return callbacks_.get_ranges(callbacks_.context,
                                 reinterpret_cast<const wm_object_range*>(ranges.data()),
                                 ranges.size(), timeout_ns, &reply, why);
  });
}

absl::Status CallbackSource::Put(std::span<const NamedObject> objects, Deadline deadline) {
  if (callbacks_.put == nullptr) return absl::UnimplementedError("the source is read only");
  if (objects.empty()) return absl::OkStatus();
  std::vector<wm_object> given;
  given.reserve(objects.size());
  for (const NamedObject& named : objects) {
    wm_object object = {{}, named.object.bytes.data(), named.object.bytes.size()};
    std::memcpy(&object.digest, &named.digest, sizeof(object.digest));
    given.push_back(object);
  }
  return Call(deadline, [&](std::int64_t timeout_ns, wm_message* why) {
    return callbacks_.put(callbacks_.context, given.data(), given.size(), timeout_ns, why);
  });
}

absl::Status CallbackSource::Holds(std::span<const Digest128> digests, Deadline deadline,
                                   std::span<std::uint8_t> held) {
  std::fill(held.begin(), held.end(), std::uint8_t{0});
  if (callbacks_.holds == nullptr || digests.empty()) return absl::OkStatus();
  absl::Status status = Call(deadline, [&](std::int64_t timeout_ns, wm_message* why) {
    return callbacks_.holds(callbacks_.context, ToC(digests), digests.size(), timeout_ns,
                            held.data(), why);
  });
  for (std::uint8_t& one : held)
    one = one != 0 ? 1 : 0;
  return status;
}

}  // namespace waymark

absl::Status wm_reply::Set(std::size_t index, std::span<const std::uint8_t> bytes) {
  using waymark::wire::Object;
  if (index >= objects.size()) {
    return absl::InvalidArgumentError("index: must be below " + std::to_string(objects.size()) +
                                      "; it is " + std::to_string(index));
  }
  if (!ranges.empty() && bytes.size() != ranges[index].end - ranges[index].begin) {
    return absl::InvalidArgumentError("size: must be the range's " +
                                      std::to_string(ranges[index].end - ranges[index].begin) +
                                      "; it is " + std::to_string(bytes.size()));
  }
  objects[index] = Object::Of(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
  return absl::OkStatus();
}

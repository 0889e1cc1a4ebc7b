// CallbackSource: what reaches the callbacks of a C program, and what comes back.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "plugin/abi/types.h"
#include "plugin/waymark_wire.h"

namespace waymark {
namespace {

using wire::After;
using wire::Deadline;
using wire::NamedObject;
using wire::Object;
using wire::ObjectRange;

constexpr std::chrono::hours kLong{1};

Digest128 Name(std::uint32_t number) {
  return {{number, 2, 3, 4}};
}
const wm_wire_api_v1& Wire() {
  return *wm_get_api_v1()->wire;
}
// The page source that the library makes of callbacks.
std::shared_ptr<wire::PageSource> SourceOf(const wm_source_callbacks& callbacks) {
  wm_source* object = nullptr;
  EXPECT_EQ(Wire().source_callbacks_create(&callbacks, &object, nullptr), WM_OK);
  std::shared_ptr<wire::PageSource> source = object->source;
  Wire().source_release(object);
  return source;
}
bool Replied(wm_reply* reply, std::size_t index, std::span<const std::uint8_t> bytes) {
  return Wire().reply_object(reply, index, bytes.data(), bytes.size()) == WM_OK;
}
std::string Text(const Object& object) {
  if (!object.present()) return "absent";
  return {object.bytes.begin(), object.bytes.end()};
}
std::vector<std::uint8_t> Bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

// A program with objects by the first word of their digest.
struct Program {
  std::map<std::uint32_t, std::string> objects;
  std::vector<std::size_t> gets;  // how many digests each was asked for
  int ranges = 0, destroyed = 0;
  wm_status status = WM_OK;
  std::string text;
  bool throws = false;
  std::chrono::steady_clock::time_point busy_until;

  static std::uint32_t Number(const wm_digest& digest) {
    return digest.bytes[0] | static_cast<std::uint32_t>(digest.bytes[1]) << 8;
  }
  wm_status End(wm_message* why) const {
    while (std::chrono::steady_clock::now() < busy_until)
      std::this_thread::yield();
    if (throws) throw std::runtime_error("no");
    text.copy(why->text, why->capacity);
    why->size = text.size();
    return status;
  }

  static wm_status Get(void* context, const wm_digest* digests, std::size_t count,
                       std::int64_t timeout_ns, wm_reply* reply, wm_message* why) {
    Program& self = *static_cast<Program*>(context);
    EXPECT_GT(timeout_ns, 0);
    self.gets.push_back(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto at = self.objects.find(Number(digests[i]));
      if (at == self.objects.end()) continue;
      EXPECT_TRUE(Replied(reply, i, Bytes(at->second)));
    }
    EXPECT_FALSE(Replied(reply, count, {}));
    return self.End(why);
  }
  static wm_status GetRanges(void* context, const wm_object_range* ranges, std::size_t count,
                             std::int64_t, wm_reply* reply, wm_message* why) {
    Program& self = *static_cast<Program*>(context);
    ++self.ranges;
    for (std::size_t i = 0; i < count; ++i) {
      const std::vector<std::uint8_t> all = Bytes(self.objects[Number(ranges[i].digest)]);
      EXPECT_EQ(Replied(reply, i, all), all.size() == ranges[i].end - ranges[i].begin);
      if (ranges[i].end > all.size()) continue;
      EXPECT_TRUE(Replied(
          reply, i, std::span(all).subspan(ranges[i].begin, ranges[i].end - ranges[i].begin)));
    }
    return self.End(why);
  }
  static wm_status Put(void* context, const wm_object* objects, std::size_t count, std::int64_t,
                       wm_message* why) {
    Program& self = *static_cast<Program*>(context);
    for (std::size_t i = 0; i < count; ++i) {
      self.objects[Number(objects[i].digest)] =
          std::string(objects[i].data, objects[i].data + objects[i].size);
    }
    return self.End(why);
  }
  static wm_status Holds(void* context, const wm_digest* digests, std::size_t count, std::int64_t,
                         std::uint8_t* held, wm_message* why) {
    Program& self = *static_cast<Program*>(context);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(held[i], 0);
      if (self.objects.contains(Number(digests[i]))) held[i] = 7;
    }
    return self.End(why);
  }

  wm_source_callbacks Callbacks() {
    wm_source_callbacks callbacks = {sizeof(callbacks)};
    callbacks.context = this;
    callbacks.get = &Get;
    callbacks.destroy = [](void* context) { ++static_cast<Program*>(context)->destroyed; };
    return callbacks;
  }
};

TEST(CallbackSource, PutsHoldsAndGets) {
  Program program;
  wm_source_callbacks callbacks = program.Callbacks();
  callbacks.put = &Program::Put;
  callbacks.holds = &Program::Holds;
  {
    const auto source = SourceOf(callbacks);
    const NamedObject objects[] = {{Name(1), Object::Of(Bytes("one"))},
                                   {Name(300), Object::Of(Bytes(""))}};
    ASSERT_TRUE(source->Put(objects, After(kLong)).ok());
    const Digest128 names[] = {Name(300), Name(2), Name(1)};
    std::vector<std::uint8_t> held(3, 9);
    ASSERT_TRUE(source->Holds(names, After(kLong), held).ok());
    EXPECT_EQ(held, (std::vector<std::uint8_t>{1, 0, 1}));
    std::vector<Object> got(3, Object::Of(Bytes("old")));
    ASSERT_TRUE(source->Get(names, After(kLong), got).ok());
    EXPECT_EQ(Text(got[0]), "");
    EXPECT_EQ(Text(got[1]), "absent");
    EXPECT_EQ(Text(got[2]), "one");
    program.objects.clear();  // what was returned is a copy
    EXPECT_EQ(Text(got[2]), "one");
    EXPECT_EQ(program.destroyed, 0);
  }
  EXPECT_EQ(program.destroyed, 1);
}

TEST(CallbackSource, RangesAreThoseOfTheCallback) {
  Program program;
  program.objects[1] = "0123456789";
  wm_source_callbacks callbacks = program.Callbacks();
  callbacks.get_ranges = &Program::GetRanges;
  const auto source = SourceOf(callbacks);
  const ObjectRange ranges[] = {{Name(1), 2, 5}, {Name(1), 9, 11}, {Name(2), 0, 1}};
  std::vector<Object> got(3);
  ASSERT_TRUE(source->GetRanges(ranges, After(kLong), got).ok());
  EXPECT_EQ(Text(got[0]), "234");
  EXPECT_EQ(Text(got[1]), "absent");
  EXPECT_EQ(Text(got[2]), "absent");
  EXPECT_EQ(program.ranges, 1);
  EXPECT_TRUE(program.gets.empty());
}

TEST(CallbackSource, CallbacksThatAreNotThere) {
  Program program;
  const auto source = SourceOf(program.Callbacks());
  const NamedObject objects[] = {{Name(1), Object::Of(Bytes("one"))}};
  EXPECT_EQ(source->Put(objects, After(kLong)).code(), absl::StatusCode::kUnimplemented);
  // Regression: what was cut from whole objects was not compared with their digests.
  const ObjectRange ranges[] = {{Name(1), 0, 1}};
  std::vector<Object> got(1);
  EXPECT_EQ(source->GetRanges(ranges, After(kLong), got).code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(program.gets.empty());
  const Digest128 names[] = {Name(1)};
  std::vector<std::uint8_t> held(1, 9);
  EXPECT_TRUE(source->Holds(names, After(kLong), held).ok());
  EXPECT_EQ(held[0], 0);
}

TEST(CallbackSource, FailuresBecomeStatusesAndKeepWhatCameBefore) {
  Program program;
  program.objects[1] = "one";
  const auto source = SourceOf(program.Callbacks());
  const Digest128 names[] = {Name(1)};
  std::vector<Object> got(1);
  program.status = WM_UNAVAILABLE;
  program.text = "no network";
  absl::Status status = source->Get(names, After(kLong), got);
  EXPECT_EQ(status, absl::UnavailableError("no network"));
  EXPECT_EQ(Text(got[0]), "one");
  program.text = std::string(4000, 'x');  // fills the buffer, without a 0
  status = source->Get(names, After(kLong), got);
  EXPECT_EQ(status.message(), std::string(511, 'x'));
  program.text.clear();
  for (const wm_status none : {-1, 16, INT32_MAX, INT32_MIN}) {
    program.status = none;
    EXPECT_EQ(source->Get(names, After(kLong), got).code(), absl::StatusCode::kUnknown) << none;
  }
  program.throws = true;
  EXPECT_EQ(source->Get(names, After(kLong), got).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Text(got[0]), "one");
}

TEST(CallbackSource, NoCallbackAfterTheDeadline) {
  Program program;
  program.objects[1] = "one";
  const auto source = SourceOf(program.Callbacks());
  const Digest128 names[] = {Name(1)};
  std::vector<Object> got(1, Object::Of(Bytes("old")));
  const Deadline deadline = After(std::chrono::milliseconds(200));
  program.busy_until = deadline + std::chrono::milliseconds(1);
  ASSERT_TRUE(source->Get(names, deadline, got).ok()) << "begun in time, its objects are used";
  EXPECT_EQ(Text(got[0]), "one");
  EXPECT_EQ(source->Get(names, deadline, got).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Text(got[0]), "absent");
  EXPECT_EQ(program.gets.size(), 1u);
}

TEST(CallbackSource, EmptyRequestsReachNoCallback) {
  Program program;
  program.status = WM_INTERNAL;
  wm_source_callbacks callbacks = program.Callbacks();
  callbacks.put = &Program::Put;
  callbacks.holds = &Program::Holds;
  callbacks.get_ranges = &Program::GetRanges;
  const auto source = SourceOf(callbacks);
  EXPECT_TRUE(source->Get({}, After(kLong), {}).ok());
  EXPECT_TRUE(source->GetRanges({}, After(kLong), {}).ok());
  EXPECT_TRUE(source->Put({}, After(kLong)).ok());
  EXPECT_TRUE(source->Holds({}, After(kLong), {}).ok());
}

}  // namespace
}  // namespace waymark

// OwnObjects: a page source of callbacks that break the rules.
#ifndef WAYMARK_TESTS_FUZZ_OWN_OBJECTS_H_
#define WAYMARK_TESTS_FUZZ_OWN_OBJECTS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "plugin/waymark_wire.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace waymark::fuzz {

// Objects behind the callbacks of a page source. The input decides which rule they break. Several
// threads call them, so all decisions are made when the source is made.
class OwnObjects {
 public:
  static wm_source_callbacks Callbacks(Bytes& bytes, std::atomic<int>& alive) {
    wm_source_callbacks callbacks = {};
    callbacks.struct_size = sizeof(callbacks);
    const std::uint8_t fault = bytes.Byte();
    callbacks.context = new OwnObjects(fault, bytes.Byte(), alive);
    callbacks.get = &Get;
    callbacks.get_ranges = bytes.Once(2) ? nullptr : &GetRanges;
    callbacks.put = bytes.Once(8) ? nullptr : &Put;
    callbacks.holds = bytes.Once(4) ? nullptr : &Holds;
    callbacks.destroy = &Destroy;
    return callbacks;
  }
  static void Destroy(void* context) { delete static_cast<OwnObjects*>(context); }

 private:
  OwnObjects(std::uint8_t fault, std::uint8_t often, std::atomic<int>& alive)
      : fault_(fault % 16), often_(often % 8 + 1), alive_(alive) {
    ++alive_;
  }
  ~OwnObjects() { --alive_; }

  // Whether this call, or object, gets the fault that was drawn. REQUIRES: mutex_.
  bool Faulty(int fault) { return fault == fault_ && ++times_ % often_ == 0; }
  wm_status End(wm_message* why) {
    if (Faulty(0)) throw 7;
    if (Faulty(1)) std::memset(why->text, 'x', why->capacity);
    if (Faulty(2)) return 99;
    return Faulty(3) ? WM_UNAVAILABLE : WM_OK;
  }
  void Give(wm_reply* reply, std::size_t index, std::span<const std::uint8_t> object) {
    std::vector<std::uint8_t> given(object.begin(), object.end());
    if (Faulty(4) && !given.empty()) given[given.size() / 2] ^= 1;
    if (Faulty(5)) given.resize(given.size() / 2);
    if (Faulty(6)) given.resize(given.size() + 9);
    if (Faulty(7)) index += 1000;
    const wm_status status =
        wm_get_api_v1()->wire->reply_object(reply, index, given.data(), given.size());
    Require(status == WM_OK || status == WM_INVALID_ARGUMENT, "an object is taken or refused");
  }
  const std::vector<std::uint8_t>* Find(const wm_digest& digest) {
    if (Faulty(8)) return objects_.empty() ? nullptr : &objects_.begin()->second;
    const auto at = objects_.find(std::to_array(digest.bytes));
    return at == objects_.end() || Faulty(9) ? nullptr : &at->second;
  }

  static wm_status Get(void* context, const wm_digest* digests, std::size_t count, std::int64_t,
                       wm_reply* reply, wm_message* why) {
    OwnObjects& self = *static_cast<OwnObjects*>(context);
    const std::lock_guard lock(self.mutex_);
    for (std::size_t i = 0; i < count; ++i) {
      if (const auto* object = self.Find(digests[i])) self.Give(reply, i, *object);
    }
    return self.End(why);
  }
  static wm_status GetRanges(void* context, const wm_object_range* ranges, std::size_t count,
                             std::int64_t, wm_reply* reply, wm_message* why) {
    OwnObjects& self = *static_cast<OwnObjects*>(context);
    const std::lock_guard lock(self.mutex_);
    for (std::size_t i = 0; i < count; ++i) {
      const auto* object = self.Find(ranges[i].digest);
      if (object == nullptr || ranges[i].end > object->size()) continue;
      self.Give(reply, i,
                std::span(*object).subspan(ranges[i].begin, ranges[i].end - ranges[i].begin));
    }
    return self.End(why);
  }
  static wm_status Put(void* context, const wm_object* objects, std::size_t count, std::int64_t,
                       wm_message* why) {
    OwnObjects& self = *static_cast<OwnObjects*>(context);
    const std::lock_guard lock(self.mutex_);
    for (std::size_t i = 0; i < count; ++i) {
      self.objects_[std::to_array(objects[i].digest.bytes)].assign(
          objects[i].data, objects[i].data + objects[i].size);
    }
    return self.End(why);
  }
  static wm_status Holds(void* context, const wm_digest* digests, std::size_t count, std::int64_t,
                         std::uint8_t* held, wm_message* why) {
    OwnObjects& self = *static_cast<OwnObjects*>(context);
    const std::lock_guard lock(self.mutex_);
    for (std::size_t i = 0; i < count; ++i)
      held[i] = self.Find(digests[i]) != nullptr ? (self.Faulty(10) ? 0xff : 1) : 0;
    return self.End(why);
  }

  const int fault_, often_;
  std::atomic<int>& alive_;
  std::mutex mutex_;
  int times_ = 0;
  std::map<std::array<std::uint8_t, 16>, std::vector<std::uint8_t>> objects_;
};

}  // namespace waymark::fuzz

#endif  // WAYMARK_TESTS_FUZZ_OWN_OBJECTS_H_

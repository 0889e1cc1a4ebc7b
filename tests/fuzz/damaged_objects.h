// DamagedObjects: published rows whose objects were lost or damaged since.
#ifndef WAYMARK_TESTS_FUZZ_DAMAGED_OBJECTS_H_
#define WAYMARK_TESTS_FUZZ_DAMAGED_OBJECTS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <span>
#include <vector>

#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/publisher.h"
#include "plugin/waymark_wire.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace waymark::fuzz {

// The objects of a publication, for fetchers of either interface. They change between fetches alone.
class DamagedObjects final : public wire::PageSource {
 public:
  // Publishes rows from row 0 on.
  DamagedObjects(const Rows& rows, const wire::ChunkCode& code) {
    const auto publisher = wire::Publisher::Create(this, {.shape = {rows.shape, code}});
    Require(publisher.ok(), "a publisher can be made");
    const auto published = (*publisher)->Publish("", rows).get();
    Require(published.ok(), "rows can be published");
    handle = *published;
  }

  // Loses and damages a few, or puts them in the place of others.
  void Damage(Bytes& bytes) {
    for (std::uint32_t n = 1 + bytes.Below(3); n > 0 && !objects_.empty(); --n) {
      const auto at = Nth(bytes.Byte());
      std::vector<std::uint8_t>& object = at->second;
      switch (bytes.Below(4)) {
        case 0:
          objects_.erase(at);
          break;
        case 1:
          if (object.empty()) break;
          object[bytes.Byte() * object.size() / 256] ^=
              static_cast<std::uint8_t>(1 << bytes.Below(8));
          break;
        case 2:
          object.resize(bytes.Byte() * object.size() / 256);
          break;
        default:
          object = std::vector<std::uint8_t>(Nth(bytes.Byte())->second);
      }
    }
  }

  absl::Status Get(std::span<const Digest128> digests, wire::Deadline,
                   std::span<wire::Object> objects) override {
    for (std::size_t i = 0; i < digests.size(); ++i) {
      const auto* const found = Find(digests[i]);
      objects[i] = found == nullptr ? wire::Object{} : wire::Object::Of(*found);
    }
    return absl::OkStatus();
  }
  absl::Status GetRanges(std::span<const wire::ObjectRange> ranges, wire::Deadline,
                         std::span<wire::Object> objects) override {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const auto* const found = Find(ranges[i].digest);
      objects[i] = {};
      if (found == nullptr || ranges[i].end > found->size()) continue;
      const auto begin = found->begin() + static_cast<std::ptrdiff_t>(ranges[i].begin);
      objects[i] = wire::Object::Of(
          {begin, begin + static_cast<std::ptrdiff_t>(ranges[i].end - ranges[i].begin)});
    }
    return absl::OkStatus();
  }
  absl::Status Put(std::span<const wire::NamedObject> objects, wire::Deadline) override {
    for (const wire::NamedObject& of : objects)
      objects_[NameOf(of.digest)].assign(of.object.bytes.begin(), of.object.bytes.end());
    return absl::OkStatus();
  }
  absl::Status Holds(std::span<const Digest128>, wire::Deadline,
                     std::span<std::uint8_t> held) override {
    std::fill(held.begin(), held.end(), std::uint8_t{0});
    return absl::OkStatus();
  }

  // The same objects through the table. `ranges`: with get_ranges.
  wm_source_callbacks Callbacks(bool ranges) {
    wm_source_callbacks callbacks = {};
    callbacks.struct_size = sizeof(callbacks);
    callbacks.context = this;
    callbacks.get = [](void* context, const wm_digest* digests, std::size_t count, std::int64_t,
                       wm_reply* reply, wm_message*) -> wm_status {
      for (std::size_t i = 0; i < count; ++i) {
        if (const auto* const found = static_cast<DamagedObjects*>(context)->Find(digests[i]))
          Give(reply, i, *found);
      }
      return WM_OK;
    };
    if (!ranges) return callbacks;
    callbacks.get_ranges = [](void* context, const wm_object_range* asked, std::size_t count,
                              std::int64_t, wm_reply* reply, wm_message*) -> wm_status {
      for (std::size_t i = 0; i < count; ++i) {
        const auto* const found = static_cast<DamagedObjects*>(context)->Find(asked[i].digest);
        if (found == nullptr || asked[i].end > found->size()) continue;
        Give(reply, i, std::span(*found).subspan(asked[i].begin, asked[i].end - asked[i].begin));
      }
      return WM_OK;
    };
    return callbacks;
  }

  wire::Handle handle;

 private:
  using Name = std::array<std::uint8_t, 16>;

  std::map<Name, std::vector<std::uint8_t>>::iterator Nth(std::size_t n) {
    return std::next(objects_.begin(), static_cast<std::ptrdiff_t>(n % objects_.size()));
  }
  // A digest is its bytes in both interfaces.
  template <class Digest>
  static Name NameOf(const Digest& digest) {
    static_assert(sizeof(digest) == sizeof(Name));
    Name name;
    std::memcpy(name.data(), &digest, sizeof(name));
    return name;
  }
  template <class Digest>
  [[nodiscard]] const std::vector<std::uint8_t>* Find(const Digest& digest) const {
    const auto at = objects_.find(NameOf(digest));
    return at == objects_.end() ? nullptr : &at->second;
  }
  static void Give(wm_reply* reply, std::size_t index, std::span<const std::uint8_t> object) {
    Require(
        wm_get_api_v1()->wire->reply_object(reply, index, object.data(), object.size()) == WM_OK,
        "an object is taken");
  }

  std::map<Name, std::vector<std::uint8_t>> objects_;
};

}  // namespace waymark::fuzz

#endif  // WAYMARK_TESTS_FUZZ_DAMAGED_OBJECTS_H_

#include "blockstore/wire/bundle_source.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "blockstore/wire/objects.h"

namespace waymark::wire {
namespace {

constexpr std::size_t kBundlesAtOnce = 32;

std::span<const std::uint8_t> DigestBytes(const Digest128& first, std::size_t count = 1) {
  return {reinterpret_cast<const std::uint8_t*>(&first), count * sizeof(first)};
}

// The bytes of the objects, `size` in all: not copied if they lie one behind the other.
Object Joined(std::span<const Object* const> objects, std::size_t size) {
  const Object& first = *objects[0];
  std::size_t at = 0;
  for (const Object* object : objects) {
    if (object->owner != first.owner || object->bytes.data() != first.bytes.data() + at) break;
    at += object->bytes.size();
  }
  if (at == size) return {first.owner, {first.bytes.data(), size}};
  std::vector<std::uint8_t> joined;
  joined.reserve(size);
  for (const Object* object : objects)
    joined.insert(joined.end(), object->bytes.begin(), object->bytes.end());
  return Object::Of(std::move(joined));
}

}  // namespace

template <typename Value>
void BundleSource::Keep(ByDigest<Value>& map, const Digest128& name, Value value) {
  map.Erase(name);
  map.Insert(name, std::move(value));
  if (map.size() > options_.max_places) map.PopOldest();
}

// What was wrapped. Notes the places of its chunks, if it is a node. Anything else comes back as it
// is: the reader finds that it is damaged.
Object BundleSource::Unwrap(const Digest128& name, const Object& stored) {
  Head head;
  if (stored.bytes.size() < sizeof(head)) return stored;
  std::memcpy(&head, stored.bytes.data(), sizeof(head));
  const std::size_t table_bytes = head.count * sizeof(Place);
  const std::size_t begin = sizeof(head) + table_bytes;
  if (begin > stored.bytes.size()) return stored;
  const auto table = stored.bytes.subspan(sizeof(head), table_bytes);
  if (ContentDigest(DigestBytes(name), table) != head.digest) return stored;
  Object object = stored;
  object.bytes = stored.bytes.subspan(begin);
  const std::vector<Digest128> chunks = ChunksOfNode(object.bytes);
  std::vector<Digest128> bundles;
  for (std::size_t i = 0; i < std::min<std::size_t>(head.count, chunks.size()); ++i) {
    Place place;
    std::memcpy(&place, table.data() + i * sizeof(place), sizeof(place));
    if (place.size == 0) continue;
    Keep(places_, chunks[i], place);
    if (bundles.empty() || bundles.back() != place.bundle) bundles.push_back(place.bundle);
  }
  Keep(bundles_, name, std::move(bundles));
  return object;
}

// Gets what is not known to be in a bundle. Returns the places of the others, and of those that a
// node that was got places.
std::vector<BundleSource::Place> BundleSource::GetWhole(std::span<const Digest128> digests,
                                                        Deadline deadline,
                                                        std::span<Object> objects,
                                                        absl::Status& status) {
  std::vector<Place> places(digests.size());
  Indices whole;
  std::vector<Digest128> names;
  const auto find = [&](std::size_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Place* place = places_.Use(digests[i]);
    if (place != nullptr) places[i] = *place;
    return place != nullptr;
  };
  {
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < digests.size(); ++i) {
      if (find(i)) continue;
      whole.push_back(i);
      names.push_back(digests[i]);
    }
  }
  if (whole.empty()) return places;
  std::vector<Object> got(whole.size());
  status = store_->Get(names, deadline, got);
  const MutexLock lock(mutex_);
  for (std::size_t k = 0; k < whole.size(); ++k) {
    if (got[k].present()) objects[whole[k]] = Unwrap(names[k], got[k]);
  }
  for (const std::size_t i : whole) {
    if (!objects[i].present()) find(i);
  }
  return places;
}

// The objects that are in a bundle. They share its memory if that is most of it.
void BundleSource::Cut(const Object& stored, std::span<const Place> places, const Indices& indices,
                       std::span<Object> objects) {
  std::size_t used = 0;
  for (const std::size_t i : indices)
    used += places[i].size;
  for (const std::size_t i : indices) {
    const Place& place = places[i];
    if (std::size_t{place.offset} + place.size > stored.bytes.size()) continue;
    const auto bytes = stored.bytes.subspan(place.offset, place.size);
    objects[i] = 2 * used >= stored.bytes.size() ? Object{stored.owner, bytes}
                                                 : Object::Of({bytes.begin(), bytes.end()});
  }
}

absl::Status BundleSource::Get(std::span<const Digest128> digests, Deadline deadline,
                               std::span<Object> objects) {
  std::fill(objects.begin(), objects.end(), Object{});
  absl::Status status;
  const std::vector<Place> places = GetWhole(digests, deadline, objects, status);
  std::vector<Digest128> bundles;  // in the order of their first use
  std::unordered_map<Digest128, Indices, DigestHash> used;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].size == 0) continue;
    Indices& indices = used[places[i].bundle];
    if (indices.empty()) bundles.push_back(places[i].bundle);
    indices.push_back(i);
  }
  for (std::size_t first = 0; first < bundles.size(); first += kBundlesAtOnce) {
    const auto names =
        std::span(bundles).subspan(first, std::min(kBundlesAtOnce, bundles.size() - first));
    std::vector<Object> got(names.size());
    const absl::Status asked = store_->Get(names, deadline, got);
    for (std::size_t k = 0; k < names.size(); ++k)
      Cut(got[k], places, used[names[k]], objects);
    status.Update(asked);
  }
  return status;
}

// The bundles of the chunks that nodes among the objects name. Sets their places.
std::vector<NamedObject> BundleSource::Pack(std::span<const NamedObject> objects,
                                            Places& places) const {
  std::unordered_map<Digest128, const Object*, DigestHash> by_digest;
  for (const NamedObject& named : objects)
    by_digest.emplace(named.digest, &named.object);
  std::vector<NamedObject> bundles;
  std::vector<const Object*> chunks;
  std::vector<Digest128> names;
  std::size_t size = 0;
  const auto end_bundle = [&] {
    if (names.empty()) return;
    const Digest128 name = ContentDigest(DigestBytes(names[0], names.size()));
    for (const Digest128& chunk : names)
      places[chunk].bundle = name;
    bundles.push_back({name, Joined(chunks, size)});
    names.clear();
    chunks.clear();
    size = 0;
  };
  for (const NamedObject& named : objects) {
    for (const Digest128& chunk : ChunksOfNode(named.object.bytes)) {
      const auto found = by_digest.find(chunk);
      if (found == by_digest.end() || found->second->bytes.size() > UINT32_MAX / 2) continue;
      const std::size_t bytes = found->second->bytes.size();
      if (size + bytes > options_.bundle_bytes) end_bundle();
      const Place place{{}, static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(bytes)};
      if (!places.emplace(chunk, place).second) continue;
      chunks.push_back(found->second);
      names.push_back(chunk);
      size += bytes;
    }
  }
  end_bundle();
  return bundles;
}

// An object as it is stored: the head, the places, the bytes.
NamedObject BundleSource::Wrap(const NamedObject& named) {
  std::vector<Place> table;
  std::vector<Digest128> bundles;
  for (const Digest128& chunk : ChunksOfNode(named.object.bytes)) {
    const Place* place = places_.Use(chunk);
    table.push_back(place == nullptr ? Place{} : *place);
    if (place == nullptr) continue;
    if (bundles.empty() || bundles.back() != place->bundle) bundles.push_back(place->bundle);
  }
  Keep(bundles_, named.digest, std::move(bundles));
  const std::size_t table_bytes = table.size() * sizeof(Place);
  std::vector<std::uint8_t> stored(sizeof(Head) + table_bytes + named.object.bytes.size());
  const std::span<std::uint8_t> places = std::span(stored).subspan(sizeof(Head), table_bytes);
  if (!table.empty()) std::memcpy(places.data(), table.data(), table_bytes);
  const Head head{static_cast<std::uint32_t>(table.size()),
                  ContentDigest(DigestBytes(named.digest), places)};
  std::memcpy(stored.data(), &head, sizeof(head));
  std::copy(named.object.bytes.begin(), named.object.bytes.end(),
            stored.end() - static_cast<std::ptrdiff_t>(named.object.bytes.size()));
  return {named.digest, Object::Of(std::move(stored))};
}

absl::Status BundleSource::Put(std::span<const NamedObject> objects, Deadline deadline) {
  Places places;
  const std::vector<NamedObject> bundles = Pack(objects, places);
  std::vector<NamedObject> stored;
  {
    const MutexLock lock(mutex_);
    for (const auto& [chunk, place] : places)
      Keep(places_, chunk, place);
    for (const NamedObject& named : objects) {
      if (!places.contains(named.digest)) stored.push_back(Wrap(named));
    }
  }
  // Behind the small ones, which a store can then take with the first of the large ones.
  stored.insert(stored.end(), bundles.begin(), bundles.end());
  return store_->Put(stored, deadline);
}

// What the store must hold for an object to be there.
std::vector<Digest128> BundleSource::NeedsOf(const Digest128& digest) {
  if (const Place* place = places_.Use(digest)) return {place->bundle};
  std::vector<Digest128> needs = {digest};
  if (const auto* bundles = bundles_.Use(digest))
    needs.insert(needs.end(), bundles->begin(), bundles->end());
  return needs;
}

absl::Status BundleSource::HoldsOf(std::span<const NamedObject> objects, Deadline deadline,
                                   std::span<std::uint8_t> held) {
  std::vector<Digest128> digests;
  There absent;
  {
    const MutexLock lock(mutex_);
    for (const NamedObject& named : objects) {
      digests.push_back(named.digest);
      if (bundles_.Use(named.digest) != nullptr) continue;
      for (const Digest128& chunk : ChunksOfNode(named.object.bytes))
        absent.emplace(chunk, 0);
    }
  }
  return Ask(digests, std::move(absent), deadline, held);
}

// Holds. `there`: what need not be asked for.
absl::Status BundleSource::Ask(std::span<const Digest128> digests, There there, Deadline deadline,
                               std::span<std::uint8_t> held) {
  std::fill(held.begin(), held.end(), std::uint8_t{0});
  // Twice: what is there and not known may be a node, whose bundles are then asked for.
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<Digest128>> needs;
    std::vector<Digest128> asked;
    std::vector<Digest128> unknown;
    {
      const MutexLock lock(mutex_);
      for (const Digest128& digest : digests) {
        needs.push_back(NeedsOf(digest));
        if (needs.back().size() == 1 && needs.back()[0] == digest &&
            bundles_.Use(digest) == nullptr)
          unknown.push_back(digest);
        for (const Digest128& need : needs.back()) {
          if (there.emplace(need, 0).second) asked.push_back(need);
        }
      }
    }
    if (!asked.empty()) {
      std::vector<std::uint8_t> got(asked.size());
      if (absl::Status status = store_->Holds(asked, deadline, got); !status.ok()) return status;
      for (std::size_t i = 0; i < asked.size(); ++i)
        there[asked[i]] = got[i];
    }
    for (std::size_t i = 0; i < digests.size(); ++i) {
      held[i] = std::all_of(needs[i].begin(), needs[i].end(),
                            [&](const Digest128& need) { return there[need] != 0; });
    }
    std::erase_if(unknown, [&](const Digest128& digest) { return there[digest] == 0; });
    if (unknown.empty()) break;
    std::vector<Object> objects(unknown.size());
    absl::Status status;
    (void)GetWhole(unknown, deadline, objects, status);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace waymark::wire

#include "tests/support/failing_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> seen{0};
std::atomic<std::uint64_t> first{0};
std::atomic<bool> all_after{false};

bool Fails() {
  const std::uint64_t number = seen.fetch_add(1) + 1;
  const std::uint64_t from = first.load();
  return from != 0 && (number == from || (number > from && all_after.load()));
}

void* Allocate(std::size_t size, std::size_t alignment) {
  if (Fails()) throw std::bad_alloc();
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded > 0 ? rounded : alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return Allocate(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace waymark {

void FailAllocation(std::uint64_t n, bool and_all_after) {
  all_after.store(and_all_after);
  first.store(n);
  seen.store(0);
}

std::uint64_t AllocationsSeen() {
  return seen.load();
}

}  // namespace waymark

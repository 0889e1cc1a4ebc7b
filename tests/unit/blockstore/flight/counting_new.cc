#include "tests/unit/blockstore/flight/counting_new.h"

#include <cstdlib>
#include <new>

namespace {
thread_local bool counting = false;
thread_local int allocations = 0;
}  // namespace

void* operator new(std::size_t size) {
  if (counting) ++allocations;
  void* memory = std::malloc(size != 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace waymark {

void CountAllocations() {
  allocations = 0;
  counting = true;
}

int AllocationsCounted() {
  counting = false;
  return allocations;
}

}  // namespace waymark

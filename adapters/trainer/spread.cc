#include "adapters/trainer/spread.h"

#include <cstring>

namespace waymark {

SpreadIds::SpreadIds(const RoutingShape& shape, std::size_t tensors)
    : top_k_(static_cast<std::size_t>(shape.top_k)),
      num_experts_(static_cast<std::size_t>(shape.num_experts)),
      id_bytes_(shape.id_bytes()),
      ids_((num_experts_ + tensors * top_k_) * id_bytes_) {
  std::vector<std::size_t> primes;  // of E, the least first
  for (std::size_t rest = num_experts_, prime = 2; rest > 1;) {
    if (rest % prime != 0) {
      ++prime;
    } else {
      primes.push_back(prime);
      rest /= prime;
    }
  }
  // The digits of the place, in reverse: the last one, which differs from place to place, says in
  // which half of the experts the id is, and so on.
  for (std::size_t at = 0; at * id_bytes_ < ids_.size(); ++at) {
    std::size_t digits = at % num_experts_, part = num_experts_, id = 0;
    for (const std::size_t prime : primes) {
      part /= prime;
      id += digits % prime * part;
      digits /= prime;
    }
    std::memcpy(ids_.data() + at * id_bytes_, &id, id_bytes_);
  }
}

}  // namespace waymark

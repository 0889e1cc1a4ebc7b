#include "adapters/reference/vector_math.h"

#include <algorithm>
#include <cmath>

namespace waymark::reference {
namespace {

// Outputs that are summed at once in registers. The tile changes speed only: each output has its
// own accumulator and sees its inputs in the same order.
constexpr int kTile = 16;

}  // namespace

void MatVec(const float* __restrict x, const float* __restrict weights, int inputs, int outputs,
            float* __restrict out) {
  int j = 0;
  for (; j + kTile <= outputs; j += kTile) {
    float sums[kTile] = {};
    const float* column = weights + j;
    for (int i = 0; i < inputs; ++i, column += outputs) {
      const float value = x[i];
      for (int t = 0; t < kTile; ++t)
        sums[t] += value * column[t];
    }
    for (int t = 0; t < kTile; ++t)
      out[j + t] = sums[t];
  }
  for (; j < outputs; ++j) {
    float sum = 0;
    for (int i = 0; i < inputs; ++i)
      sum += x[i] * weights[static_cast<int64_t>(i) * outputs + j];
    out[j] = sum;
  }
}

void AddScaled(const float* __restrict x, float scale, int size, float* __restrict out) {
  for (int j = 0; j < size; ++j)
    out[j] += scale * x[j];
}

void RmsNorm(const float* __restrict x, const float* __restrict gain, int size,
             float* __restrict out) {
  float sum = 0;
  for (int j = 0; j < size; ++j)
    sum += x[j] * x[j];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + 1e-6f);
  for (int j = 0; j < size; ++j)
    out[j] = x[j] * scale * gain[j];
}

void SwiGlu(const float* __restrict up, int size, float* __restrict gate) {
  for (int j = 0; j < size; ++j)
    gate[j] = gate[j] / (1.0f + std::exp(-gate[j])) * up[j];
}

void Rotate(const float* cosines, const float* sines, int heads, int head_dim, float* x) {
  const int half = head_dim / 2;
  for (int h = 0; h < heads; ++h, x += head_dim) {
    for (int i = 0; i < half; ++i) {
      const float a = x[i];
      const float b = x[i + half];
      x[i] = a * cosines[i] - b * sines[i];
      x[i + half] = a * sines[i] + b * cosines[i];
    }
  }
}

void Softmax(int size, float* values) {
  const float top = *std::max_element(values, values + size);
  float sum = 0;
  for (int j = 0; j < size; ++j) {
    values[j] = std::exp(values[j] - top);
    sum += values[j];
  }
  const float scale = 1.0f / sum;
  for (int j = 0; j < size; ++j)
    values[j] *= scale;
}

}  // namespace waymark::reference

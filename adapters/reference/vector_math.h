// The arithmetic of the embedded model: a handful of loops over float32 vectors.
//
// Promise (batch invariance): every output element is summed in one fixed order that depends on the
// sizes only. The loops run over outputs in the inner position, so that a compiler vectorises
// across outputs and never inside a sum. A token's result is therefore the same bits alone, in a
// batch, in one prefill or in many chunks.
#ifndef WAYMARK_ADAPTERS_REFERENCE_VECTOR_MATH_H_
#define WAYMARK_ADAPTERS_REFERENCE_VECTOR_MATH_H_

#include <cstdint>

namespace waymark::reference {

// out[j] = sum over i of x[i] * weights[i, j], i ascending.
// x: [inputs]; weights: [inputs, outputs] row-major; out: [outputs], may not overlap the others.
void MatVec(const float* x, const float* weights, int inputs, int outputs, float* out);

// out[j] += scale * x[j].
void AddScaled(const float* x, float scale, int size, float* out);

// out[j] = x[j] * gain[j] / rms(x), with rms(x) = sqrt(mean(x^2) + 1e-6), squares summed in order.
void RmsNorm(const float* x, const float* gain, int size, float* out);

// gate[j] = silu(gate[j]) * up[j]: the middle of a SwiGLU layer, in place.
void SwiGlu(const float* up, int size, float* gate);

// Rotates each pair (x[i], x[i + head_dim / 2]) of each head by the angle whose cosine and sine are
// given. cosines, sines: [head_dim / 2]; x: [heads, head_dim], in place.
void Rotate(const float* cosines, const float* sines, int heads, int head_dim, float* x);

// values becomes exp(values - max) / sum; the sum runs in index order. size >= 1.
void Softmax(int size, float* values);

}  // namespace waymark::reference

#endif  // WAYMARK_ADAPTERS_REFERENCE_VECTOR_MATH_H_

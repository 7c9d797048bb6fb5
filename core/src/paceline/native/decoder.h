// A decoder like Llama: RMS norms, rotary halves, attention of grouped queries, SwiGLU, residual sums.
#pragma once
#include "attention.h"
#include "matmul.h"

namespace paceline {

struct Layer {
  const float *input_norm, *q_norm, *k_norm, *post_norm;  // q_norm and k_norm may be null
  const void *qkv, *o, *gate_up, *down;
  const float *qkv_scale, *o_scale, *gate_up_scale, *down_scale;
  const float *qkv_bias, *o_bias, *gate_up_bias, *down_bias;
  float *keys, *values;
  float* tap;  // [rows, hidden], gets what enters the layer, or null
  int64_t window;
};

// Columns of qkv are q, k and v, each padded to whole panels; gate_up likewise.
struct Decoder {
  int64_t num_layers, hidden, heads, kv_heads, head_size, inner, block_size, num_threads, weight_bits;
  float eps, scale;
  const Layer* layers;
};

// Work space: [rows, hidden], [rows, qkv columns], [rows, heads * head_size] and [rows, gate_up columns].
struct Space {
  float *normed, *qkv, *attended, *gate_up;
};

inline int64_t padded(int64_t columns) { return (columns + kPanel - 1) / kPanel * kPanel; }

inline void rms_norm(const float* x, const float* weight, float eps, int64_t size, float* out) {
  Vector squares = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) squares += load(x + i) * load(x + i);
  float total = sum(squares);
  for (; i < size; ++i) total += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(total / size + eps);
  for (i = 0; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

inline void norm_rows(const float* x, const float* weight, const Decoder& d, int64_t rows, float* out) {
#pragma omp parallel for schedule(static) num_threads(d.num_threads) if (rows > 8)
  for (int64_t r = 0; r < rows; ++r) rms_norm(x + r * d.hidden, weight, d.eps, d.hidden, out + r * d.hidden);
}

inline void rotate(float* head, const float* cos, const float* sin, int64_t size) {
  const int64_t half = size / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float low = head[i], high = head[i + half];
    head[i] = low * cos[i] - high * sin[i];
    head[i + half] = high * cos[i + half] + low * sin[i + half];
  }
}

inline void place_row(const Decoder& d, const Layer& layer, const Rows& rows, const float* cos, const float* sin,
                      float* qkv, int64_t row) {
  const int64_t size = d.head_size;
  float* query = qkv;
  float* key = qkv + padded(d.heads * size);
  const float* value = key + padded(d.kv_heads * size);
  for (int64_t h = 0; h < d.heads; ++h) {
    if (layer.q_norm) rms_norm(query + h * size, layer.q_norm, d.eps, size, query + h * size);
    rotate(query + h * size, cos + row * size, sin + row * size, size);
  }
  for (int64_t h = 0; h < d.kv_heads; ++h) {
    if (layer.k_norm) rms_norm(key + h * size, layer.k_norm, d.eps, size, key + h * size);
    rotate(key + h * size, cos + row * size, sin + row * size, size);
  }
  if (rows.slots[row] < 0) return;
  const int64_t place = rows.slots[row] * d.kv_heads * size;
  std::memcpy(layer.keys + place, key, d.kv_heads * size * sizeof(float));
  std::memcpy(layer.values + place, value, d.kv_heads * size * sizeof(float));
}

inline void gate_row(const Decoder& d, float* gate_up) {
  const float* up = gate_up + padded(d.inner);
  int64_t i = 0;
  for (; i + kLanes <= d.inner; i += kLanes) {
    const Vector gate = load(gate_up + i);
    store(gate_up + i, gate / (1.0f + exponential(-gate)) * load(up + i));
  }
  for (; i < d.inner; ++i) gate_up[i] = gate_up[i] / (1.0f + exponential(-gate_up[i])) * up[i];
}

// The gated rows lie in the first columns of gate_up.
inline void gate_rows(const Decoder& d, float* gate_up, int64_t stride, int64_t rows) {
#pragma omp parallel for schedule(static) num_threads(d.num_threads) if (rows > 1)
  for (int64_t r = 0; r < rows; ++r) gate_row(d, gate_up + r * stride);
}

template <typename Weight>
void run_layer(const Decoder& d, const Layer& layer, const Rows& rows, const float* cos, const float* sin, float* hidden,
               const Space& space) {
  const int64_t count = rows.count, size = d.head_size;
  const int64_t qkv_columns = padded(d.heads * size) + 2 * padded(d.kv_heads * size);
  const int num_threads = d.num_threads;
  const auto weights = [](const void* at) { return static_cast<const Weight*>(at); };
  if (layer.tap) std::memcpy(layer.tap, hidden, count * d.hidden * sizeof(float));
  norm_rows(hidden, layer.input_norm, d, count, space.normed);
  const Packed<Weight> qkv{weights(layer.qkv), layer.qkv_scale, layer.qkv_bias, d.hidden, qkv_columns};
  matmul(space.normed, d.hidden, count, qkv, Output{space.qkv, qkv_columns, false}, num_threads);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (count > 4)
  for (int64_t r = 0; r < count; ++r) place_row(d, layer, rows, cos, sin, space.qkv + r * qkv_columns, r);
  const Cache cache{layer.keys, layer.values, d.block_size, d.kv_heads, size, size};
  const Scoring scoring{d.scale, 0, layer.window, nullptr};
  attend(Attention{space.qkv, qkv_columns, d.heads, cache, rows, scoring, space.attended}, num_threads);
  const Packed<Weight> o{weights(layer.o), layer.o_scale, layer.o_bias, d.heads * size, d.hidden};
  matmul(space.attended, d.heads * size, count, o, Output{hidden, d.hidden, true}, num_threads);
  norm_rows(hidden, layer.post_norm, d, count, space.normed);
  const int64_t inner_columns = 2 * padded(d.inner);
  const Packed<Weight> gate_up{weights(layer.gate_up), layer.gate_up_scale, layer.gate_up_bias, d.hidden, inner_columns};
  matmul(space.normed, d.hidden, count, gate_up, Output{space.gate_up, inner_columns, false}, num_threads);
  gate_rows(d, space.gate_up, inner_columns, count);
  const Packed<Weight> down{weights(layer.down), layer.down_scale, layer.down_bias, d.inner, d.hidden};
  matmul(space.gate_up, inner_columns, count, down, Output{hidden, d.hidden, true}, num_threads);
}

}  // namespace paceline

// What Python calls. Built on the machine that runs it.
#include "decoder.h"
#include "sampling.h"

using namespace paceline;

extern "C" {

// out [rows, columns] = x [rows, in] @ weights, packed as [ceil(columns / 48), in, 48], + bias.
void paceline_matmul(const float* x, const float* weights, const float* bias, float* out, int64_t rows, int64_t in,
                     int64_t columns, int64_t num_threads) {
  matmul(x, in, rows, Packed<float>{weights, nullptr, bias, in, columns}, Output{out, columns, false}, num_threads);
}

// The same with 8-bit weights and a factor for each column.
void paceline_matmul_int8(const float* x, const int8_t* weights, const float* scale, const float* bias, float* out,
                          int64_t rows, int64_t in, int64_t columns, int64_t num_threads) {
  matmul(x, in, rows, Packed<int8_t>{weights, scale, bias, in, columns}, Output{out, columns, false}, num_threads);
}

// The same with 4-bit weights, packed as [ceil(columns / 48), ceil(in / 32), 5, 48].
void paceline_matmul_int4(const float* x, const Nibbles* weights, const float* bias, float* out, int64_t rows,
                          int64_t in, int64_t columns, int64_t num_threads) {
  matmul(x, in, rows, Packed<Nibbles>{weights, nullptr, bias, in, columns}, Output{out, columns, false}, num_threads);
}

// out [rows, heads, value_size] of queries [rows, heads, key_size].
void paceline_attention(const float* queries, int64_t heads, const Cache* cache, const Rows* rows,
                        const Scoring* scoring, float* out, int64_t num_threads) {
  attend(Attention{queries, heads * cache->key_size, heads, *cache, *rows, *scoring, out}, num_threads);
}

// hidden [rows, hidden], from embeddings to what enters the last norm.
void paceline_decoder(const Decoder* decoder, const Rows* rows, const float* cos, const float* sin, float* hidden,
                      const Space* space) {
  const auto run = decoder->weight_bits == 4   ? run_layer<Nibbles>
                   : decoder->weight_bits == 8 ? run_layer<int8_t>
                                               : run_layer<float>;
  for (int64_t i = 0; i < decoder->num_layers; ++i)
    run(*decoder, decoder->layers[i], *rows, cos, sin, hidden, *space);
}

// tokens [rows] of scores [rows, size] that lie stride apart; 0 where a row has no scores to trust, which is invalid.
void paceline_sample(const float* scores, int64_t stride, int64_t rows, int64_t size, const Sampling* sampling,
                     int64_t* tokens, bool* invalid, int64_t num_threads) {
#pragma omp parallel for schedule(dynamic) num_threads(num_threads) if (rows > 1)
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = sampled(scores + r * stride, size, *sampling, r);
    invalid[r] = token < 0;
    tokens[r] = std::max<int64_t>(token, 0);
  }
}

void paceline_rms_norm(const Decoder* decoder, const float* x, const float* weight, int64_t rows, float* out) {
  norm_rows(x, weight, *decoder, rows, out);
}
}

// Tiles of keys and values of many rows, on their way to tensor cores: codes are copied to shared
// memory, and become 16-bit numbers there. A thread decodes what it has copied itself, so both go
// on while other threads multiply the tile before.
#pragma once

#include "kernels/attention/config/attention.h"
#include "kernels/attention/keys.h"
#include "kernels/attention/output.h"
#include "kernels/attention/rows.h"
#include "kernels/numeric/decode_pairs.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::attention {

// ---- Operands of products that kernels of many rows have in shared memory: rows of 16-bit
// numbers, an odd multiple of 16 bytes long, so that eight rows have all banks.

// The thread's index. What follows from it is computed at each use, not kept in registers.
__device__ inline int opaque_thread() { return static_cast<int>(ptx::opaque(threadIdx.x)); }

// The block's queries, several at a time on their way.
template <auto kConfig>
__device__ inline void copy_queries(const AttentionParams& params, const Rows& rows,
                                    unsigned memory, bool flip) {
  constexpr int kPieces = kConfig.key_numbers() / 8, kAll = kConfig.rows() * kPieces, kBatch = 4;
  constexpr int kThreads = kConfig.threads();
#pragma unroll 1
  for (int first = opaque_thread(); first < kAll; first += kBatch * kThreads) {
    unsigned words[kBatch][4];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = first + i * kThreads, piece = index % kPieces;
      if (index >= kAll) break;
      load_query<kConfig.form.head_size>(params, rows, rows.first + index / kPieces, 8 * piece,
                                         flip, words[i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = first + i * kThreads;
      if (index >= kAll) break;
      ptx::store_shared_words(memory +
                                  static_cast<unsigned>(index / kPieces) * kConfig.key_row_bytes() +
                                  static_cast<unsigned>(16 * (index % kPieces)),
                              words[i]);
    }
  }
}

// The address that this lane gives for four matrices of 8 rows of 8 numbers: rows first, then
// numbers, or the other way round.
template <unsigned kRowBytes>
__device__ inline unsigned row_first(unsigned tile) {
  const unsigned lane = threadIdx.x % 32;
  return tile + lane % 16 * kRowBytes + lane / 16 * 16;
}
template <unsigned kRowBytes>
__device__ inline unsigned number_first(unsigned tile) {
  const unsigned lane = threadIdx.x % 32;
  return tile + (lane % 8 + lane / 16 * 8) * kRowBytes + lane / 8 % 2 * 16;
}

// ---- Tiles of keys and values.

// Tiles of a configuration that says where in shared memory they are.
template <auto kConfig>
class Tiles {
  static constexpr AttentionForm kForm = kConfig.form;
  static constexpr int kKeys = kConfig.keys;
  static constexpr int kPieceCodes = 16;
  static constexpr int kPieces = kConfig.code_bytes() / kPieceCodes;  // of a row
  static constexpr bool kHasValues = !kForm.shared_latent;            // beside keys
  static constexpr unsigned kSideBytes = 16 * kConfig.code_pieces();
  static constexpr unsigned kSideScales = 4 * kKeys;

 public:
  // `seen`: keys of the sequence that any row of the block sees.
  __device__ Tiles(const AttentionParams& params, const Rows& rows, int first_key, Range seen)
      : params_(params),
        rows_(rows),
        seen_(seen),
        keys_(params, params.k, rows.sequence, first_key, rows.key_head),
        values_(params, params.v, rows.sequence, first_key, rows.key_head) {}

  // Starts the copies of keys from `first` on, and of their values; zeros where no row sees a key.
  __device__ void copy(int first) const {
#pragma unroll 1
    for (int index = opaque_thread(); index < kKeys * kPieces; index += kConfig.threads()) {
      copy_piece(first, index, codes(index));
    }
    copy_scales(first);
    ptx::copies_commit();
  }

  // Decodes what has arrived of this thread's copies, to numbers of a buffer.
  __device__ void decode(int buffer) const {
#pragma unroll 1
    for (int index = opaque_thread(); index < kKeys * kPieces; index += kConfig.threads()) {
      decode_piece(codes(index), index, buffer);
    }
    move_scales(buffer);
  }

  // Both, one piece after the other, where shared memory has room for one of each thread only.
  __device__ void copy_and_decode(int first, int buffer) const {
    static_assert(kKeys * kPieces >= kConfig.threads(), "who copies scales waits for them");
    const unsigned own = codes(opaque_thread());
    copy_scales(first);
#pragma unroll 1
    for (int index = opaque_thread(); index < kKeys * kPieces; index += kConfig.threads()) {
      copy_piece(first, index, own);
      ptx::copies_commit();
      ptx::copies_wait<0>();
      decode_piece(own, index, buffer);
    }
    move_scales(buffer);
  }

  // The addresses of keys and values in a buffer: rows of numbers, float32 scales.
  static __device__ unsigned keys(int buffer) {
    return memory() + kConfig.numbers_offset() +
           static_cast<unsigned>(buffer * kConfig.buffer_bytes());
  }
  static __device__ unsigned values(int buffer) {
    return keys(buffer) + (kHasValues ? unsigned{kKeys * kConfig.key_row_bytes()} : 0);
  }
  static __device__ unsigned key_scales(int buffer) {
    return arriving_scales() + static_cast<unsigned>(1 + buffer) * 2 * kSideScales;
  }
  static __device__ unsigned value_scales(int buffer) { return key_scales(buffer) + kSideScales; }

 private:
  static __device__ unsigned memory() { return ptx::dynamic_shared_memory(); }
  static __device__ unsigned arriving_scales() { return memory() + kConfig.scales_offset(); }
  static __device__ unsigned codes(int piece) {
    return memory() + static_cast<unsigned>(kConfig.codes_offset() + 16 * piece);
  }

  __device__ bool is_seen(int key) const { return key >= seen_.begin && key < seen_.end; }
  __device__ int page_of_seen(int key) const {
    return is_seen(key) ? page_of<kForm.layout>(params_, rows_.sequence, key) : 0;
  }

  // 16 codes of a key and of its value.
  __device__ void copy_piece(int first, int index, unsigned to) const {
    constexpr int kUnit = kForm.unit();
    const int key = first + index / kPieces, page = page_of_seen(key);
#pragma unroll
    for (int i = 0; i < kPieceCodes; i += kUnit) {
      const int at = index % kPieces * kPieceCodes + i;
      const unsigned unit = to + static_cast<unsigned>(i);
      copy_codes<kForm.copy_bytes>(unit, keys_.row(key, page) + at,
                                   is_seen(key) && at < kForm.head_size);
      if constexpr (kHasValues) {
        copy_codes<kForm.copy_bytes>(unit + kSideBytes, values_.row(key, page) + at,
                                     is_seen(key) && at < kForm.value_size);
      }
    }
  }
  __device__ void copy_scales(int first) const {
    if constexpr (!kConfig.has_scales()) return;
    for (int row = opaque_thread(); row < kKeys; row += kConfig.threads()) {
      const int key = first + row, page = page_of_seen(key);
      const unsigned to = arriving_scales() + static_cast<unsigned>(4 * row);
      if constexpr (kForm.k_scales) {
        ptx::copy_async<4, true>(to, keys_.scale(key, page), is_seen(key));
      }
      if constexpr (kForm.v_scales) {
        ptx::copy_async<4, true>(to + kSideScales, values_.scale(key, page), is_seen(key));
      }
    }
  }

  static __device__ void decode_piece(unsigned from, int index, int buffer) {
    const int piece = index % kPieces;
    const auto row = static_cast<unsigned>(index / kPieces);
    if (piece * kPieceCodes < kConfig.key_numbers()) {
      decode_codes<kForm.k>(from, keys(buffer) + row * kConfig.key_row_bytes(), piece);
    }
    if (kHasValues && piece * kPieceCodes < kConfig.value_numbers()) {
      decode_codes<kForm.v>(from + kSideBytes, values(buffer) + row * kConfig.value_row_bytes(),
                            piece);
    }
  }
  static __device__ void move_scales(int buffer) {
    if constexpr (!kConfig.has_scales()) return;
    for (int row = opaque_thread(); row < kKeys; row += kConfig.threads()) {
      const auto at = static_cast<unsigned>(4 * row);
#pragma unroll
      for (unsigned side = 0; side < 2; ++side) {
        ptx::store_shared_word(key_scales(buffer) + side * kSideScales + at,
                               ptx::load_shared_word(arriving_scales() + side * kSideScales + at));
      }
    }
  }

  // 16 codes to two units of 16 bytes. Of eight neighbouring lanes four store the second one first:
  // so they reach all banks.
  template <DType kFp8>
  static __device__ void decode_codes(unsigned codes, unsigned row, int piece) {
    unsigned words[4], units[2][4];
    ptx::load_shared_words(codes, words);
    const bool second_first = piece & 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned first = numeric::pair_in_units<kFp8, kForm.q>(words[i / 2], i % 2);
      const unsigned second = numeric::pair_in_units<kFp8, kForm.q>(words[2 + i / 2], i % 2);
      units[0][i] = second_first ? second : first;
      units[1][i] = second_first ? first : second;
    }
    const unsigned to = row + static_cast<unsigned>(32 * piece), early = second_first ? 16u : 0u;
    ptx::store_shared_words(to + early, units[0]);
    ptx::store_shared_words(to + (early ^ 16), units[1]);
  }

  const AttentionParams& params_;
  const Rows& rows_;
  const Range seen_;
  const SideRows<kForm.layout> keys_, values_;
};

}  // namespace octofold::attention

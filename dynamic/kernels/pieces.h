// Lists of tensors, cut into pieces that threads share out: a loop over many small tensors begins once.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

struct Piece {
  size_t tensor;
  int64_t begin, count;  // of its values, in the order of memory
};

constexpr int64_t kPieceValues = 1 << 14;  // that one thread takes at once

inline std::vector<Piece> pieces_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (int64_t at = 0; at < tensors[i].numel(); at += kPieceValues)
      pieces.push_back({i, at, std::min(kPieceValues, tensors[i].numel() - at)});
  return pieces;
}

// body(index) for each piece; on one thread where there are no more values than `few`.
template <class Body>
void each_piece(const std::vector<Piece>& pieces, int64_t few, const Body& body) {
  int64_t values = 0;
  for (const auto& piece : pieces) values += piece.count;
  const auto count = static_cast<int64_t>(pieces.size());
  shared_loop(0, count, values <= few ? std::max<int64_t>(count, 1) : 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace lockstep::dynamic

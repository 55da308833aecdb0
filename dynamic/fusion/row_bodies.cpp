// The bodies of reductions of the innermost dim, as PyTorch's kernels compute them (aten/src/ATen/native/ReduceOps.cpp,
// cpu/ReduceOpsKernel.cpp). What they give is one value for each row, with which others of the group go on.
#include <cmath>

#include "dynamic/fusion/body_parts.h"

namespace lockstep::dynamic {

namespace {

using jit::Op;
using Value = OpBody::Value;

Value row_size(OpBody& b) { return b.number_of_call(b.row_size()); }

void sum(OpBody& b) { b.finish(b.sum_of_row(b.in(0))); }
void mean(OpBody& b) { b.finish(b.div(b.sum_of_row(b.in(0)), row_size(b))); }
void amax(OpBody& b) { b.finish(b.largest_of_row(b.in(0))); }

// The corrected two-pass algorithm, as in layer norm; `correction` is 1 where it is not said.
Value variance(OpBody& b, int correction) {
  const Value x = b.in(0), size = row_size(b), apart = b.sub(x, b.div(b.sum_of_row(x), size));
  const Value left = b.sum_of_row(apart), squares = b.sum_of_row(b.mul(apart, apart));
  const Value all = b.binary(Op::k_maximum, b.sub(squares, b.div(b.mul(left, left), size)), b.number(0));
  return b.div(all, b.sub(size, b.argument(correction).isNone() ? b.number(1) : b.scalar(correction)));
}
void var(OpBody& b) { b.finish(variance(b, 2)); }
void std(OpBody& b) { b.finish(b.unary(Op::k_sqrt, variance(b, 2))); }
// PyTorch warns of what is not greater than 0.
bool has_freedom(const Event& event) {
  const double correction = event.args[2].isNone() ? 1 : number_at(event, 2);
  return correction < static_cast<double>(event.signature->inputs[0].sizes.back());
}

void euclidean_norm(OpBody& b) {
  const Value x = b.in(0);
  b.finish(b.unary(Op::k_sqrt, b.sum_of_row(b.mul(x, x))));
}
bool is_euclidean(const Event& event) { return number_at(event, 1) == 2; }

// The innermost dim alone; a tensor of one dim is a row of totals instead.
template <int dims>
bool folds_last_dim(const Event& event) {
  const auto rank = static_cast<int64_t>(event.signature->inputs[0].sizes.size());
  if (rank < 2 || !event.args[dims].isIntList() || !keeps_type(event)) return false;
  const auto given = event.args[dims].toIntVector();
  return given.size() == 1 && (given[0] == -1 || given[0] == rank - 1);
}

OpRow by_row(void (*lower)(OpBody&), bool (*accepts)(const Event&), std::vector<int> scalars = {},
             std::vector<int> statics = {}) {
  OpRow row{lower, std::move(scalars), std::move(statics), accepts, &last_dim_of_first};
  row.gives_rows = true;
  return row;
}

}  // namespace

const OpRows& row_folds() {
  static const OpRows table = {
      {"sum.dim_IntList", by_row(&sum, &folds_last_dim<1>)},
      {"mean.dim", by_row(&mean, &folds_last_dim<1>)},
      {"amax", by_row(&amax, &folds_last_dim<1>)},
      {"var.correction", with_numbers(by_row(&var, &folds_last_dim<1>, {2}), &has_freedom)},
      {"std.correction", with_numbers(by_row(&std, &folds_last_dim<1>, {2}), &has_freedom)},
      {"linalg_vector_norm", with_numbers(by_row(&euclidean_norm, &folds_last_dim<2>, {}, {1}), &is_euclidean)},
  };
  return table;
}

}  // namespace lockstep::dynamic

// What the tables of bodies share: bodies of one operation, and what a row accepts.
#pragma once

#include "dynamic/fusion/op_body.h"

namespace lockstep::dynamic {

// The tables, one for each kind of op.
const OpRows& activation_rows();
const OpRows& loss_rows();
// Those that fold the innermost dim away, beside what these ops are otherwise.
const OpRows& row_folds();

template <jit::Op op>
void unary(OpBody& b) {
  b.finish(b.unary(op, b.in(0)));
}
template <jit::Op op>
void binary(OpBody& b) {
  b.finish(b.binary(op, b.in(0), b.in(1)));
}
template <jit::Op op>
void binary_scalar(OpBody& b) {
  b.finish(b.binary(op, b.in(0), b.scalar(1)));
}

// Of what is made, or written.
inline c10::ScalarType type_of_result(const Event& event) {
  const auto& signature = *event.signature;
  return signature.outputs.empty() ? signature.inputs[0].dtype : signature.outputs[0].dtype;
}
inline bool computes_in_floats(const Event& event) { return c10::isFloatingType(type_of_result(event)); }
inline bool keeps_type(const Event& event) {
  const auto& signature = *event.signature;
  return computes_in_floats(event) && signature.inputs[0].dtype == signature.outputs[0].dtype;
}

inline double number_at(const Event& event, int argument) { return event.args[argument].toScalar().toDouble(); }
// Whether a number that the kernel is made for fits the type of what is computed; for others this is asked at each run.
inline bool is_number_of_result(const Event& event, int argument) {
  const auto type = jit_type(type_of_result(event));
  return type && fits(number_at(event, argument), *type);
}
// A row whose kernel in PyTorch refuses some numbers.
inline OpRow with_numbers(OpRow row, bool (*takes_numbers)(const Event&)) {
  row.takes_numbers = takes_numbers;
  return row;
}

// e^-|x|
OpBody::Value exp_of_distance(OpBody& b, OpBody::Value x);
// log(1 + x) where x is between 0 and 1.
OpBody::Value log_of_one_and(OpBody& b, OpBody::Value x);

// Totals of all rows: whether they are worth one of ours, and the dim of a row.
bool has_rows_of_total(const graph::Signature& signature);
int last_dim_of_first(const Event& event);

}  // namespace lockstep::dynamic

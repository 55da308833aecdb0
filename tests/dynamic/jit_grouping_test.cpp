// Grouping never changes bits: random programs as one kernel and as one kernel an op, on both vector widths.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "dynamic/jit/spec_text.h"
#include "tests/support/jit_kernels.h"

namespace lockstep::dynamic::jit {
namespace {

// What a value's tensor looks like: one element a point, one a kept point, or one a column.
enum class Form { kFull, kKept, kColumn };

struct Space {
  int64_t n, m;
  int reduced;  // dim
  std::vector<int64_t> sizes() const { return {n, m}; }
  std::vector<int64_t> strides(Form form) const {
    if (form == Form::kFull) return {m, 1};
    int kept = 1 - reduced;
    bool is_rows = form == Form::kKept ? kept == 0 : false;
    return is_rows ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1};
  }
  int64_t count(Form form) const { return form == Form::kFull ? n * m : form == Form::kKept && reduced == 1 ? n : m; }
};

struct RandomProgram {
  Space space;
  KernelSpec spec;  // loads and ops; stores are added by the runners
  std::vector<Form> forms;
  std::vector<at::Tensor> inputs;
  std::vector<ValueId> results;
};

const Op kUnaryOps[] = {Op::k_neg,   Op::k_abs,   Op::k_relu,  Op::k_sqrt,
                        Op::k_rsqrt, Op::k_floor, Op::k_round, Op::k_reciprocal};
// Their code depends on how wide registers are.
const Op kFunctionOps[] = {Op::k_exp, Op::k_tanh, Op::k_erf, Op::k_sigmoid, Op::k_log, Op::k_log1p, Op::k_sin, Op::k_expm1};
const Op kBinaryOps[] = {Op::k_add, Op::k_sub, Op::k_mul, Op::k_div, Op::k_minimum, Op::k_maximum};

RandomProgram make_program(uint64_t seed, DType type, bool with_functions) {
  std::mt19937_64 random(seed);
  auto choose = [&](const auto& list) { return list[random() % std::size(list)]; };
  RandomProgram program;
  const int64_t kSizes[] = {1, 3, 16, 31, 40, 100};
  program.space = {choose(kSizes), choose(kSizes), static_cast<int>(random() % 2)};
  KernelSpec& spec = program.spec;
  spec.sizes = program.space.sizes();
  auto options = at::TensorOptions().dtype(scalar_type_of(type));
  for (Form form : {Form::kFull, Form::kFull, Form::kColumn}) {
    if (form == Form::kColumn && program.space.reduced == 0) form = Form::kKept;
    int buffer = spec.add_buffer(type, Access::kIn, program.space.strides(form));
    program.inputs.push_back(at::randn({program.space.count(form)}, options));
    spec.load(buffer);
    program.forms.push_back(form);
  }
  int reduce_count = 0;
  for (int i = 0; i < 14; ++i) {
    ValueId count = static_cast<ValueId>(spec.body.size());
    ValueId a = random() % 3 ? count - 1 - static_cast<ValueId>(random() % std::min(count, 4))
                             : static_cast<ValueId>(random() % count);
    ValueId b = static_cast<ValueId>(random() % count);
    Form form = program.forms[a];
    switch (random() % 8) {
      case 0:
      case 1:
      case 2: {
        Op op = with_functions && random() % 2 == 0 ? choose(kFunctionOps) : choose(kUnaryOps);
        if (op == Op::k_sqrt || op == Op::k_rsqrt || op == Op::k_log || op == Op::k_log1p) {  // else all ends as nan
          a = spec.unary(Op::k_abs, a);
          program.forms.push_back(form);
        }
        spec.unary(op, a);
        break;
      }
      case 3:
      case 4:
      case 5:
      case 6:
        spec.binary(choose(kBinaryOps), a, b);
        form = program.forms[a] == program.forms[b] ? form : Form::kFull;
        break;
      default:
        if (form != Form::kFull || reduce_count == 4) continue;
        ++reduce_count;
        spec.reduce(random() % 3 ? ReduceKind::kSum : ReduceKind::kMax, a, {program.space.reduced});
        form = Form::kKept;
    }
    program.forms.push_back(form);
  }
  ValueId count = static_cast<ValueId>(spec.body.size());
  program.results = {count - 1, count - 2, count - 4};
  return program;
}

// A kept or column value whose own kernel has a space of its own.
int64_t own_store_form(const RandomProgram& program, ValueId value) {
  return program.space.count(program.forms[value]);
}

std::vector<at::Tensor> run_fused(const RandomProgram& program, TargetChoice choice) {
  KernelSpec spec = program.spec;
  std::vector<at::Tensor> tensors = program.inputs;
  std::vector<at::Tensor> results;
  for (ValueId value : program.results) {
    // What is neither full nor kept cannot be stored by a kernel with reductions; it is widened.
    Form form = program.forms[value] == Form::kKept && spec.reduced_mask() ? Form::kKept : Form::kFull;
    int buffer = spec.add_buffer(spec.type_of(value), Access::kOut, program.space.strides(form));
    spec.store(buffer, value);
    results.push_back(at::empty({program.space.count(form)}, program.inputs[0].options()));
    tensors.push_back(results.back());
  }
  auto kernel = compile_or_fail(spec, choice);
  if (kernel) run_on(*kernel, tensors);
  for (size_t i = 0; i < results.size(); ++i) {
    if (program.forms[program.results[i]] != Form::kFull && results[i].numel() == program.space.n * program.space.m) {
      at::Tensor full = results[i].view({program.space.n, program.space.m});
      bool is_rows = program.forms[program.results[i]] == Form::kKept && program.space.reduced == 1;
      results[i] = (is_rows ? full.select(1, 0) : full.select(0, 0)).contiguous();
    }
  }
  return results;
}

std::vector<at::Tensor> run_apart(const RandomProgram& program, TargetChoice choice) {
  std::vector<at::Tensor> values;
  for (ValueId i = 0; i < static_cast<ValueId>(program.spec.body.size()); ++i) {
    const Instruction& instruction = program.spec.body[i];
    if (instruction.op == Op::k_load) {
      values.push_back(program.inputs[instruction.immediate]);
      continue;
    }
    KernelSpec spec;
    bool is_full = program.forms[i] == Form::kFull || instruction.op == Op::k_reduce;
    spec.sizes = is_full ? program.space.sizes() : std::vector<int64_t>{own_store_form(program, i)};
    std::vector<at::Tensor> tensors;
    Instruction own = instruction;
    for (int k = 0; k < row_of(own.op).arity; ++k) {
      ValueId operand = instruction.operands[k];
      auto strides = is_full ? program.space.strides(program.forms[operand]) : std::vector<int64_t>{1};
      own.operands[k] = spec.load(spec.add_buffer(program.spec.type_of(operand), Access::kIn, strides));
      tensors.push_back(values[operand]);
    }
    spec.body.push_back(own);
    auto strides = is_full ? program.space.strides(program.forms[i]) : std::vector<int64_t>{1};
    spec.store(spec.add_buffer(own.type, Access::kOut, strides), static_cast<ValueId>(spec.body.size()) - 1);
    values.push_back(at::empty({program.space.count(program.forms[i])}, program.inputs[0].options()));
    tensors.push_back(values.back());
    auto kernel = compile_or_fail(spec, choice);
    if (kernel) run_on(*kernel, tensors);
  }
  std::vector<at::Tensor> results;
  for (ValueId value : program.results) results.push_back(values[value]);
  return results;
}

int64_t finite_count = 0;
int64_t total_count = 0;

void check_equal(const RandomProgram& program, const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                 const char* what) {
  finite_count += at::isfinite(a[0]).sum().item<int64_t>();
  total_count += a[0].numel();
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(has_same_bits(a[i], b[i])) << what << ", result " << i << "\n" << print_spec(program.spec);
  }
}

TEST(JitGrouping, OneKernelEqualsOneKernelAnOp) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    at::manual_seed(seed);
    RandomProgram program = make_program(seed, seed % 4 == 3 ? DType::kBFloat16 : DType::kFloat32, true);
    check_equal(program, run_fused(program, TargetChoice::kHost), run_apart(program, TargetChoice::kHost), "apart");
    if (HasFailure()) return;
  }
  EXPECT_GT(finite_count * 2, total_count) << "too many programs end as nan to say much";
}

TEST(JitGrouping, BothVectorWidthsAndTailsGiveTheSameBits) {
  for (uint64_t seed = 100; seed < 140; ++seed) {
    at::manual_seed(seed);
    const bool has_functions = seed % 2 == 1;
    RandomProgram program = make_program(seed, seed % 4 == 3 ? DType::kBFloat16 : DType::kFloat32, has_functions);
    auto host = run_fused(program, TargetChoice::kHost);
    if (!has_functions) check_equal(program, host, run_fused(program, TargetChoice::kAvx2), "AVX2");
    check_equal(program, host, run_fused(program, TargetChoice::kCopiedTails), "copied tails");
    if (HasFailure()) return;
  }
}

// The same sums, with sizes static and symbolic, from dense and from padded rows.
TEST(JitGrouping, StridesAndSymbolicSizesChangeNothing) {
  for (int reduced : {0, 1}) {
    for (int64_t m : {5, 48, 5000}) {
      int64_t n = 300;
      at::Tensor dense = at::randn({n, m});
      at::Tensor padded = at::zeros({n, m + 3}).slice(1, 0, m);
      padded.copy_(dense);
      std::vector<at::Tensor> results;
      for (bool is_symbolic : {false, true}) {
        for (const at::Tensor& x : {dense, padded}) {
          KernelSpec spec;
          spec.sizes = is_symbolic ? std::vector<int64_t>{kSymbolic, kSymbolic} : std::vector<int64_t>{n, m};
          int in = spec.add_buffer(DType::kFloat32, Access::kIn, {is_symbolic ? kSymbolic : x.stride(0), 1});
          int out = spec.add_buffer(DType::kFloat32, Access::kOut,
                                    reduced ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1});
          spec.store(out, spec.reduce(ReduceKind::kSum, spec.load(in), {reduced}));
          auto kernel = compile_or_fail(spec);
          ASSERT_TRUE(kernel);
          results.push_back(at::empty({reduced ? n : m}));
          std::vector<int64_t> sizes, strides;
          if (is_symbolic) sizes = {n, m}, strides = {x.stride(0)};
          run_on(*kernel, {x, results.back()}, sizes, strides);
          EXPECT_TRUE(has_same_bits(results.back(), results.front())) << reduced << " " << m << is_symbolic;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::dynamic::jit

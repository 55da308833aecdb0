// Ops that can be fused, each as a kernel of its own against PyTorch's.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "dynamic/fusion/fuser.h"
#include "tests/support/event_case.h"

namespace lockstep::dynamic {

using torch::jit::Stack;

// Nothing on disk: kernels are those of this build.
inline const int no_cache = setenv("LOCKSTEP_CACHE", "", 1);

inline at::Tensor values(at::IntArrayRef sizes) { return at::randn(sizes) * 2; }
inline at::Tensor positive(at::IntArrayRef sizes) { return at::rand(sizes) + 0.1; }
inline at::Tensor truths(at::IntArrayRef sizes) { return at::rand(sizes) > 0.5; }
inline at::Tensor number(double value) {
  auto tensor = at::scalar_tensor(value, at::kDouble);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

inline const c10::IValue kNone;

struct Sample {
  const char* op;
  Stack args;
  double tolerance = 0;  // relative; 0: the same bits
};

inline constexpr double kUlps = 1e-6;

inline at::Tensor copy_keeping_strides(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  auto storage = at::empty({static_cast<int64_t>(tensor.storage().nbytes())}, at::kByte);
  std::memcpy(storage.mutable_data_ptr(), tensor.storage().data(), tensor.storage().nbytes());
  at::Tensor whole = at::empty({0}, tensor.options()).set_(storage.storage(), tensor.storage_offset(), tensor.sizes(),
                                                           tensor.strides());
  return whole;
}

inline Stack copies_of(const Stack& args) {
  Stack copies;
  for (const auto& arg : args) copies.push_back(arg.isTensor() ? c10::IValue(copy_keeping_strides(arg.toTensor())) : arg);
  return copies;
}

inline void expect_near(const at::Tensor& own, const at::Tensor& eager, double tolerance, const std::string& what) {
  ASSERT_EQ(own.sizes(), eager.sizes()) << what;
  ASSERT_EQ(own.scalar_type(), eager.scalar_type()) << what;
  if (tolerance == 0) {
    EXPECT_TRUE(at::equal(own, eager)) << what << (own.to(at::kDouble) - eager.to(at::kDouble)).abs().max();
  } else {
    EXPECT_TRUE(at::allclose(own, eager, tolerance, tolerance, true)) << what << (own - eager).abs().max();
  }
}

// Once to have the kernel compiled, once with it.
inline void run_twice(EventCase& event, const std::string& what) {
  Fuser fuser;
  Event* failed = nullptr;
  event.event.may_be_fused = true;
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(fuser.try_add(event.event)) << what;
    fuser.run(failed);
    KernelService::instance().wait();
  }
}

inline void expect_as_pytorchs(const std::vector<Sample>& samples) {
  at::AutoDispatchBelowADInplaceOrView below;
  int index = 0;
  for (const auto& sample : samples) {
    const std::string what = std::string(sample.op) + " (sample " + std::to_string(index++) + ") ";
    const auto* op = graph::find_op_info(sample.op);
    ASSERT_TRUE(op) << what;
    const uint64_t groups = fusion_statistics.groups.load();
    if (op->writes) {  // on copies: PyTorch's has written one of them already
      Stack eager = copies_of(sample.args), own = copies_of(sample.args);
      EventCase made(sample.op, eager, own);
      ASSERT_TRUE(find_op_row(made.event)) << what;
      Fuser fuser;
      Event* failed = nullptr;
      made.event.may_be_fused = true;
      const auto before = copies_of(own);
      ASSERT_TRUE(fuser.try_add(made.event)) << what;
      fuser.run(failed);  // compiles
      KernelService::instance().wait();
      own[0].toTensor().copy_(before[0].toTensor());
      ASSERT_TRUE(fuser.try_add(made.event)) << what;
      fuser.run(failed);
      expect_near(own[0].toTensor(), eager[0].toTensor(), sample.tolerance, what);
    } else {
      EventCase made(sample.op, sample.args);
      ASSERT_TRUE(find_op_row(made.event)) << what;
      const auto twins = made.event.outputs;  // somebody holds the results
      run_twice(made, what);
      if (::testing::Test::HasFatalFailure()) return;
      for (size_t i = 0; i < made.expected.size(); ++i) {
        expect_near(made.result(i), made.expected[i], sample.tolerance, what);
        EXPECT_EQ(made.result(i).strides(), made.expected[i].strides()) << what;
      }
    }
    EXPECT_GE(fusion_statistics.groups.load(), groups + 1) << what << "did not run as a kernel";
  }
}

// Whether a kernel of ours takes it.
inline bool is_taken(const char* op, const Stack& args) {
  Fuser fuser;  // it knows signatures by their address
  EventCase made(op, args);
  made.event.may_be_fused = true;
  return fuser.try_add(made.event);
}

}  // namespace lockstep::dynamic

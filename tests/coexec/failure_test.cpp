// Ops that fail behind the leading thread, errors by value, waits that are interrupted.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "coexec/session.h"
#include "tests/support/test_host.h"
#include "tests/support/test_ops.h"

namespace lockstep::coexec {
namespace {

using support::at_line;
using support::Call;
using support::test_host;

struct Program {
  Function function;
  at::Tensor x = at::rand({1024});
  at::Tensor before = at::zeros({1024}), after = at::zeros({1024}), fused, later;

  void body() {
    at_line(1);
    before.add_(1);
    at_line(2);
    fused = support::fuse(x);
    at_line(3);
    after.add_(1);
    at_line(4);
    later = fused.mul(2);
  }
  void run() {
    Call call(function);
    body();
    call.end();
  }
};

TEST(Failure, SurfacesAtTheEndAndPoisonsTheRest) {
  Program program;
  program.run();
  {
    support::BlownFuse blown;
    EXPECT_THROW(program.run(), c10::IndexError);
  }
  EXPECT_TRUE(at::equal(program.before, at::full({1024}, 2.0)));
  EXPECT_TRUE(at::equal(program.after, at::full({1024}, 1.0)));
  EXPECT_FALSE(support::session().is_active());
  EXPECT_NE(program.later.const_data_ptr(), nullptr);  // whoever looks finds memory, not a crash
  program.run();  // and the next call is as if nothing had been
  EXPECT_TRUE(at::equal(program.before, at::full({1024}, 3.0)));
  EXPECT_TRUE(at::equal(program.after, at::full({1024}, 2.0)));
  EXPECT_TRUE(at::equal(program.later, program.x.mul(2)));
}

TEST(Failure, KeepsItsMessage) {
  Program program;
  program.run();
  support::BlownFuse blown;
  try {
    program.run();
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("the fuse has blown"), std::string::npos);
  }
}

TEST(Failure, IsForgottenAfterAnExceptionOfTheUser) {
  Program program;
  program.run();
  {
    support::BlownFuse blown;
    Call call(program.function);
    program.body();
  }  // ends quietly: the user's own exception goes on
  EXPECT_FALSE(support::session().runner().has_failed());
  program.run();
  EXPECT_TRUE(at::equal(program.later, program.x.mul(2)));
}

// The reader of a failed value gets the exception while events after it are still pending: they must not run either.
TEST(Failure, SurfacesAtAReadAndPoisonsWhatIsStillPending) {
  Function function;
  const auto x = at::rand({1024});
  auto counter = at::zeros({1024});
  constexpr int kPending = 12000;
  auto body = [&](int count) {
    at_line(1);
    auto open = support::gate(x);
    at_line(2);
    auto fused = support::fuse(open);
    for (int i = 0; i < count; ++i) {
      at_line(3);
      counter.add_(1);
    }
    at_line(4);
    return fused.select(0, 0).item<double>();
  };
  {
    Call first(function);
    body(2);
    first.end();
  }
  support::BlownFuse blown;
  {
    support::ClosedGate closed;
    Call second(function);
    test_host().on_next_wait([] { support::open_gate(); });
    EXPECT_THROW(body(kPending), c10::IndexError);
  }
  EXPECT_EQ(counter[0].item<double>(), 2);
}

// Whoever reads a value that was never computed, once the failure has been dealt with, finds memory and not a crash.
TEST(Failure, LeavesMemoryBehindEveryPlaceholder) {
  Function function;
  const auto x = at::rand({1024});
  at::Tensor fused, later;
  auto body = [&](bool reads) {
    at_line(1);
    fused = support::fuse(x);
    at_line(2);
    later = fused.mul(2);
    at_line(3);
    if (reads) fused.select(0, 0).item<double>();
  };
  {
    Call first(function);
    body(true);
    first.end();
  }
  support::BlownFuse blown;
  Call second(function);
  EXPECT_THROW(body(true), c10::IndexError);
  EXPECT_NE(fused.const_data_ptr(), nullptr);
  EXPECT_NE(later.const_data_ptr(), nullptr);
  at_line(4);
  EXPECT_EQ(later.select(0, 1).item<double>(), 0);
  second.end();
}

TEST(Failure, ByValueIsRaisedWhereEagerRaisesIt) {
  Function function;
  const auto table = at::rand({10, 64});
  auto state = at::zeros({1024});
  auto body = [&](int64_t index) {
    at_line(1);
    state.add_(1);
    at_line(2);
    auto row = table.index_select(0, at::full({2}, index, at::kLong));
    at_line(3);
    state.add_(row.sum().mul(0));
  };
  for (int i = 0; i < 3; ++i) {
    Call call(function);
    body(3);
    call.end();
  }
  {
    Call call(function);
    EXPECT_THROW(body(10), c10::IndexError);
    at_line(2);
    EXPECT_EQ(support::position().line, 2u);
    call.end();  // the handler has dealt with it: nothing is left
  }
  EXPECT_TRUE(at::equal(state, at::full({1024}, 4.0)));
}

TEST(Failure, ByValueMayComeLateWhereThatWasAskedFor) {
  Function function;
  function.waits_for_errors = false;
  const auto table = at::rand({10, 64});
  const auto indices = at::full({100}, 3, at::kLong);
  auto state = at::zeros({1024});
  auto body = [&] {
    at_line(1);
    auto rows = table.index_select(0, indices);
    at_line(2);
    state.add_(1);
  };
  for (int i = 0; i < 2; ++i) {
    Call call(function);
    body();
    call.end();
  }
  indices.fill_(11);
  Call call(function);
  EXPECT_NO_THROW(body());
  EXPECT_THROW(call.end(), c10::IndexError);
  EXPECT_TRUE(at::equal(state, at::full({1024}, 2.0)));
}

TEST(Failure, AnInterruptedWaitLeavesEverythingUsable) {
  Program program;
  Function function;
  at::Tensor y;
  auto body = [&] {
    at_line(1);
    y = support::gate(program.x);
    at_line(2);
    return y.select(0, 3).item<double>();
  };
  {
    Call first(function);
    body();
    first.end();
  }
  {
    support::ClosedGate closed;
    Call second(function);
    test_host().on_next_wait([] { throw support::Interrupted(); });
    EXPECT_THROW(body(), support::Interrupted);
    support::open_gate();
  }
  EXPECT_TRUE(at::equal(y, program.x));
  Call third(function);
  EXPECT_EQ(body(), program.x[3].item<double>());
  third.end();
}

TEST(Failure, WhileTracingIsTheKernelsOwn) {
  Program program;
  support::BlownFuse blown;
  Call call(program.function);
  EXPECT_THROW(program.body(), c10::IndexError);
}

// A runner that was stopped can start again: code may still run while the interpreter shuts down.
TEST(Runner, StartsAgainAfterItWasStopped) {
  Program program;
  program.run();
  program.run();
  support::session().runner().stop();
  EXPECT_FALSE(support::session().runner().is_running());
  program.run();
  program.run();
  EXPECT_TRUE(at::equal(program.before, at::full({1024}, 4.0)));
}

}  // namespace
}  // namespace lockstep::coexec

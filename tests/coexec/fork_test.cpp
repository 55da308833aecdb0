// Forks beside threads that hold several locks at once: neither the fork nor the child waits for ever.
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "coexec/placeholder.h"
#include "dynamic/fusion/kernel_service.h"
#include "dynamic/vm/executor.h"
#include "dynamic/vm/hidden_layout.h"
#include "dynamic/vm/hidden_storage.h"
#include "dynamic/vm/timeline.h"
#include "tests/support/test_host.h"

namespace lockstep::coexec {
namespace {

constexpr unsigned kLimit = 60;  // seconds, after which somebody waits for ever

// What the child made of it.
template <class Body>
int status_of_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLimit);
    body();
    _exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(Fork, BesideAnEventThatAsksForAKernelAndAReadThatRestores) {
  support::session();  // makes the locks known
  auto& service = dynamic::KernelService::instance();
  dynamic::jit::KernelSpec spec;
  spec.sizes = {dynamic::jit::kSymbolic};
  const int x = spec.add_buffer(dynamic::jit::DType::kFloat32, dynamic::jit::Access::kIn, {1});
  const int y = spec.add_buffer(dynamic::jit::DType::kFloat32, dynamic::jit::Access::kOut, {1});
  spec.store(y, spec.unary(dynamic::jit::Op::k_tanh, spec.load(x)));
  service.request(spec);
  service.wait();

  std::atomic<bool> is_over{false};
  std::thread runner([&] {
    while (!is_over) {
      const dynamic::HiddenStorageReader event;
      service.request(spec);
    }
  });
  std::thread leader([&] {
    const auto map = at::randn({1, 2, 3, 3});
    while (!is_over) {
      const auto inner = map.contiguous(at::MemoryFormat::ChannelsLast);
      auto memory = c10::GetCPUAllocator()->allocate(inner.nbytes());
      std::memcpy(memory.get(), inner.const_data_ptr(), inner.nbytes());
      const auto storage = dynamic::create_empty_storage(static_cast<int64_t>(inner.nbytes()));
      dynamic::hide_map(*storage, std::move(memory), map.sizes());
      std::lock_guard lock(links_lock);
      dynamic::restore_from_outside(*storage);
    }
  });
  alarm(kLimit);
  int status = 0;
  for (int i = 0; i < 300 && status == 0; ++i) status = status_of_child([&] { service.request(spec); });
  EXPECT_EQ(status, 0);
  alarm(0);
  is_over = true;
  runner.join();
  leader.join();
}

TEST(Fork, BesideAThreadThatNotesSpans) {
  dynamic::start_timeline();
  std::atomic<bool> is_over{false};
  std::thread noting([&] {
    while (!is_over) dynamic::add_span({});
  });
  int status = 0;
  for (int i = 0; i < 50 && status == 0; ++i) {
    status = status_of_child([] {
      dynamic::start_timeline();
      dynamic::add_span({});
      if (dynamic::stop_timeline().spans.size() != 1) _exit(1);
    });
    dynamic::start_timeline();  // or there would be no room any more
  }
  EXPECT_EQ(status, 0);
  is_over = true;
  noting.join();
  dynamic::stop_timeline();
}

}  // namespace
}  // namespace lockstep::coexec

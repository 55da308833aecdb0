// Maps that the runner keeps with their channels innermost: who takes them so, and who gets them restored.
#include "dynamic/vm/hidden_layout.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <thread>

#include "dynamic/fusion/fuser.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/vm/allocator.h"
#include "tests/support/event_case.h"

namespace lockstep::dynamic {
namespace {

using torch::jit::Stack;

const int no_cache = setenv("LOCKSTEP_CACHE", "", 1);

StorageRef hidden_copy(const at::Tensor& map) {
  const auto inner = map.contiguous(at::MemoryFormat::ChannelsLast);
  auto memory = c10::GetCPUAllocator()->allocate(inner.nbytes());
  std::memcpy(memory.get(), inner.const_data_ptr(), inner.nbytes());
  auto storage = create_empty_storage(static_cast<int64_t>(inner.nbytes()));
  hide_map(*storage, std::move(memory), map.sizes());
  return storage;
}

at::Tensor over(const StorageRef& storage, const at::Tensor& like) {
  return tensor_over(storage, graph::layout_of(like), like.storage_offset());
}

TEST(HiddenLayout, GoesThereAndBack) {
  for (const auto type : {at::kByte, at::kHalf, at::kFloat, at::kDouble, at::kComplexDouble}) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 3, 5, 7}, {1, 17, 16, 33}, {3, 40, 1, 2}}) {
      const auto map = (at::randn(sizes) * 50).abs().to(type);
      const auto storage = hidden_copy(map);
      EXPECT_TRUE(is_hidden(*storage));
      EXPECT_EQ(storage->data(), nullptr);
      EXPECT_TRUE(at::equal(hidden_tensor(*storage, graph::layout_of(map)), map));
      restore(*storage);
      EXPECT_FALSE(is_hidden(*storage));
      EXPECT_TRUE(at::equal(over(storage, map), map));
    }
  }
}

// What a step's peak may come from otherwise: a copy of all maps.
TEST(HiddenLayout, SeveralMapsAreRestoredInTheirOwnMemory) {
  install_pool();
  const PoolScope scope;
  auto& pool = Pool::instance();
  const auto maps = at::randn({16, 24, 20, 30});
  for (const bool is_from_outside : {false, true}) {
    const auto storage = hidden_copy(maps);
    const void* memory = hidden_memory(*storage);
    const size_t used = pool.statistics().used_bytes;
    ASSERT_GE(used, maps.nbytes());
    pool.reset_peak();
    is_from_outside ? restore_from_outside(*storage) : restore(*storage);
    EXPECT_EQ(storage->data(), memory);
    EXPECT_LT(pool.statistics().peak_used_bytes, used + maps.nbytes() / 4);
    EXPECT_TRUE(at::equal(over(storage, maps), maps));
  }
}

TEST(HiddenLayout, IsOfWholeContiguousMapsOnly) {
  const auto map = at::randn({2, 3, 4, 5});
  EXPECT_TRUE(is_map(graph::layout_of(map)));
  for (const auto& other : {at::randn({2, 3, 4}), at::randn({2, 1, 4, 5}), at::randn({2, 3, 1, 1}), map.transpose(2, 3),
                            map.contiguous(at::MemoryFormat::ChannelsLast), at::randn({0, 3, 4, 5})})
    EXPECT_FALSE(is_map(graph::layout_of(other)));
  const auto storage = hidden_copy(map);
  EXPECT_TRUE(is_hidden_map(*storage, graph::layout_of(map), 0));
  EXPECT_FALSE(is_hidden_map(*storage, graph::layout_of(map.view({2, 3, 5, 4})), 0));
  EXPECT_FALSE(is_hidden_map(*storage, graph::layout_of(map.slice(0, 1)), 60));
  EXPECT_FALSE(is_hidden_map(*storage, graph::layout_of(map.view({6, 20})), 0));
}

TEST(HiddenLayout, IsRestoredFromOutsideBetweenEvents) {
  const auto map = at::randn({2, 8, 5, 5});
  const auto storage = hidden_copy(map);
  std::thread outside;
  {
    const HiddenStorageReader event;
    outside = std::thread([&] { restore_from_outside(*storage); });
    for (int i = 0; i < 100; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      ASSERT_TRUE(is_hidden(*storage));
    }
  }
  outside.join();
  EXPECT_TRUE(at::equal(over(storage, map), map));
}

struct HiddenEvents : testing::Test {
  void SetUp() override {
    at::manual_seed(0);
    forced_way.store(1);  // of a convolution: channels innermost
  }
  void TearDown() override { forced_way.store(-1); }

  // An event that was asked in default numerics; operand 0 hidden where `hides`.
  static void prepare(EventCase& made) {
    made.event.is_strict = false;
    made.event.may_be_fused = true;
  }
  static at::Tensor give_hidden(EventCase& made, int operand, const at::Tensor& map) {
    made.event.operands[operand].storage = hidden_copy(map);
    return map;
  }
  static void expect_results(const EventCase& made, double tolerance) {
    for (size_t i = 0; i < made.expected.size(); ++i) {
      if (!made.expected[i].defined()) continue;
      restore(*made.event.outputs[made.signature.outputs[i].storage_group]);
      EXPECT_TRUE(at::allclose(made.result(i), made.expected[i], tolerance, tolerance))
          << made.node.op->name << " result " << i;
      EXPECT_EQ(made.result(i).strides(), made.expected[i].strides());
    }
  }
  static void run(EventCase& made, bool is_pointwise = false) {
    at::AutoDispatchBelowADInplaceOrView below;
    execute(made.event, is_pointwise);
  }
  static bool hides_result(const EventCase& made, int i = 0) { return is_hidden(*made.event.outputs[i]); }
};

const c10::List<int64_t> kOne({1, 1}), kTwo({2, 2}), kNone({0, 0});

TEST_F(HiddenEvents, ConvolutionTakesAndGivesThem) {
  const auto x = at::randn({2, 8, 6, 7}), w = at::randn({5, 8, 3, 3}), b = at::randn({5});
  for (const bool takes : {false, true}) {
    EventCase made("aten::convolution", Stack{x, w, b, kOne, kOne, kOne, false, kNone, int64_t{1}});
    prepare(made);
    if (takes) give_hidden(made, 0, x);
    run(made);
    EXPECT_TRUE(hides_result(made));
    EXPECT_EQ(is_hidden(*made.event.operands[0].storage), takes);
    expect_results(made, 1e-5);
  }
}

TEST_F(HiddenEvents, ConvolutionInPlanesTakesThemToo) {
  const auto x = at::randn({2, 8, 6, 7}), w = at::randn({5, 8, 3, 3}), g = at::randn({2, 5, 6, 7});
  for (int way = 0; way < 4; ++way) {
    forced_way.store(way);
    for (const int hidden : {0, 1, 2, 3}) {  // gradient, input
      EventCase made("aten::convolution_backward", Stack{g, x, w, c10::List<int64_t>({5}), kOne, kOne, kOne, false, kNone,
                                                         int64_t{1}, c10::List<bool>({true, true, true})});
      prepare(made);
      if (hidden & 1) give_hidden(made, 0, g);
      if (hidden & 2) give_hidden(made, 1, x);
      run(made);
      EXPECT_EQ(hides_result(made), (hidden & 2) != 0) << "in the order of the input";
      EXPECT_FALSE(hides_result(made, 1)) << "a weight's gradient is nobody's map";
      expect_results(made, 1e-4);
    }
  }
}

TEST_F(HiddenEvents, BatchNormTakesAndGivesThem) {
  const auto x = at::randn({3, 6, 5, 4}), g = at::randn({3, 6, 5, 4}), w = at::randn({6}), b = at::randn({6});
  EventCase forward("aten::native_batch_norm", Stack{x, w, b, at::Tensor(), at::Tensor(), true, 0.1, 1e-5});
  prepare(forward);
  give_hidden(forward, 0, x);
  run(forward);
  EXPECT_TRUE(hides_result(forward));
  expect_results(forward, 1e-5);
  for (const int hidden : {0, 1, 2, 3}) {
    EventCase backward("aten::native_batch_norm_backward",
                       Stack{g, x, w, at::Tensor(), at::Tensor(), forward.expected[1], forward.expected[2], true, 1e-5,
                             c10::List<bool>({true, true, true})});
    prepare(backward);
    if (hidden & 1) give_hidden(backward, 0, g);
    if (hidden & 2) give_hidden(backward, 1, x);
    run(backward);
    EXPECT_EQ(hides_result(backward), (hidden & 2) != 0);
    expect_results(backward, 1e-4);
  }
}

TEST_F(HiddenEvents, GroupNormTakesAndGivesThem) {
  const auto x = at::randn({3, 6, 5, 4}), g = at::randn({3, 6, 5, 4}), w = at::randn({6}), b = at::randn({6});
  const int64_t n = 3, channels = 6, pixels = 20, groups = 2;
  EventCase forward("aten::native_group_norm", Stack{x, w, b, n, channels, pixels, groups, 1e-5});
  prepare(forward);
  give_hidden(forward, 0, x);
  run(forward);
  EXPECT_TRUE(hides_result(forward));
  expect_results(forward, 1e-5);
  for (const int hidden : {0, 1, 2, 3}) {
    EventCase backward("aten::native_group_norm_backward",
                       Stack{g, x, forward.expected[1], forward.expected[2], w, n, channels, pixels, groups,
                             c10::List<bool>({true, true, true})});
    prepare(backward);
    if (hidden & 1) give_hidden(backward, 0, g);
    if (hidden & 2) give_hidden(backward, 1, x);
    run(backward);
    EXPECT_EQ(hides_result(backward), (hidden & 2) != 0);
    expect_results(backward, 1e-4);
  }
}

TEST_F(HiddenEvents, PoolingKeepsTheOrder) {
  const auto x = at::randn({2, 6, 8, 8});
  EventCase made("aten::max_pool2d_with_indices", Stack{x, kTwo, kTwo, kNone, kOne, false});
  prepare(made);
  give_hidden(made, 0, x);
  run(made);
  EXPECT_TRUE(hides_result(made, 0) && hides_result(made, 1));
  expect_results(made, 0);
}

TEST_F(HiddenEvents, WhoDoesNotKnowThemGetsPlanes) {
  const auto x = at::randn({2, 6, 4, 4});
  EventCase flip("aten::flip", Stack{x, c10::List<int64_t>({2})});
  prepare(flip);
  give_hidden(flip, 0, x);
  run(flip);
  EXPECT_FALSE(is_hidden(*flip.event.operands[0].storage));
  expect_results(flip, 0);

  EventCase product("aten::mm", Stack{x.view({2, 96}), at::randn({96, 3})});
  prepare(product);
  give_hidden(product, 0, x);
  run(product);
  expect_results(product, 1e-5);

  EventCase strict("aten::relu", Stack{x});
  give_hidden(strict, 0, x);
  run(strict, /*is_pointwise=*/true);
  EXPECT_FALSE(hides_result(strict));
  expect_results(strict, 0);
}

TEST_F(HiddenEvents, PointwiseOpsKeepThemWhereAllAreHidden) {
  const auto x = at::randn({2, 6, 4, 4}), y = at::randn({2, 6, 4, 4}), bias = at::randn({6, 1, 1});
  for (const bool both : {false, true}) {
    EventCase made("aten::add.Tensor", Stack{x, y, 2});
    prepare(made);
    give_hidden(made, 0, x);
    if (both) give_hidden(made, 1, y);
    run(made, /*is_pointwise=*/true);
    EXPECT_EQ(hides_result(made), both);
    expect_results(made, 1e-6);
  }
  EventCase broadcast("aten::add.Tensor", Stack{x, bias, 1});
  prepare(broadcast);
  give_hidden(broadcast, 0, x);
  run(broadcast, /*is_pointwise=*/true);
  EXPECT_TRUE(hides_result(broadcast));
  expect_results(broadcast, 1e-6);

  const auto kept = x.clone();
  EventCase in_place("aten::relu_", Stack{x.clone()}, Stack{x});
  prepare(in_place);
  in_place.event.operands[0].storage = hidden_copy(kept);
  run(in_place, /*is_pointwise=*/true);
  EXPECT_TRUE(is_hidden(*in_place.event.operands[0].storage));
  restore(*in_place.event.operands[0].storage);
  EXPECT_TRUE(at::equal(over(in_place.event.operands[0].storage, kept), kept.relu()));
}

// In each way to take the events together, the same maps are hidden: else a convolution of one would show who waited.
TEST_F(HiddenEvents, WhoWaitsTogetherShowsNowhere) {
  const auto x = at::randn({2, 6, 4, 5}), plain = at::randn({2, 6, 4, 5}), other = at::randn({2, 6, 4, 5});
  constexpr int kEvents = 6;
  constexpr unsigned kWays = 1u << (kEvents - 1);
  for (unsigned round = 0; round < 2 * kWays; ++round) {
    const unsigned together = round % kWays;
    if (round == kWays) KernelService::instance().wait();
    EventCase doubled("aten::mul.Tensor", Stack{plain, at::scalar_tensor(2)});
    EventCase rectified("aten::relu", Stack{x});
    EventCase summed("aten::add.Tensor", Stack{rectified.expected[0], doubled.expected[0], 1});
    EventCase bent("aten::tanh", Stack{rectified.expected[0]});
    EventCase alone("aten::neg", Stack{other});
    EventCase last("aten::sigmoid", Stack{summed.expected[0]});
    rectified.event.operands[0].storage = hidden_copy(x);
    summed.event.operands[0].storage = bent.event.operands[0].storage = rectified.event.outputs[0];
    summed.event.operands[1].storage = doubled.event.outputs[0];
    last.event.operands[0].storage = summed.event.outputs[0];
    alone.event.operands[0].storage = hidden_copy(other);
    EventCase* all[kEvents] = {&doubled, &rectified, &alone, &summed, &bent, &last};
    std::vector<StorageRef> wanted;
    Fuser fuser;
    Event* failed = nullptr;
    at::AutoDispatchBelowADInplaceOrView below;
    for (int i = 0; i < kEvents; ++i) {
      prepare(*all[i]);
      wanted.push_back(all[i]->event.outputs[0]);
      if (i > 0 && (together >> (i - 1) & 1) && fuser.try_add(all[i]->event)) continue;
      if (i > 0) fuser.run(failed);
      ASSERT_TRUE(fuser.try_add(all[i]->event));
    }
    fuser.run(failed);
    EXPECT_FALSE(hides_result(doubled)) << together;
    EXPECT_TRUE(hides_result(alone)) << together;
    EXPECT_FALSE(hides_result(rectified)) << together << ": it met a plain one";
    EXPECT_FALSE(hides_result(summed)) << together;
    EXPECT_FALSE(hides_result(bent)) << together;
    EXPECT_FALSE(hides_result(last)) << together;
    for (auto* made : all) expect_results(*made, 1e-6);
  }
}

// A group of maps as they lie is not overtaken by who might restore one of them.
TEST_F(HiddenEvents, NobodyPassesAGroupWithOneOfItsMaps) {
  const auto x = at::randn({2, 6, 4, 5});
  EventCase rectified("aten::relu", Stack{x}), flip("aten::flip", Stack{x, c10::List<int64_t>({2})});
  for (const bool hidden : {false, true}) {
    Fuser fuser;
    for (auto* made : {&rectified, &flip}) prepare(*made);
    if (hidden) give_hidden(rectified, 0, x);
    flip.event.operands[0].storage = rectified.event.operands[0].storage;
    ASSERT_TRUE(fuser.try_add(rectified.event));
    EXPECT_EQ(fuser.is_independent(flip.event), !hidden);
    fuser.clear();
  }
}

// (x + y) * bias, then relu of it in place: as one kernel, and one by one.
TEST_F(HiddenEvents, GroupsKeepThemWhereAllAreHidden) {
  const auto x = at::randn({2, 6, 4, 5}), y = at::randn({2, 6, 4, 5}), bias = at::randn({6, 1, 1});
  for (const int hidden : {1, 2, 3})
    for (const bool compiled : {false, true}) {
      Fuser fuser;
      EventCase sum("aten::add.Tensor", Stack{x, y, 1});
      const auto twin = sum.event.outputs[0];
      EventCase scaled("aten::mul.Tensor", Stack{sum.expected[0], bias});
      scaled.event.operands[0].storage = twin;
      EventCase rectified("aten::relu", Stack{scaled.expected[0]});
      rectified.event.operands[0].storage = scaled.event.outputs[0];
      const auto wanted = rectified.event.outputs[0];
      StorageRef first = hidden & 1 ? hidden_copy(x) : sum.event.operands[0].storage;
      StorageRef second = hidden & 2 ? hidden_copy(y) : sum.event.operands[1].storage;
      sum.event.operands[0].storage = first;
      sum.event.operands[1].storage = second;
      if (compiled) KernelService::instance().wait();
      for (auto* made : {&sum, &scaled, &rectified}) {
        prepare(*made);
        ASSERT_TRUE(fuser.try_add(made->event));
      }
      Event* failed = nullptr;
      at::AutoDispatchBelowADInplaceOrView below;
      fuser.run(failed);
      EXPECT_EQ(is_hidden(*wanted), hidden == 3);
      EXPECT_EQ(is_hidden(*first), hidden == 3);
      for (auto* made : {&sum, &rectified}) expect_results(*made, 1e-6);  // what is between them is held by nobody
    }
}

}  // namespace
}  // namespace lockstep::dynamic

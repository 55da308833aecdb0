#include "dynamic/vm/replay.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "dynamic/vm/ambient.h"

namespace lockstep::dynamic {
namespace {

const char kGraph[] = R"(lockstep-graph 1
node 0 entry
  edge 2 count 1
node 1 exit
node 2 aten::t @1
  operand 0 feed "x"
  edge 3 count 1
node 3 aten::mul.Tensor @2
  operand 0 feed "x"
  operand 1 varies
  edge 4 count 1
node 4 aten::add_.Scalar @3
  const 1 0x1p+0
  const 2 1
  operand 0 node 3 output 0
  edge 5 count 1
  edge 4 count 1
node 5 aten::sum @4
  operand 0 node 3 output 0
  edge 6 count 1
node 6 aten::_local_scalar_dense @5
  operand 0 node 5 output 0
  edge 1 count 1
)";

// x = [[1, 2], [3, 4]]: (x * x.t() + 1 + 2).sum() = 29 + 12
const char kWay[] = R"(lockstep-way 2
feed 0 16 0 0
event 2
  in 0 f32[2,2;2,1]+0/16
  out 0 f32[2,2;1,2]+0/16
event 3
  in 0 f32[2,2;2,1]+0/16
  in 0 f32[2,2;1,2]+0/16
  out 1 f32[2,2;2,1]+0/16
event 4
  in 1 f32[2,2;2,1]+0/16
event 4
  arg 1 0x1p+1
  in 1 f32[2,2;2,1]+0/16
event 5
  in 1 f32[2,2;2,1]+0/16
  out 2 f32[;]+0/4
event 6
  in 2 f32[;]+0/4
  value 0x1.48p+5
end
expect 1 16 0
complete
)";

template <size_t kSize>
std::string bytes_of(const float (&values)[kSize]) {
  return {reinterpret_cast<const char*>(values), sizeof(values)};
}

RecordedCall make_call(const std::string& way) {
  RecordedCall call;
  call.graph = graph::parse_graph(kGraph);
  parse_way(way, call);
  call.feeds = bytes_of({1, 2, 3, 4});
  call.expected_bytes = bytes_of({4, 9, 9, 19});
  return call;
}

std::string replaced(std::string text, const std::string& old, const std::string& by) {
  const size_t at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return text.replace(at, old.size(), by);
}

TEST(Replay, RunsAWayBitForBit) {
  auto call = make_call(kWay);
  const auto report = replay(call);
  EXPECT_FALSE(report.failure) << *report.failure;
  EXPECT_EQ(report.event_count, 6u);
  EXPECT_EQ(report.feed_count, 1u);
  EXPECT_EQ(report.fetch_count, 1u);
  EXPECT_EQ(report.expected_count, 1u);
}

TEST(Replay, FindsWhatDiffers) {
  const struct {
    const char *old, *by, *words;
  } cases[] = {
      {"value 0x1.48p+5", "value 0x1.5p+6", "aten::_local_scalar_dense"},
      {"arg 1 0x1p+1", "arg 1 0x1p+2", "fetched"},
      {"out 0 f32[2,2;1,2]", "out 0 f32[2,2;2,1]", "event 1, aten::t"},
      {"event 5\n", "event 5 throws\n", "did not raise"},
      {"in 0 f32[2,2;1,2]", "in 0 f32[3;1]", "raised"},
      {"end\nexpect 1", "end\nexpect 0", "storage 0"},
  };
  for (const auto& c : cases) {
    auto call = make_call(replaced(kWay, c.old, c.by));
    const auto report = replay(call);
    ASSERT_TRUE(report.failure) << c.by;
    EXPECT_NE(report.failure->find(c.words), std::string::npos) << *report.failure;
  }
}

TEST(Replay, NamesTheFirstEventThatLeftOtherBytes) {
  auto way = replaced(kWay, "event 4\n  in 1 f32[2,2;2,1]+0/16\n",
                      "event 4\n  in 1 f32[2,2;2,1]+0/16\n  after 1 16 123\n");
  auto call = make_call(replaced(way, "expect 1 16 0", "expect 0 16 0"));
  const auto report = replay(call);
  ASSERT_TRUE(report.failure);
  EXPECT_NE(report.failure->find("event 3, aten::add_.Scalar"), std::string::npos) << *report.failure;
}

TEST(Replay, RefusesARecordingThatContradictsItself) {
  const struct {
    const char *old, *by, *words;
  } cases[] = {
      {"event 3\n", "event 6\n", "no edge from node 2 to 6"},
      {"event 2\n", "event 99\n", "no op is node 99"},
      {"feed 0 16 0 0", "feed 0 16 8 0", "beyond the end"},
      {"in 2 f32", "in 7 f32", "storage 7 has no data"},
      {"arg 1 ", "arg 9 ", "no argument 9"},
      {"  value 0x1.48p+5\n", "", "is missing"},
  };
  for (const auto& c : cases) {
    auto call = make_call(replaced(kWay, c.old, c.by));
    try {
      replay(call);
      ADD_FAILURE() << c.by << " was accepted";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(c.words), std::string::npos) << error.what();
    }
  }
}

TEST(Replay, AWayThatCannotBeReadNamesTheLine) {
  for (const char* bad :
       {"", "lockstep-way 1\ncomplete\n", "lockstep-way 2\nend\n", "lockstep-way 2\nfeed 0\ncomplete\n",
        "lockstep-way 2\nin 3 f32[;]+0/4\ncomplete\n", "lockstep-way 2\nevent 2\n  in 0 f33[;]+0/4\ncomplete\n",
        "lockstep-way 2\nevent 2\n  in 0 f32[;]+0/4 same 0\ncomplete\n", "lockstep-way 2\nend now\ncomplete\n",
        "lockstep-way 2\nevent 2\n  out 0 f32[4,4;600,1]+0/64\ncomplete\n",
        "lockstep-way 2\nevent 2\n  out 0 f32[4;1]+1/16\ncomplete\n"}) {
    RecordedCall call;
    EXPECT_THROW(parse_way(bad, call), graph::TextError) << bad;
  }
  EXPECT_THROW(read_recorded_call("no/such/folder"), std::runtime_error);
}

TEST(Replay, DrawsFromTheRecordedState) {
  auto generator = at::detail::createCPUGenerator(5);
  const auto state = generator.get_state();
  const std::string bytes(static_cast<const char*>(state.const_data_ptr()), state.numel());
  RecordedCall call;
  call.graph = graph::parse_graph(
      "lockstep-graph 1\nnode 0 entry\n  edge 2 count 1\nnode 1 exit\nnode 2 aten::rand.generator @1\n"
      "  const 0 int[3]\n  edge 1 count 1\n");
  const auto size = std::to_string(bytes.size());
  parse_way("lockstep-way 2\nstate 1 " + size + " 0 \nevent 2\n  generator 1 1\n  out 0 f32[3;1]+0/12\nend\n"
            "expect 0 12 0\nexpect_state 1 " + size + " 12\ncomplete\n", call);
  call.feeds = bytes;
  const auto drawn = at::rand({3}, generator);
  call.expected_bytes.assign(static_cast<const char*>(drawn.const_data_ptr()), 12);
  const auto after = generator.get_state();
  call.expected_bytes.append(static_cast<const char*>(after.const_data_ptr()), after.numel());
  const auto report = replay(call);
  EXPECT_FALSE(report.failure) << *report.failure;
  EXPECT_EQ(report.expected_count, 2u);
}

TEST(Ambient, WhatIsReadCanBeApplied) {
  const auto before = print_ambient(read_ambient());
  EXPECT_NO_THROW(apply_ambient(before));
  apply_ambient("float_mode=32832");
  EXPECT_NE(print_ambient(read_ambient()), before);
  apply_ambient("float_mode=0");
  EXPECT_EQ(print_ambient(read_ambient()), before);
  EXPECT_THROW(apply_ambient("no_such_state=1"), std::runtime_error);
  EXPECT_THROW(apply_ambient("threads=many"), std::runtime_error);
}

TEST(HashStorage, TellsBytesAndLengthsApart) {
  const char bytes[17] = "0123456789abcdef";
  EXPECT_EQ(hash_storage(bytes, 16), hash_storage(bytes, 16));
  EXPECT_NE(hash_storage(bytes, 16), hash_storage(bytes, 15));
  EXPECT_NE(hash_storage("\0\0", 1), hash_storage("\0\0", 2));
  EXPECT_EQ(hash_storage(nullptr, 0), hash_storage(nullptr, 0));
}

}  // namespace
}  // namespace lockstep::dynamic

// One recorded call, as coexec/call_recorder.h writes it into a folder and replay.h runs it:
//
//   graph.txt      the TraceGraph after the call (graph/text.h)
//   way.txt        the way taken through it, and where the feeds come in; a step a line, below
//   feeds.bin      bytes that the call did not make: contents of storages, states of generators
//   expected.bin   bytes afterwards: storages that were still alive, states of generators
//
//   lockstep-way 2                        format version
//   ambient threads=2 default_dtype=6 ... the state that kernels read besides their arguments, from here on
//   state 0 5056 0                        generator 0 (the default one) has 5056 bytes of state at 0 of feeds.bin
//   feed 3 4096 5056 16                   storage 3 has 4096 bytes at 5056 of feeds.bin; its address modulo 64 is 16
//   event 5 opaque throws                 node 5; `opaque`: cannot be run without the program (its results are fed
//                                         where they are used), `throws`: the kernel raised
//     arg 2 0x1p-3                        argument 2, where it is not the node's constant (graph/value_text.h)
//     generator 1 0                       argument 1 is generator 0
//     list 0 3                            argument 0 is a list of 3 tensors
//     in 3 f32[2;1]+0/8                   a tensor, in argument order: storage and layout; `in none`: undefined
//     in 3 f32[2;1]+0/8 same 0            ... and it is the very tensor of `in` line 0 of this event
//     out 7 f32[2;1]+0/8                  a result that is no argument: an alias if storage 7 is known, else new
//     value 0x1p+0                        a result that is no tensor: fetched
//     after 7 8 1f00c3a5                  the first 8 bytes of storage 7 have this hash (hash_storage)
//   end                                   the call ends: an edge to the exit
//   expect 7 8 0                          storage 7 begins with the 8 bytes at 0 of expected.bin
//   expect_state 0 5056 8                 and generator 0 this state
//   complete                              nothing is cut off
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "graph/text.h"

namespace lockstep::dynamic {

constexpr uint32_t kWayVersion = 2;
constexpr size_t kFeedAlignment = 64;  // bytes; kernels may choose their way by the address modulo this

uint64_t hash_storage(const void* data, size_t bytes);

struct AmbientStep {
  std::string text;
};
// Bytes of a file: storage or generator `id`.
struct Chunk {
  uint64_t id = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  uint64_t misalignment = 0;
};
struct FeedStep : Chunk {};
struct StateStep : Chunk {};

struct TensorRecord {
  static constexpr uint64_t kNone = ~0ull;
  uint64_t storage = kNone;
  graph::Layout layout;
  int64_t same_as = -1;  // of an input: an earlier one
};
struct AfterRecord {
  uint64_t storage = 0;
  uint64_t bytes = 0;
  uint64_t hash = 0;
};

struct EventStep {
  size_t line = 0;  // of way.txt
  uint64_t node = 0;
  bool is_opaque = false;
  bool throws = false;
  std::vector<std::pair<uint64_t, c10::IValue>> args;
  std::vector<std::pair<uint64_t, uint64_t>> generators;  // argument, generator
  std::vector<std::pair<uint64_t, uint64_t>> lists;       // argument, length
  std::vector<TensorRecord> in;
  std::vector<TensorRecord> out;
  std::vector<c10::IValue> values;
  std::vector<AfterRecord> after;
};
struct EndStep {};
using Step = std::variant<AmbientStep, FeedStep, StateStep, EventStep, EndStep>;

struct RecordedCall {
  graph::ParsedGraph graph;
  std::vector<Step> steps;
  std::vector<Chunk> expected;
  std::vector<Chunk> expected_states;
  std::string feeds;           // the bytes of feeds.bin
  std::string expected_bytes;  // and of expected.bin

  // `size` bytes at `offset` of one of them; throws std::runtime_error beyond its end.
  static const char* bytes_at(const std::string& file, const Chunk& chunk);
};

// Throws graph::TextError or std::runtime_error, with the file.
RecordedCall read_recorded_call(const std::string& folder);
// The steps and expectations of a way; throws graph::TextError.
void parse_way(std::string_view text, RecordedCall& call);

}  // namespace lockstep::dynamic

// Where in the program an op stands. The key names the frames from the innermost one out to the first that is not
// library code; an op of a backward pass is named by the forward event whose autograd node is running.
#pragma once

#include <cstdint>
#include <string>

#include "graph/trace_graph.h"

namespace lockstep::tracer {

struct LocationDetails {
  std::string where;     // file:line in function, of the first frame that is not library code
  std::string api_call;  // outermost library function below it: the call of the PyTorch API
  bool is_plain_bool = false;
};

// Reads the program counter of whoever leads; the interpreter's one stands in python_frames.cpp, tests bring their own.
class ProgramCounter {
 public:
  virtual ~ProgramCounter() = default;
  struct Reading {
    uint64_t key = 0;
    bool in_engine = false;   // the innermost frame only waits for autograd's engine: backward code runs in C++
    bool unrecorded = false;  // code at a random place: a finalizer
  };
  virtual Reading read() = 0;
  virtual LocationDetails describe() = 0;  // of the place that `read` has just read; only while tracing
};

// Maps the running autograd node to the forward event that made it. One for each session.
class BackwardLocator {
 public:
  // After an op was asked in a forward pass: the autograd node made for it, if any, belongs to `node`.
  void note_forward(const graph::Node* node, uint32_t function);
  struct Reading {
    bool in_backward = false;
    uint64_t key = 0;
    int64_t forward_node = -1;
    std::string (*name)() = nullptr;  // of the running autograd node
  };
  Reading read(bool in_engine, uint32_t function);
  void reset();

 private:
  static constexpr size_t kRemembered = 1 << 16;  // autograd nodes; an older one is named by its kind
  struct Entry {
    uint64_t sequence = ~0ull;
    uint32_t node = 0;
    uint32_t function = 0;  // whose graph the node belongs to
  };
  std::vector<Entry> entries_;
  uint64_t last_peek_ = 0;
  const void* running_ = nullptr;
  uint64_t running_sequence_ = 0;
  uint32_t ordinal_ = 0;
};

}  // namespace lockstep::tracer

// Programs in text, of ops on tensors. What a line names is held until it is dropped.
//
//   way 1                                       of the kernels that have several ways (dynamic/kernels/kernel_choice.h)
//   %x = input f32 [50, 40]                     numbers of a normal distribution, small whole ones, truth values
//   %y = input f32 [40, 50] strides [1, 40]
//   %k = input i64 [50] below 40
//   %v = input f32 [50] positive
//   %0 = mul.Tensor %x %x                       of aten; arguments as the schema has them, the last may be left out
//   %1, %mean, %rstd = native_layer_norm %0 [40] none none 1e-5
//   add_.Tensor %x %1 2
//   drop %0 %mean                               Python lets go
//   read %1                                     Python looks at the values
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/op_info.h"

namespace lockstep::support {

class TextProgram {
 public:
  using Values = std::map<std::string, at::Tensor>;
  enum class Kind : uint8_t { kInput, kOp, kDrop, kRead };
  struct Argument {
    c10::IValue constant;
    std::vector<std::string> names;  // of tensors
    bool is_list = false;
  };
  struct Line {
    Kind kind = Kind::kOp;
    std::vector<std::string> names;  // of results; what is dropped or read
    const graph::OpInfo* op = nullptr;
    std::vector<Argument> arguments;
    at::Tensor value;                // of an input
  };

  // Without a value where the text is no program; `reason` then says line and cause.
  static std::optional<TextProgram> parse(const std::string& text, std::string* reason);

  Values create_inputs() const;  // the same values each time
  // From the same state of the generator. Each op at a line of its own (at_line): its index in lines() and one. `drops`: lines that drop do so.
  void run(Values& values, bool drops = true) const;
  const std::vector<Line>& lines() const { return lines_; }
  int way() const { return way_; }
  // Whether the values have eager's bits whichever kernels run.
  bool is_exact(const std::string& name) const { return exact_.at(name); }

 private:
  const char* find_unknown(const Line& line);
  void note_exact(const Line& line);

  std::vector<Line> lines_;
  std::set<std::string> held_;  // at the end
  std::map<std::string, bool> exact_;
  int way_ = 0;
};

}  // namespace lockstep::support

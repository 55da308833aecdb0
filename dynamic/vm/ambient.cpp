#include "dynamic/vm/ambient.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/log.h>
#include <ATen/ops/ones.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <xmmintrin.h>

#include <charconv>
#include <stdexcept>

#include "dynamic/vm/event.h"

namespace lockstep::dynamic {

namespace {

using at::Float32Backend;
using at::Float32Op;

template <Float32Backend kBackend, Float32Op kOp>
int64_t read_precision() {
  return static_cast<int64_t>(at::globalContext().float32Precision(kBackend, kOp));
}
template <Float32Backend kBackend, Float32Op kOp>
void write_precision(int64_t value) {
  at::globalContext().setFloat32Precision(kBackend, kOp, static_cast<at::Float32Precision>(value));
}

struct Item {
  const char* name;
  int64_t (*read)();
  void (*write)(int64_t);
};

const Item kItems[] = {
    {"threads", [] { return static_cast<int64_t>(at::get_num_threads()); },
     [](int64_t v) { at::set_num_threads(static_cast<int>(v)); }},
    {"default_dtype", [] { return static_cast<int64_t>(c10::get_default_dtype_as_scalartype()); },
     [](int64_t v) { c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(v))); }},
    {"float_mode", [] { return static_cast<int64_t>(_mm_getcsr() & kFloatModeBits); },
     [](int64_t v) { _mm_setcsr((_mm_getcsr() & ~kFloatModeBits) | static_cast<unsigned>(v)); }},
    {"grad_mode", [] { return static_cast<int64_t>(c10::GradMode::is_enabled()); },
     [](int64_t v) { c10::GradMode::set_enabled(v); }},
    {"deterministic",
     [] {
       const auto& c = at::globalContext();
       return static_cast<int64_t>(c.deterministicAlgorithms() | c.deterministicAlgorithmsWarnOnly() << 1);
     },
     [](int64_t v) { at::globalContext().setDeterministicAlgorithms(v & 1, v & 2); }},
    {"fill_uninitialized",
     [] { return static_cast<int64_t>(at::globalContext().deterministicFillUninitializedMemory()); },
     [](int64_t v) { at::globalContext().setDeterministicFillUninitializedMemory(v); }},
    {"mkldnn", [] { return static_cast<int64_t>(at::globalContext().userEnabledMkldnn()); },
     [](int64_t v) { at::globalContext().setUserEnabledMkldnn(v); }},
    {"mkldnn_deterministic", [] { return static_cast<int64_t>(at::globalContext().deterministicMkldnn()); },
     [](int64_t v) { at::globalContext().setDeterministicMkldnn(v); }},
    {"flash_sdp", [] { return static_cast<int64_t>(at::globalContext().userEnabledFlashSDP()); },
     [](int64_t v) { at::globalContext().setSDPUseFlash(v); }},
    {"math_sdp", [] { return static_cast<int64_t>(at::globalContext().userEnabledMathSDP()); },
     [](int64_t v) { at::globalContext().setSDPUseMath(v); }},
    {"float32_all", &read_precision<Float32Backend::GENERIC, Float32Op::ALL>,
     &write_precision<Float32Backend::GENERIC, Float32Op::ALL>},
    {"float32_matmul", &read_precision<Float32Backend::MKLDNN, Float32Op::MATMUL>,
     &write_precision<Float32Backend::MKLDNN, Float32Op::MATMUL>},
    {"float32_conv", &read_precision<Float32Backend::MKLDNN, Float32Op::CONV>,
     &write_precision<Float32Backend::MKLDNN, Float32Op::CONV>},
    {"float32_rnn", &read_precision<Float32Backend::MKLDNN, Float32Op::RNN>,
     &write_precision<Float32Backend::MKLDNN, Float32Op::RNN>},
};

}  // namespace

std::vector<std::pair<const char*, int64_t>> read_ambient() {
  std::vector<std::pair<const char*, int64_t>> state;
  for (const auto& item : kItems) state.emplace_back(item.name, item.read());
  return state;
}

std::string print_ambient(const std::vector<std::pair<const char*, int64_t>>& state) {
  std::string out;
  for (const auto& [name, value] : state) out += (out.empty() ? "" : " ") + std::string(name) + '=' + std::to_string(value);
  return out;
}

void apply_ambient(std::string_view text) {
  while (!text.empty()) {
    const auto word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const auto name = word.substr(0, word.find('='));
    int64_t value = 0;
    const char* number = word.data() + std::min(word.size(), name.size() + 1);
    bool is_known = std::from_chars(number, word.data() + word.size(), value).ec == std::errc();
    if (is_known) {
      is_known = false;
      for (const auto& item : kItems) {
        if (name != item.name) continue;
        is_known = true;
        if (item.read() != value) item.write(value);
      }
    }
    if (!is_known) throw std::runtime_error("no ambient state is called '" + std::string(word) + "'");
  }
}

void settle_vector_math() {
  const c10::NoGradGuard no_grad;
  at::log(at::ones({16}, at::kFloat));
}

}  // namespace lockstep::dynamic

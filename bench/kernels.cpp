// Bytes a second of kernels, generated ones and others, beside ATen's own and copies, on data that does not fit the cache.
// Traffic is the least that the algorithm needs: inputs and outputs once, batch norm's input twice. Not a test; needs an
// idle machine.
//
//   ninja -C build lockstep_bench_kernels && build/lockstep_bench_kernels [megabytes of the main tensor, 128] [part of
//   a name]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <immintrin.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>

#include "dynamic/jit/compiler.h"
#include "dynamic/kernels/batch_norm.h"

using namespace lockstep::dynamic::jit;

namespace {

std::vector<double> compile_times_ms;

double seconds(const std::function<void()>& work) {
  auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double best_of(int count, const std::function<void()>& work) {
  double best = 1e9;
  work();
  for (int i = 0; i < count; ++i) best = std::min(best, seconds(work));
  return best;
}

struct Program {
  KernelSpec spec;
  std::vector<at::Tensor> tensors;

  int add(const at::Tensor& tensor, std::vector<int64_t> strides, Access access, bool streaming = false) {
    tensors.push_back(tensor);
    return spec.add_buffer(DType::kFloat32, access, std::move(strides), streaming);
  }
  ValueId number(double value) { return spec.constant(DType::kFloat32, value); }
  ValueId add(ValueId a, ValueId b) { return spec.binary(Op::k_add, a, b); }
  ValueId sub(ValueId a, ValueId b) { return spec.binary(Op::k_sub, a, b); }
  ValueId mul(ValueId a, ValueId b) { return spec.binary(Op::k_mul, a, b); }
  ValueId div(ValueId a, ValueId b) { return spec.binary(Op::k_div, a, b); }
  ValueId sum(ValueId a, std::vector<int> dims) { return spec.reduce(ReduceKind::kSum, a, dims); }
};

struct Case {
  const char* name;
  double bytes;
  Program ours;
  std::function<void()> eager;
  std::function<void()> own = nullptr;  // a kernel that is not generated, instead of `ours`
};

// 64 bytes an item, in registers that every host has: memory is the bound.
void copy_plain(float* to, const float* from, int64_t count) {
  at::parallel_for(0, count / 16, 2048, [&](int64_t begin, int64_t end) {
    for (int64_t i = 2 * begin; i < 2 * end; ++i) _mm256_storeu_ps(to + 8 * i, _mm256_loadu_ps(from + 8 * i));
  });
}

void copy_streaming(float* to, const float* from, int64_t count) {
  at::parallel_for(0, count / 16, 2048, [&](int64_t begin, int64_t end) {
    for (int64_t i = 2 * begin; i < 2 * end; ++i) _mm256_stream_ps(to + 8 * i, _mm256_loadu_ps(from + 8 * i));
    _mm_sfence();
  });
}

Case layer_norm(const at::Tensor& x, bool streams) {
  int64_t n = x.size(0), m = x.size(1);
  at::Tensor w = at::randn({m}), b = at::randn({m}), y = at::empty_like(x), mean = at::empty({n}),
             rstd = at::empty({n});
  Program p;
  p.spec.sizes = {n, m};
  int xb = p.add(x, {m, 1}, Access::kIn), wb = p.add(w, {0, 1}, Access::kIn), bb = p.add(b, {0, 1}, Access::kIn);
  int yb = p.add(y, {m, 1}, Access::kOut, streams);
  int mb = p.add(mean, {1, 0}, Access::kOut), rb = p.add(rstd, {1, 0}, Access::kOut);
  ValueId v = p.spec.load(xb);
  ValueId mu = p.mul(p.sum(v, {1}), p.number(1.0 / m));
  ValueId c = p.sub(v, mu);
  ValueId r = p.spec.unary(Op::k_rsqrt, p.add(p.mul(p.sum(p.mul(c, c), {1}), p.number(1.0 / m)), p.number(1e-5)));
  p.spec.store(yb, p.add(p.mul(p.mul(c, r), p.spec.load(wb)), p.spec.load(bb)));
  p.spec.store(mb, mu);
  p.spec.store(rb, r);
  return {"layer norm", 8.0 * n * m, p, [=] { at::native_layer_norm(x, {m}, w, b, 1e-5); }};
}

Case layer_norm_input_gradient(const at::Tensor& x, bool streams) {
  int64_t n = x.size(0), m = x.size(1);
  at::Tensor g = at::randn_like(x), w = at::randn({m}), dx = at::empty_like(x);
  at::Tensor mean = at::randn({n, 1}), rstd = at::rand({n, 1});
  Program p;
  p.spec.sizes = {n, m};
  int gb = p.add(g, {m, 1}, Access::kIn), xb = p.add(x, {m, 1}, Access::kIn);
  int mb = p.add(mean, {1, 0}, Access::kIn), rb = p.add(rstd, {1, 0}, Access::kIn), wb = p.add(w, {0, 1}, Access::kIn);
  int db = p.add(dx, {m, 1}, Access::kOut, streams);
  ValueId r = p.spec.load(rb);
  ValueId hat = p.mul(p.sub(p.spec.load(xb), p.spec.load(mb)), r);
  ValueId gw = p.mul(p.spec.load(gb), p.spec.load(wb));
  ValueId m1 = p.mul(p.sum(gw, {1}), p.number(1.0 / m));
  ValueId m2 = p.mul(p.sum(p.mul(gw, hat), {1}), p.number(1.0 / m));
  p.spec.store(db, p.mul(p.sub(p.sub(gw, m1), p.mul(hat, m2)), r));
  return {"layer norm backward, input", 12.0 * n * m, p,
          [=] { at::native_layer_norm_backward(g, x, {m}, mean, rstd, w, w, {true, false, false}); }};
}

Case layer_norm_weight_gradient(const at::Tensor& x) {
  int64_t n = x.size(0), m = x.size(1);
  at::Tensor g = at::randn_like(x), w = at::randn({m}), mean = at::randn({n, 1}), rstd = at::rand({n, 1});
  Program p;
  p.spec.sizes = {n, m};
  int gb = p.add(g, {m, 1}, Access::kIn), xb = p.add(x, {m, 1}, Access::kIn);
  int mb = p.add(mean, {1, 0}, Access::kIn), rb = p.add(rstd, {1, 0}, Access::kIn);
  int wb = p.add(at::empty({m}), {0, 1}, Access::kOut), bb = p.add(at::empty({m}), {0, 1}, Access::kOut);
  ValueId gv = p.spec.load(gb);
  ValueId hat = p.mul(p.sub(p.spec.load(xb), p.spec.load(mb)), p.spec.load(rb));
  p.spec.store(wb, p.sum(p.mul(gv, hat), {0}));
  p.spec.store(bb, p.sum(gv, {0}));
  return {"layer norm backward, weights", 8.0 * n * m, p,
          [=] { at::native_layer_norm_backward(g, x, {m}, mean, rstd, w, w, {false, true, true}); }};
}

Case softmax(const at::Tensor& x, bool streams) {
  int64_t n = x.size(0), m = x.size(1);
  at::Tensor y = at::empty_like(x);
  Program p;
  p.spec.sizes = {n, m};
  int xb = p.add(x, {m, 1}, Access::kIn), yb = p.add(y, {m, 1}, Access::kOut, streams);
  ValueId v = p.spec.load(xb);
  ValueId e = p.spec.unary(Op::k_exp_nonpositive, p.sub(v, p.spec.reduce(ReduceKind::kMaxNumber, v, {1})));
  p.spec.store(yb, p.mul(e, p.div(p.number(1), p.sum(e, {1}))));
  return {"softmax", 8.0 * n * m, p, [=] { at::_softmax(x, 1, false); }};
}

Case gelu(const at::Tensor& x, bool streams, bool tanh) {
  int64_t n = x.size(0), m = x.size(1);
  at::Tensor b = at::randn({m}), r = at::randn_like(x), y = at::empty_like(x);
  Program p;
  p.spec.sizes = {n, m};
  int xb = p.add(x, {m, 1}, Access::kIn), bb = p.add(b, {0, 1}, Access::kIn), rb = p.add(r, {m, 1}, Access::kIn);
  int yb = p.add(y, {m, 1}, Access::kOut, streams);
  ValueId v = p.add(p.spec.load(xb), p.spec.load(bb));
  ValueId inside = tanh ? p.mul(p.number(2 * 0.7978845608), p.add(v, p.mul(p.number(0.044715), p.mul(v, p.mul(v, v)))))
                        : v;
  p.spec.store(yb, p.add(p.mul(v, p.spec.unary(tanh ? Op::k_sigmoid : Op::k_normal_cdf, inside)), p.spec.load(rb)));
  return {tanh ? "bias + tanh GELU + residual" : "bias + GELU + residual", 12.0 * n * m, p,
          [=] { at::add(at::gelu(at::add(x, b), tanh ? "tanh" : "none"), r); }};
}

Case adam(const at::Tensor& x, bool streams) {
  int64_t n = x.numel();
  at::Tensor p0 = x.flatten().clone(), g = at::randn({n}), m = at::randn({n}), s = at::rand({n});
  Program p;
  p.spec.sizes = {n};
  int pb = p.add(p0, {1}, Access::kInOut, streams), gb = p.add(g, {1}, Access::kIn);
  int mb = p.add(m, {1}, Access::kInOut, streams), sb = p.add(s, {1}, Access::kInOut, streams);
  ValueId gv = p.spec.load(gb);
  ValueId mv = p.add(p.mul(p.spec.load(mb), p.number(0.9)), p.mul(gv, p.number(0.1)));
  ValueId sv = p.add(p.mul(p.spec.load(sb), p.number(0.999)), p.mul(p.mul(gv, gv), p.number(0.001)));
  ValueId root = p.add(p.spec.unary(Op::k_sqrt, sv), p.number(1e-8));
  p.spec.store(pb, p.sub(p.spec.load(pb), p.div(p.mul(mv, p.number(1e-3)), root)));
  p.spec.store(mb, mv);
  p.spec.store(sb, sv);
  return {"Adam", 28.0 * n, p, [=] {
            m.lerp_(g, 0.1);
            s.mul_(0.999).addcmul_(g, g, 0.001);
            p0.addcdiv_(m, s.sqrt().add_(1e-8), -1e-3);
          }};
}

// The kernel behind the op.
Case batch_norm(const at::Tensor& flat, bool channels_last) {
  int64_t c = 64, s = 56, n = flat.numel() / (c * s * s);
  at::Tensor x = flat.flatten().slice(0, 0, n * c * s * s).view({n, c, s, s});
  if (channels_last) x = x.view({n, s, s, c}).permute({0, 3, 1, 2});
  at::Tensor w = at::randn({c}), b = at::randn({c}), m = at::zeros({c}), v = at::ones({c});
  auto own = [=] {
    torch::jit::Stack stack{x, w, b, m, v, true, 0.1, 1e-5};
    if (!lockstep::dynamic::try_batch_norm(stack, true)) std::abort();
  };
  return {channels_last ? "batch norm, channels last [64]" : "batch norm [56x56]", 12.0 * x.numel(), {},
          [=] { at::native_batch_norm(x, w, b, m, v, true, 0.1, 1e-5); }, own};
}

// The same spec in other sizes: what compiling takes.
double compile_ms(Program& program) {
  double start = seconds([&] { compile(program.spec); });
  compile_times_ms.push_back(start * 1e3);
  return start * 1e3;
}

}  // namespace

int main(int argc, char** argv) {
  // Pages are kept, as Lockstep's allocator keeps them: kernels are measured, not page faults.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  int64_t megabytes = argc > 1 ? std::atoll(argv[1]) : 128;
  const char* part = argc > 2 ? argv[2] : "";
  int64_t count = megabytes * 1024 * 1024 / 4;
  at::Tensor flat = at::randn({count}), target = at::zeros({count});
  auto copy_rate = [&](auto copy) {
    return 8.0 * count / 1e9 /
           best_of(5, [&] { copy(target.mutable_data_ptr<float>(), flat.data_ptr<float>(), count); });
  };
  for (int threads : {1, 2}) {
    at::set_num_threads(threads);
    auto copies = [&] { return std::max(copy_rate(&copy_plain), copy_rate(&copy_streaming)); };
    std::printf("%d thread(s): plain copy %.1f GB/s, non-temporal copy %.1f GB/s\n", threads, copy_rate(&copy_plain),
                copy_rate(&copy_streaming));
    std::printf("  %-32s %8s %8s %8s %8s %8s\n", "GB/s", "ATen", "plain", "stream", "of copy", "compile");
    using Make = std::function<Case(bool)>;
    at::Tensor narrow = flat.view({-1, 256}), middle = flat.view({-1, 1024}), wide = flat.view({-1, 4096});
    const Make kCases[] = {
        [&](bool s) { return layer_norm(narrow, s); },
        [&](bool s) { return layer_norm(middle, s); },
        [&](bool s) { return layer_norm_input_gradient(middle, s); },
        [&](bool s) { return layer_norm_weight_gradient(middle); },
        [&](bool s) { return softmax(flat.view({-1, 128}), s); },
        [&](bool s) { return softmax(middle, s); },
        [&](bool s) { return softmax(wide, s); },
        [&](bool s) { return gelu(middle, s, false); },
        [&](bool s) { return gelu(middle, s, true); },
        [&](bool s) { return adam(flat.slice(0, 0, count / 2), s); },
        [&](bool s) { return batch_norm(flat, false); },
        [&](bool s) { return batch_norm(flat, true); },
    };
    for (const Make& make : kCases) {
      if (!std::strstr(make(false).name, part)) continue;
      double ms = 0;
      double rates[2] = {};
      double copied = 0;  // just before and after, since what else the host's memory does changes
      Case now;
      std::shared_ptr<const Kernel> kernels[2];
      for (bool streams : {false, true}) {
        now = make(streams);
        if (now.own) break;
        ms = compile_ms(now.ours);
        CompileResult result = compile(now.ours.spec);
        if (!result) return std::printf("%s: %s\n", now.name, result.reason.c_str()), 1;
        kernels[streams] = result.kernel;
      }
      std::vector<void*> buffers;
      for (const at::Tensor& tensor : now.ours.tensors) buffers.push_back(tensor.mutable_data_ptr());
      for (int round = 0; round < 4; ++round) {
        copied = std::max(copied, copies());
        for (bool streams : {false, true}) {
          double rate = now.bytes / 1e9 / best_of(5, [&] { now.own ? now.own() : kernels[streams]->run({buffers}); });
          rates[streams] = std::max(rates[streams], rate);
        }
      }
      double eager = now.bytes / 1e9 / best_of(3, now.eager);
      std::string name = now.name;
      if (now.ours.spec.sizes.size() == 2) name += " [" + std::to_string(now.ours.spec.sizes[1]) + "]";
      std::printf("  %-32s %8.1f %8.1f %8.1f %7.0f%% %6.1fms\n", name.c_str(), eager, rates[0], rates[1],
                  100 * std::max(rates[0], rates[1]) / copied, ms);
      std::fflush(stdout);
    }
  }
  if (compile_times_ms.empty()) return 0;
  std::sort(compile_times_ms.begin(), compile_times_ms.end());
  std::printf("compile: median %.1f ms, longest %.1f ms, %zu kernels\n", compile_times_ms[compile_times_ms.size() / 2],
              compile_times_ms.back(), compile_times_ms.size());
  return 0;
}

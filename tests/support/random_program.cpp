#include "tests/support/random_program.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "tests/support/test_host.h"

namespace lockstep::support {

namespace {

constexpr int kValues = 5;
constexpr int kDepth = 3;

struct Maker {
  std::mt19937 random;
  ProgramOptions options;
  uint64_t next_line = 1;

  Statement statement(int nesting) {
    Statement s;
    s.line = next_line++;
    do {
      s.kind = static_cast<StatementKind>(random() % static_cast<unsigned>(StatementKind::kCount));
    } while ((s.kind >= StatementKind::kIfFlip && nesting >= 2) ||
             (s.kind == StatementKind::kRecurse && nesting == 0) ||
             (s.kind == StatementKind::kDraw && !options.draws) ||
             (s.kind == StatementKind::kTrain && !options.trains));
    s.a = static_cast<int>(random() % kValues);
    s.b = static_cast<int>(random() % kValues);
    s.c = static_cast<int>(random() % kValues);
    s.variant = static_cast<int>(random() % 6);
    if (s.kind >= StatementKind::kIfFlip && s.kind != StatementKind::kRecurse) {
      s.body = block(1 + random() % 3, nesting + 1);
      if (s.kind != StatementKind::kLoop) s.otherwise = block(random() % 3, nesting + 1);
    }
    return s;
  }
  std::vector<Statement> block(int count, int nesting) {
    std::vector<Statement> statements;
    for (int i = 0; i < count; ++i) statements.push_back(statement(nesting));
    return statements;
  }
};

class Machine {
 public:
  Machine(const std::vector<Statement>& program, ProgramState& state, unsigned decisions)
      : program_(program), v_(state.values), state_(state), random_(decisions) {}

  void run() {
    block(program_);
    for (auto& value : v_) {  // keeps numbers small and shapes equal
      at_line(900);
      value = at::tanh(value).clone();
    }
  }

 private:
  void block(const std::vector<Statement>& statements) {
    for (const auto& s : statements) {
      at_line(s.line);
      try {
        step(s);
      } catch (const c10::Error& error) {  // overlapping memory: the program goes on, as with try and except
        position().plain_bool = position().in_engine = false;
        state_.log.push_back(static_cast<double>(std::hash<std::string>()(error.what_without_backtrace())));
      }
    }
  }

  void step(const Statement& s) {
    const int64_t n = v_[0].size(0);
    auto &a = v_[s.a], &b = v_[s.b], &c = v_[s.c];
    switch (s.kind) {
      case StatementKind::kPointwise: return pointwise(s, a, b, c);
      case StatementKind::kInPlace:
        if (s.variant < 2) a.add_(b, 0.5);
        else if (s.variant < 4) a.mul_(0.75).sub_(c.sum(1, true));
        else a.copy_(at::sigmoid(b));
        return;
      case StatementKind::kView:
        if (s.variant < 2) a = b.t();
        else if (s.variant < 4) a = b.view_as(b);
        else a = b.unsqueeze(0).expand({2, n, n}).select(0, 1);
        return;
      case StatementKind::kInPlaceView:
        if (s.variant < 2) a.narrow(0, s.b % n, 1).add_(1);
        else if (s.variant < 4) a.select(1, s.b % n).copy_(b.select(0, s.c % n));
        else a.diagonal().mul_(0.5);
        return;
      case StatementKind::kReduce:
        if (s.variant < 2) a = at::softmax(b, s.variant);
        else if (s.variant < 4) a = b.sub(b.mean(1, true));
        else a = b.div(b.abs().amax().add(1));
        return;
      case StatementKind::kMatMul:
        a = s.variant < 3 ? at::tanh(at::mm(b, c)) : at::tanh(at::addmm(b, c, a, 1, 0.25));
        return;
      case StatementKind::kDraw: return draw(s, a, b);
      case StatementKind::kAlias: a = b; return;
      case StatementKind::kList: {
        auto parts = b.split(s.variant < 3 ? 2 : 3, 0);
        std::reverse(parts.begin(), parts.end());
        a = at::cat(parts, 0);
        return;
      }
      case StatementKind::kIndex: return index(s, a, b);
      case StatementKind::kOut: {
        auto out = at::empty({n, n});
        at::add_out(out, b, c);
        a = out;
        return;
      }
      case StatementKind::kRead: {
        const double value = s.variant < 3 ? b.sum().item<double>() : b.select(0, 0).select(0, s.c % n).item<double>();
        state_.log.push_back(value);
        a = b.mul(0.5).add(value > 10 || value < -10 || value != value ? 1 : value);
        return;
      }
      case StatementKind::kTrain: return train(s, b);
      case StatementKind::kIfFlip: return block(random_() % 2 ? s.body : s.otherwise);
      case StatementKind::kIfRead: {
        position().plain_bool = true;
        const bool positive = b.sum().gt(0).item<bool>();
        position().plain_bool = false;
        return block(positive ? s.body : s.otherwise);
      }
      case StatementKind::kLoop:
        for (unsigned pass = random_() % 4; pass > 0; --pass) block(s.body);
        return;
      case StatementKind::kRecurse:
        if (depth_ >= kDepth || random_() % 2) return;
        ++depth_;
        block(program_);
        --depth_;
        return;
      case StatementKind::kCount: return;
    }
  }

  static void pointwise(const Statement& s, at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    switch (s.variant) {
      case 0: a = b.add(c); break;
      case 1: a = b.mul(c).sub(0.125); break;
      case 2: a = at::relu(b); break;
      case 3: a = at::where(b.gt(c), b, c.neg()); break;
      case 4: a = at::exp(b.clamp(-2, 2)); break;
      default: a = b.lerp(c, 0.25); break;
    }
  }

  static void draw(const Statement& s, at::Tensor& a, const at::Tensor& b) {
    switch (s.variant) {
      case 0: a = at::rand_like(b); break;
      case 1: a = b.mul(at::empty_like(b).bernoulli_(0.5)); break;
      case 2: a = at::dropout(b, 0.25, true); break;
      case 3: a = at::bernoulli(at::sigmoid(b)); break;
      default: a = at::empty_like(b).normal_(0, 1); break;
    }
  }

  static void index(const Statement& s, at::Tensor& a, const at::Tensor& b) {
    if (s.variant < 2) {
      a = b.add(b.masked_select(b.gt(0)).sum());
    } else if (s.variant < 4) {
      a = b.index_select(0, b.argmax(0));
    } else {
      a = b.gather(1, at::argsort(b, int64_t{1}, false));
    }
  }

  void train(const Statement& s, const at::Tensor& input) {
    auto hidden = at::tanh(at::addmm(state_.bias, input.detach(), state_.weight));
    auto loss = (s.variant < 3 ? hidden.pow(2) : at::mm(hidden, state_.weight)).mean();
    torch::autograd::variable_list gradients;
    {
      InEngine engine;
      gradients = torch::autograd::grad({loss}, {state_.weight, state_.bias});
    }
    at::NoGradGuard no_grad;
    state_.weight.add_(gradients[0], -0.1);
    state_.bias.add_(gradients[1], -0.1);
  }

  const std::vector<Statement>& program_;
  std::vector<at::Tensor>& v_;
  ProgramState& state_;
  std::mt19937 random_;
  int depth_ = 0;
};

std::string compare(const char* name, const at::Tensor& one, const at::Tensor& two) {
  const std::string where(name);
  if (one.sizes() != two.sizes() || one.strides() != two.strides()) return where + ": another layout";
  const auto left = one.detach().contiguous(), right = two.detach().contiguous();
  if (std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) != 0) return where + ": other bits";
  return "";
}

}  // namespace

std::vector<Statement> random_program(unsigned seed, const ProgramOptions& options) {
  Maker maker{std::mt19937(seed), options};
  return maker.block(options.statement_count, 0);
}

size_t count_statements(const std::vector<Statement>& program) {
  size_t count = program.size();
  for (const auto& s : program) count += count_statements(s.body) + count_statements(s.otherwise);
  return count;
}

ProgramState::ProgramState(unsigned seed, int64_t n) {
  at::manual_seed(seed);
  for (int i = 0; i < kValues; ++i) values.push_back(at::randn({n, n}));
  weight = at::randn({n, n}).mul_(0.5).requires_grad_();
  bias = at::randn({n}).requires_grad_();
}

std::string ProgramState::difference(const ProgramState& other) const {
  for (size_t i = 0; i < values.size(); ++i)
    if (auto found = compare(("value " + std::to_string(i)).c_str(), values[i], other.values[i]); !found.empty())
      return found;
  if (auto found = compare("weight", weight, other.weight); !found.empty()) return found;
  if (auto found = compare("bias", bias, other.bias); !found.empty()) return found;
  if (log.size() != other.log.size()) return "other reads";
  if (!log.empty() && std::memcmp(log.data(), other.log.data(), log.size() * sizeof(double)) != 0)
    return "other values were read";
  return "";
}

void run_program(const std::vector<Statement>& program, ProgramState& state, unsigned decisions) {
  Machine(program, state, decisions).run();
}

}  // namespace lockstep::support

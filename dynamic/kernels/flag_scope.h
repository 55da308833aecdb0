// A flag of this thread that is set while a scope lives.
#pragma once

#include <utility>

namespace lockstep::dynamic {

template <class Tag>
class FlagScope {
 public:
  explicit FlagScope(bool is_on) : before_(std::exchange(is_on_, is_on)) {}
  ~FlagScope() { is_on_ = before_; }
  FlagScope(const FlagScope&) = delete;
  static bool is_on() { return is_on_; }

 private:
  static inline thread_local bool is_on_ = false;
  bool before_;
};

}  // namespace lockstep::dynamic

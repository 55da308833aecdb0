#include "graph/overlap.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>

namespace lockstep::graph {

namespace {

// A dim that one of the views or both go along.
struct Step {
  int64_t stride;
  std::array<int64_t, 2> sizes{1, 1}, begins{0, 0};  // of either view
};
using Steps = c10::SmallVector<Step, 8>;

// False where a view has two dims of one stride. What a view repeats is the same elements again.
bool try_collect(const Part& part, int which, Steps& steps) {
  for (size_t dim = 0; dim < part.sizes.size(); ++dim) {
    if (part.sizes[dim] == 1 || part.strides[dim] == 0) continue;
    if (part.strides[dim] < 0) return false;
    const auto known = std::find_if(steps.begin(), steps.end(), [&](const Step& step) { return step.stride == part.strides[dim]; });
    auto& step = known != steps.end() ? *known : steps.emplace_back(Step{part.strides[dim]});
    if (step.sizes[which] != 1) return false;
    step.sizes[which] = part.sizes[dim];
  }
  return true;
}

// What is left of the offset below the smallest stride.
int64_t place(int64_t offset, int which, Steps& steps) {
  for (auto& step : steps) {
    step.begins[which] = offset / step.stride;
    offset %= step.stride;
  }
  return offset;
}

// No step reaches beyond the one that is larger: each element has its place in one way only.
bool is_nested(int which, const Steps& steps) {
  int64_t reach = 0;
  for (size_t i = steps.size(); i-- > 0;) {
    if (i + 1 < steps.size() && reach >= steps[i].stride) return false;
    reach += (steps[i].begins[which] + steps[i].sizes[which] - 1) * steps[i].stride;
  }
  return true;
}

bool is_empty(const Part& part) { return std::find(part.sizes.begin(), part.sizes.end(), 0) != part.sizes.end(); }

}  // namespace

// Both as boxes in one grid, which are apart where they are so along one of its dims.
bool are_apart(const Part& one, const Part& other) {
  if (is_empty(one) || is_empty(other)) return true;
  Steps steps;
  if (!try_collect(one, 0, steps) || !try_collect(other, 1, steps)) return false;
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.stride > b.stride; });
  const int64_t rest = place(one.offset, 0, steps);
  if (rest != place(other.offset, 1, steps) || !is_nested(0, steps) || !is_nested(1, steps)) return false;
  return std::any_of(steps.begin(), steps.end(), [](const Step& step) {
    return step.begins[0] + step.sizes[0] <= step.begins[1] || step.begins[1] + step.sizes[1] <= step.begins[0];
  });
}

}  // namespace lockstep::graph

// The loops of optimizer steps over one piece of a parameter, compiled once for each instruction set and chosen at run
// time. Float32, in the order of operations of torch.optim's loops over single parameters.
#pragma once

#include <cstdint>

namespace lockstep::dynamic {

// What is the same for all values of a step.
struct StepNumbers {
  float sign = 1;          // -1 where the objective is maximized
  float weight_decay = 0;  // added to the gradient, times the parameter
};

struct AdamNumbers : StepNumbers {
  float keep = 1;         // of the parameter, before its step (decoupled weight decay)
  float to_gradient = 0;  // how far the mean goes there: 1 - beta1
  float beta2 = 0, from_square = 0;  // 1 - beta2
  float correction = 1;   // the root of the second moment's
  float eps = 0;
  float rate = 0;         // divided by the first moment's correction
};

struct SgdNumbers : StepNumbers {
  float rate = 0;
  float momentum = 0, from_gradient = 1;  // 1 - dampening
  bool is_nesterov = false;
};

struct AdagradNumbers : StepNumbers {
  float rate = 0, eps = 0;
};

struct RmspropNumbers : StepNumbers {
  float rate = 0, eps = 0, momentum = 0;
  float alpha = 0, from_square = 0;  // 1 - alpha, and how far the mean of gradients goes
};

struct OptimizerLoops {
  // `largest_square`: null where nobody keeps it (amsgrad).
  void (*adam)(float* parameter, const float* gradient, float* mean, float* square, float* largest_square, int64_t count,
               const AdamNumbers& numbers);
  // `buffer`: null without momentum.
  void (*sgd)(float* parameter, const float* gradient, float* buffer, int64_t count, const SgdNumbers& numbers);
  void (*adagrad)(float* parameter, const float* gradient, float* sum, int64_t count, const AdagradNumbers& numbers);
  // `mean`: null where squares are not centered; `buffer`: null without momentum.
  void (*rmsprop)(float* parameter, const float* gradient, float* square, float* mean, float* buffer, int64_t count,
                  const RmspropNumbers& numbers);
};

const OptimizerLoops& optimizer_loops();

}  // namespace lockstep::dynamic

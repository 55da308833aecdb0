// The OpenMP team of a thread: workers that its kernels share their loops with. libgomp keeps a team for every thread
// that ever ran a parallel loop, and as soon as all teams together have more threads than there are cores, each loop of
// each of them ends with a sleep and begins with a wake-up. So only the thread that runs kernels now may have a team:
// else its workers would sleep. Where parallel loops are rare and Python wants the core, that is just what helps.
#pragma once

namespace lockstep::dynamic {

// Ends the workers of this thread's team, if it has one; the next parallel loop makes a new one. Not inside of a
// parallel loop. Does nothing where the OpenMP library cannot do it.
void release_thread_team();
// Makes the team of this thread, if it has none. Does nothing where kernels run on one thread.
void make_thread_team();
// The same, and moves its workers away from the core that this thread is on: one that happens to begin there shares it
// for some milliseconds, until the system looks. They may come back.
void spread_thread_team();

// How many threads the kernels of this thread use, as torch.set_num_threads sets it, and of no other thread.
void set_threads_of_this_thread(int count);

// While it lives, kernels that this thread runs share their loops with nobody; the workers stay as they are.
class OneThreadScope {
 public:
  explicit OneThreadScope(bool is_on);
  ~OneThreadScope();
  OneThreadScope(const OneThreadScope&) = delete;

 private:
  int threads_ = 0;      // before; 0: off
  int mkl_threads_ = 0;  // the same for MKL's; 0 there means those of OpenMP
};

}  // namespace lockstep::dynamic

// Makes the functions of a kernel (call_words.h names them) from spec and plan. One emitter makes one module; the
// functions' common parts are here, how values are evaluated is in point_code.cpp, the loops of a pass are in
// row_code.cpp and column_code.cpp, what calls them is in kernel_emitter.cpp.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "dynamic/jit/call_shape.h"
#include "dynamic/jit/call_words.h"
#include "dynamic/jit/lane_code.h"

namespace llvm {
class Function;
}

namespace lockstep::dynamic::jit {

class KernelEmitter {
 public:
  KernelEmitter(CodeContext& code, const KernelSpec& spec, const LoopPlan& plan);
  void emit();

 private:
  using Value = llvm::Value;

  // The function that is being made.
  struct Frame {
    llvm::Function* function = nullptr;
    Value* words = nullptr;
    std::vector<Value*> arguments;  // of the function, or of the pass that became part of it
    std::vector<Value*> buffers;    // addresses; then, inside of loops, addresses at the indices so far
    std::vector<Value*> index;      // of plan.dims()
    std::unordered_map<int, Value*> known_words;
  };

  // Where values are evaluated: one vector along the vector dim, or one kept point.
  struct Point {
    int pass = 0;            // reads slots of this level and below
    bool is_finish = false;  // reads reductions of the next level from `totals`
    Value* at = nullptr;     // index along the vector dim; null if there is none
    const Tail* tail = nullptr;
    Value* slots = nullptr;
    Value* slot_lane = nullptr;  // column of the chunk; null for one lane that is spread
    Value* totals = nullptr;
    Value* stashes = nullptr;
    Value* stash_at = nullptr;
    std::unordered_map<ValueId, Value*> values;
  };

  // What a pass must evaluate, in order: first what is the same along the vector dim.
  struct Needed {
    std::vector<ValueId> invariant;
    std::vector<ValueId> varying;
  };

  // kernel_emitter.cpp
  void emit_run();
  void emit_run_pass(int pass, Value* item, Value* rows, Value* scratch);
  void emit_split(int pass);
  void emit_pass(int pass);
  void emit_finish(int pass);
  void emit_call(bool is_finish, int pass, std::vector<Value*> arguments);
  void emit_fold_totals(int pass, Value* totals, Value* partial);
  void emit_clear_totals(int pass, Value* totals);
  void for_each_column(const std::function<void(Value* lane)>& body);  // row: once, with null
  void for_each_row(Value* rows, const std::function<void(Value* row)>& body);
  Value* add_rows(Value* address, Value* row);
  Value* fold_reductions(int pass, size_t index, Value* total, Value* value);
  enum class Kind : uint8_t { kNumber, kAddress };  // of an argument
  static const std::vector<Kind> kPassArguments, kFinishArguments;
  llvm::Function* create_function(const std::string& name, const std::vector<Kind>& kinds, bool is_public);
  Value* argument(int index);

  void open_frame(llvm::Function* function);
  Value* word(int index);
  CallShape static_shape() const;  // right for what is the same at every call
  Value* size(int dim);
  Value* stride(int buffer, int dim);
  Value* block_count();
  Value* add_bytes(Value* address, Value* bytes);
  Value* constant(int64_t value);
  Value* minimum(Value* a, Value* b);
  Value* create_local(llvm::Type* type);
  void decode(Value* linear, int first_dim, int end_dim);  // sets index and moves the addresses
  void decode_item(Value* item);
  void emit_loop(Value* from, Value* to, int64_t step, const std::function<void(Value*)>& body);
  void emit_loop(Value* from, Value* to, Value* step, const std::function<void(Value*)>& body);
  void emit_if(Value* condition, const std::function<void()>& yes, const std::function<void()>& no);

  // point_code.cpp
  bool is_slot(ValueId value, int pass) const;
  Needed find_needed(const std::vector<ValueId>& roots, int pass, bool is_finish) const;
  void evaluate(const std::vector<ValueId>& order, Point& point);
  Value* evaluate_one(ValueId value, Point& point);
  Value* load_columns(llvm::Type* lane, Value* address, const Point& point);
  Value* load_slot(ValueId value, const Point& point);
  void save_slot(ValueId value, Value* lanes, const Point& point);
  Value* load_total(ValueId value, const Point& point);
  Value* stash_address(ValueId value, const Point& point);
  void emit_store(ValueId store, Point& point);
  void emit_total(ValueId store, Point& point);
  bool has_no_tail(int64_t width) const;
  std::vector<ValueId> roots_of(int pass) const;
  int pass_of_total(ValueId reduction) const;

  // What a reduction adds up in: lane types of the inner and the outer accumulator.
  llvm::Type* narrow_lane(ValueId reduction);
  llvm::Type* wide_lane(ValueId reduction);
  Value* widen(ValueId reduction, Value* narrow);
  Value* identity(ValueId reduction, llvm::Type* lane);

  // row_code.cpp, column_code.cpp. Arguments of a pass function: words, item, block, partial, slots, scratch, stash, rows.
  void emit_row_pass(int pass);
  void emit_row_blocks(int pass, const Needed& needed, const std::vector<Value*>& wide);
  void find_lines(int pass, Value* item);
  void emit_row(int pass, const Needed& needed, Value* from, Value* to, Value* stash_row,
                const std::vector<Value*>& wide);
  void emit_segment(int pass, const Needed& needed, const Point& row, Value* from, Value* to, Value* stash_row,
                    const std::vector<Value*>& wide);
  void emit_row_body(int pass, const Needed& needed, const Point& row, Value* at, const Tail* tail, Value* stash_row,
                     const std::vector<Value*>& accumulators);
  void prefetch(const Point& point, int dim, Value* steps);
  void emit_column_pass(int pass);
  void emit_pointwise_pass(int pass);
  struct Row {
    Frame frame;
    Point point;
    int64_t prefetch_rows = 0;  // so far ahead along the innermost reduced dim
  };
  void emit_vector_loop(const Needed& needed, const std::vector<ValueId>& stores, std::vector<Row> rows, Value* from,
                        Value* to, Value* slot_origin, const std::function<void(std::vector<Point>&)>& after);

  CodeContext& code_;
  llvm::IRBuilderBase& builder_;
  const KernelSpec& spec_;
  const LoopPlan& plan_;
  CallLayout layout_;
  ScratchLayout scratch_;
  std::vector<const LoopDim*> dims_;
  Frame frame_;
  bool is_inline_ = false;
  std::vector<llvm::Function*> passes_;
  std::vector<llvm::Function*> finishes_;
};

}  // namespace lockstep::dynamic::jit

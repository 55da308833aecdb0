#include "dynamic/jit/kernel_emitter.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

#include <algorithm>

#include "dynamic/jit/op_code.h"

namespace lockstep::dynamic::jit {

using llvm::BasicBlock;
using llvm::FixedVectorType;
using llvm::Function;
using llvm::Value;

// After the words: item, block, partial, slots, scratch, stash, rows.
const std::vector<KernelEmitter::Kind> KernelEmitter::kPassArguments{
    Kind::kNumber, Kind::kNumber, Kind::kAddress, Kind::kAddress, Kind::kAddress, Kind::kAddress, Kind::kNumber};
// Item, totals, slots, rows.
const std::vector<KernelEmitter::Kind> KernelEmitter::kFinishArguments{Kind::kNumber, Kind::kAddress, Kind::kAddress,
                                                                       Kind::kNumber};

KernelEmitter::KernelEmitter(CodeContext& code, const KernelSpec& spec, const LoopPlan& plan)
    : code_(code),
      builder_(code.builder),
      spec_(spec),
      plan_(plan),
      layout_(spec, plan),
      scratch_(plan),
      dims_(plan.dims()) {}

void KernelEmitter::emit() {
  CallModes modes = find_call_modes(plan_);
  // One way of running: each pass has one caller and becomes part of it.
  is_inline_ = !(modes.may_run_items && modes.may_split);
  for (int pass = 0; !is_inline_ && pass < static_cast<int>(plan_.passes.size()); ++pass) {
    passes_.push_back(create_function("body" + std::to_string(pass), kPassArguments, false));
    emit_pass(pass);
    builder_.CreateRetVoid();
    if (pass >= plan_.level_count) continue;
    finishes_.push_back(create_function("end" + std::to_string(pass), kFinishArguments, false));
    emit_finish(pass);
    builder_.CreateRetVoid();
  }
  if (modes.may_run_items) emit_run();
  if (!modes.may_split) return;
  for (int pass = 0; pass < static_cast<int>(plan_.passes.size()); ++pass) emit_split(pass);
}

// Words, then what `kinds` says.
Function* KernelEmitter::create_function(const std::string& name, const std::vector<Kind>& kinds, bool is_public) {
  std::vector<llvm::Type*> types{builder_.getPtrTy()};
  for (Kind kind : kinds) {
    types.push_back(kind == Kind::kNumber ? static_cast<llvm::Type*>(builder_.getInt64Ty()) : builder_.getPtrTy());
  }
  auto* type = llvm::FunctionType::get(builder_.getVoidTy(), types, false);
  auto linkage = is_public ? Function::ExternalLinkage : Function::InternalLinkage;
  Function* function = Function::Create(type, linkage, name, code_.module);
  function->addFnAttr("prefer-vector-width", "512");
  function->addFnAttr("min-legal-vector-width", "512");
  function->addFnAttr("target-cpu", code_.target.cpu);
  function->addFnAttr("target-features", code_.target.features);
  function->setDoesNotThrow();
  open_frame(function);
  return function;
}

void KernelEmitter::open_frame(Function* function) {
  frame_ = {};
  frame_.function = function;
  frame_.words = function->getArg(0);
  for (llvm::Argument& argument : function->args()) frame_.arguments.push_back(&argument);
  builder_.SetInsertPoint(BasicBlock::Create(builder_.getContext(), "", function));
  for (int i = 0; i < layout_.buffer_count; ++i) {
    Value* address = add_bytes(frame_.words, constant(8 * layout_.buffer(i)));
    frame_.buffers.push_back(builder_.CreateAlignedLoad(builder_.getPtrTy(), address, llvm::Align(8)));
  }
  frame_.index.assign(layout_.dim_count, nullptr);
}

Value* KernelEmitter::argument(int index) { return frame_.arguments[index]; }
Value* KernelEmitter::constant(int64_t value) { return builder_.getInt64(value); }

Value* KernelEmitter::add_bytes(Value* address, Value* bytes) {
  return builder_.CreateGEP(builder_.getInt8Ty(), address, bytes);
}

Value* KernelEmitter::minimum(Value* a, Value* b) { return builder_.CreateSelect(builder_.CreateICmpSLT(a, b), a, b); }

// In the entry block, where words are the same all over the function.
Value* KernelEmitter::word(int index) {
  if (index == kSlotBytes && plan_.kind == NestKind::kRow) return constant(8);
  if (has_static_blocks(plan_)) {
    const CallShape shape = static_shape();
    if (index == kBlockSize) return constant(shape.block_size);
    if (index == kBlockCount) return constant(shape.block_count);
    if (index == kTogether) return constant(shape.rows_together);
    if (index == kRowsAhead) return constant(shape.rows_ahead);
  }
  if (index == kTogether && !may_go_together(plan_)) return constant(1);
  Value*& known = frame_.known_words[index];
  if (known) return known;
  BasicBlock& entry = frame_.function->getEntryBlock();
  llvm::IRBuilder<> at_entry(&entry, entry.begin());
  Value* address = at_entry.CreateGEP(at_entry.getInt8Ty(), frame_.words, at_entry.getInt64(8 * int64_t{index}));
  bool is_address = index == kShared || index == kPartials || index == kStash;
  llvm::Type* type = is_address ? static_cast<llvm::Type*>(builder_.getPtrTy()) : builder_.getInt64Ty();
  return known = at_entry.CreateAlignedLoad(type, address, llvm::Align(8));
}

CallShape KernelEmitter::static_shape() const {
  std::vector<int64_t> sizes;
  for (const LoopDim* dim : dims_) sizes.push_back(dim->size == kSymbolic ? 1 : dim->size);
  return find_call_shape(plan_, sizes);
}

Value* KernelEmitter::size(int dim) {
  return dims_[dim]->size == kSymbolic ? word(layout_.size(dim)) : constant(dims_[dim]->size);
}

Value* KernelEmitter::stride(int buffer, int dim) {
  int64_t stride = plan_.stride(spec_, buffer, *dims_[dim]);
  return stride == kSymbolic ? word(layout_.stride(buffer, dim)) : constant(stride);
}

Value* KernelEmitter::block_count() { return word(kBlockCount); }

Value* KernelEmitter::create_local(llvm::Type* type) {
  BasicBlock& entry = frame_.function->getEntryBlock();
  llvm::IRBuilder<> at_entry(&entry, entry.begin());
  return at_entry.CreateAlloca(type);
}

void KernelEmitter::decode(Value* linear, int first_dim, int end_dim) {
  for (int dim = end_dim - 1; dim >= first_dim; --dim) {
    frame_.index[dim] = linear;
    if (dim > first_dim) {
      frame_.index[dim] = builder_.CreateURem(linear, size(dim));
      linear = builder_.CreateUDiv(linear, size(dim));
    }
  }
  for (int buffer = 0; buffer < layout_.buffer_count; ++buffer) {
    for (int dim = first_dim; dim < end_dim; ++dim) {
      if (plan_.stride(spec_, buffer, *dims_[dim]) == 0) continue;
      Value* bytes = builder_.CreateMul(stride(buffer, dim), constant(bytes_of(spec_.buffers[buffer].type)));
      frame_.buffers[buffer] = add_bytes(frame_.buffers[buffer], builder_.CreateMul(frame_.index[dim], bytes));
    }
  }
}

void KernelEmitter::decode_item(Value* item) { decode(item, 0, static_cast<int>(plan_.kept.size())); }

void KernelEmitter::emit_loop(Value* from, Value* to, int64_t step, const std::function<void(Value*)>& body) {
  emit_loop(from, to, constant(step), body);
}

void KernelEmitter::emit_loop(Value* from, Value* to, Value* step, const std::function<void(Value*)>& body) {
  BasicBlock* before = builder_.GetInsertBlock();
  BasicBlock* inside = BasicBlock::Create(builder_.getContext(), "", frame_.function);
  BasicBlock* after = BasicBlock::Create(builder_.getContext(), "", frame_.function);
  builder_.CreateCondBr(builder_.CreateICmpSLT(from, to), inside, after);
  builder_.SetInsertPoint(inside);
  auto* counter = builder_.CreatePHI(builder_.getInt64Ty(), 2);
  counter->addIncoming(from, before);
  body(counter);
  Value* next = builder_.CreateAdd(counter, step, "", true, true);
  counter->addIncoming(next, builder_.GetInsertBlock());
  builder_.CreateCondBr(builder_.CreateICmpSLT(next, to), inside, after);
  builder_.SetInsertPoint(after);
}

void KernelEmitter::emit_if(Value* condition, const std::function<void()>& yes, const std::function<void()>& no) {
  BasicBlock* on_yes = BasicBlock::Create(builder_.getContext(), "", frame_.function);
  BasicBlock* after = BasicBlock::Create(builder_.getContext(), "", frame_.function);
  BasicBlock* on_no = no ? BasicBlock::Create(builder_.getContext(), "", frame_.function) : after;
  builder_.CreateCondBr(condition, on_yes, on_no);
  builder_.SetInsertPoint(on_yes);
  yes();
  builder_.CreateBr(after);
  if (no) {
    builder_.SetInsertPoint(on_no);
    no();
    builder_.CreateBr(after);
  }
  builder_.SetInsertPoint(after);
}

void KernelEmitter::emit_pass(int pass) {
  if (plan_.kind == NestKind::kPointwise) emit_pointwise_pass(pass);
  if (plan_.kind == NestKind::kRow) emit_row_pass(pass);
  if (plan_.kind == NestKind::kColumn) emit_column_pass(pass);
}

// A call, or the code itself at this place.
void KernelEmitter::emit_call(bool is_finish, int pass, std::vector<Value*> arguments) {
  if (!is_inline_) {
    builder_.CreateCall(is_finish ? finishes_[pass] : passes_[pass], arguments);
    return;
  }
  Frame outside = frame_;
  frame_.arguments = std::move(arguments);
  is_finish ? emit_finish(pass) : emit_pass(pass);
  outside.known_words = frame_.known_words;
  frame_ = std::move(outside);
}

// Over the columns of an item's chunk in vectors, padded; in a row nest once with null.
void KernelEmitter::for_each_column(const std::function<void(Value*)>& body) {
  if (plan_.kind == NestKind::kRow) return body(nullptr);
  emit_loop(constant(0), word(kChunkSize), kLanes, body);
}

// Whose numbers begin with 0.
void KernelEmitter::for_each_row(Value* rows, const std::function<void(Value*)>& body) {
  auto* known = llvm::dyn_cast<llvm::ConstantInt>(rows);
  if (known && known->isOne()) return body(constant(0));
  emit_loop(constant(0), rows, 1, [&](Value* row) {
    Frame outside = frame_;
    body(row);
    outside.known_words = frame_.known_words;
    frame_ = std::move(outside);
  });
}

// From the scratch of the first row to that of another.
Value* KernelEmitter::add_rows(Value* address, Value* row) {
  auto* known = llvm::dyn_cast<llvm::ConstantInt>(row);
  return known && known->isZero() ? address : add_bytes(address, builder_.CreateMul(row, word(kRowBytes)));
}

Value* KernelEmitter::fold_reductions(int pass, size_t index, Value* total, Value* value) {
  const Instruction& instruction = spec_.body[plan_.passes[pass].reductions[index]];
  return emit_fold(code_, instruction.kind, instruction.type, total, value);
}

void KernelEmitter::emit_clear_totals(int pass, Value* totals) {
  for_each_column([&](Value* lane_index) {
    for (size_t i = 0; i < plan_.passes[pass].reductions.size(); ++i) {
      ValueId reduction = plan_.passes[pass].reductions[i];
      llvm::Type* wide = wide_lane(reduction);
      Value* address = add_bytes(totals, builder_.CreateMul(word(kSlotBytes), constant(static_cast<int64_t>(i))));
      Value* lanes = identity(reduction, wide);
      if (lane_index) {
        builder_.CreateAlignedStore(lanes, builder_.CreateGEP(wide, address, lane_index), llvm::Align(8));
      } else {
        builder_.CreateStore(builder_.CreateExtractElement(lanes, uint64_t{0}), address);
      }
    }
  });
}

void KernelEmitter::emit_fold_totals(int pass, Value* totals, Value* partial) {
  for_each_column([&](Value* lane_index) {
    for (size_t i = 0; i < plan_.passes[pass].reductions.size(); ++i) {
      llvm::Type* wide = wide_lane(plan_.passes[pass].reductions[i]);
      llvm::Type* type = lane_index ? static_cast<llvm::Type*>(FixedVectorType::get(wide, kLanes)) : wide;
      Value* offset = builder_.CreateMul(word(kSlotBytes), constant(static_cast<int64_t>(i)));
      Value* to = add_bytes(totals, offset);
      Value* from = add_bytes(partial, offset);
      if (lane_index) to = builder_.CreateGEP(wide, to, lane_index), from = builder_.CreateGEP(wide, from, lane_index);
      Value* total = builder_.CreateAlignedLoad(type, to, llvm::Align(8));
      Value* value = builder_.CreateAlignedLoad(type, from, llvm::Align(8));
      builder_.CreateAlignedStore(fold_reductions(pass, i, total, value), to, llvm::Align(8));
    }
  });
}

// finish<p>(words, item, totals, slots, rows): what later passes and reduced outputs need of this pass's totals.
void KernelEmitter::emit_finish(int pass) {
  std::vector<ValueId> saved;
  for (ValueId i = 0; i < static_cast<ValueId>(spec_.body.size()); ++i) {
    if (plan_.slots[i] >= 0 && plan_.facts[i].level == pass + 1) saved.push_back(i);
  }
  std::vector<ValueId> stores;
  if (pass + 1 == plan_.level_count) stores = plan_.reduced_stores;
  std::vector<ValueId> roots = saved;
  for (ValueId store : stores) roots.push_back(spec_.body[store].operands[0]);
  Needed needed = find_needed(roots, pass, true);
  Point point;
  point.pass = pass;
  point.is_finish = true;
  auto save = [&](Point& here) {
    for (ValueId value : saved) save_slot(value, here.values.at(value), here);
  };
  if (plan_.kind == NestKind::kRow) {
    for_each_row(argument(4), [&](Value* row) {
      Point here = point;
      here.totals = add_rows(argument(2), row);
      here.slots = add_rows(argument(3), row);
      decode_item(builder_.CreateAdd(argument(1), row));
      evaluate(needed.invariant, here);
      for (ValueId store : stores) emit_store(store, here);
      save(here);
    });
  } else {
    point.totals = argument(2);
    point.slots = argument(3);
    Value* chunk_count = word(kChunkCount);
    decode_item(builder_.CreateUDiv(argument(1), chunk_count));
    Value* from = builder_.CreateMul(builder_.CreateURem(argument(1), chunk_count), word(kChunkSize));
    Value* to = minimum(builder_.CreateAdd(from, word(kChunkSize)), size(layout_.dim_count - 1));
    // Totals may be the same along the columns and are read by column all the same.
    needed.varying.insert(needed.varying.begin(), needed.invariant.begin(), needed.invariant.end());
    std::sort(needed.varying.begin(), needed.varying.end());
    needed.invariant.clear();
    emit_vector_loop(needed, stores, {{frame_, point}}, from, to, from,
                     [&](std::vector<Point>& points) { save(points[0]); });
  }
}

void KernelEmitter::emit_run() {
  Function* function = create_function(kRunName, {Kind::kNumber, Kind::kNumber, Kind::kAddress}, true);
  Value* end = function->getArg(2);
  emit_loop(function->getArg(1), end, word(kTogether), [&](Value* item) {
    Value* rows = minimum(word(kTogether), builder_.CreateSub(end, item));
    for (int pass = 0; pass < static_cast<int>(plan_.passes.size()); ++pass) {
      emit_run_pass(pass, item, rows, function->getArg(3));
    }
  });
  if (std::any_of(plan_.passes.begin(), plan_.passes.end(), [](const Pass& pass) { return pass.streams; })) {
    builder_.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});
  }
  builder_.CreateRetVoid();
}

// All blocks of an item, or some rows of one block each, and what follows from their totals.
void KernelEmitter::emit_run_pass(int pass, Value* item, Value* rows, Value* scratch) {
  auto part = [&](int slot) { return add_bytes(scratch, builder_.CreateMul(word(kSlotBytes), constant(slot))); };
  Value* accumulators = part(scratch_.accumulators());
  Value* partial = part(scratch_.partial());
  Value* totals = part(scratch_.total());
  Value* slots = part(scratch_.slots());
  Value* stashes = part(scratch_.end());
  const bool folds = pass < plan_.level_count;
  auto call = [&](Value* block, Value* target, Value* count) {
    emit_call(false, pass, {frame_.words, item, block, target, slots, accumulators, stashes, count});
  };
  auto emit_blocks = [&] {
    if (folds) emit_clear_totals(pass, totals);
    emit_loop(constant(0), block_count(), 1, [&](Value* block) {
      call(block, partial, constant(1));
      if (folds) emit_fold_totals(pass, totals, partial);
    });
  };
  if (plan_.kind == NestKind::kPointwise) return call(constant(0), partial, constant(1));
  // A single block's partial result is the total.
  if (is_inline_ && static_shape().block_count == 1) {
    call(constant(0), totals, rows);
  } else if (is_inline_) {
    emit_blocks();
  } else {
    emit_if(builder_.CreateICmpEQ(block_count(), constant(1)), [&] { call(constant(0), totals, rows); }, emit_blocks);
  }
  if (folds) emit_call(true, pass, {frame_.words, item, totals, slots, rows});
}

void KernelEmitter::emit_split(int pass) {
  auto slots_of = [&](Value* item) {
    Value* bytes = builder_.CreateMul(word(kSlotBytes), constant(plan_.slot_count));
    return add_bytes(word(kShared), builder_.CreateMul(item, bytes));
  };
  auto partial_of = [&](Value* number) {
    Value* bytes = builder_.CreateMul(word(kSlotBytes), constant(scratch_.reduction_count));
    return add_bytes(word(kPartials), builder_.CreateMul(number, bytes));
  };
  const std::vector<Kind> kinds{Kind::kNumber, Kind::kNumber, Kind::kAddress};
  Function* function = create_function("pass" + std::to_string(pass), kinds, true);
  Value* scratch = function->getArg(3);
  emit_loop(function->getArg(1), function->getArg(2), 1, [&](Value* number) {
    Value* item = builder_.CreateUDiv(number, block_count());
    Value* block = builder_.CreateURem(number, block_count());
    Value* stash_bytes = builder_.CreateMul(word(kStashBytes), constant(plan_.stash_count));
    Value* stashes = add_bytes(word(kStash), builder_.CreateMul(item, stash_bytes));
    emit_call(false, pass, {frame_.words, item, block, partial_of(number), slots_of(item), scratch, stashes, constant(1)});
  });
  if (plan_.passes[pass].streams) builder_.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});
  builder_.CreateRetVoid();
  if (pass >= plan_.level_count) return;
  function = create_function("finish" + std::to_string(pass), kinds, true);
  scratch = function->getArg(3);
  emit_loop(function->getArg(1), function->getArg(2), 1, [&](Value* item) {
    emit_clear_totals(pass, scratch);
    emit_loop(constant(0), block_count(), 1, [&](Value* block) {
      Value* number = builder_.CreateAdd(builder_.CreateMul(item, block_count()), block);
      emit_fold_totals(pass, scratch, partial_of(number));
    });
    emit_call(true, pass, {frame_.words, item, scratch, slots_of(item), constant(1)});
  });
  builder_.CreateRetVoid();
}

}  // namespace lockstep::dynamic::jit

// Single events, made by hand from what an op returned before.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "dynamic/vm/executor.h"

namespace lockstep::dynamic {

using graph::ArgKind;

// An op with its arguments as an event over storages, with twins for the results.
struct EventCase {
  graph::Node node;
  graph::Signature signature;
  Event event;
  std::vector<at::Tensor> expected;

  // `shown`: what the event gets, where it differs from what the op is called with (results of other events, that have
  // no data yet).
  EventCase(const char* name, const torch::jit::Stack& args) : EventCase(name, args, args) {}
  EventCase(const char* name, const torch::jit::Stack& args, const torch::jit::Stack& shown) {
    node.op = graph::find_op_info(name);
    signature.op = node.op;
    event.node = &node;
    event.signature = &signature;
    for (size_t a = 0; a < args.size(); ++a) add_argument(node.op->args[a].kind, shown[a]);
    torch::jit::Stack stack = args;
    node.op->handle.callBoxed(&stack);
    expected = fresh_results(*node.op, stack, &signature.list_sizes);
    std::vector<const c10::StorageImpl*> groups;
    for (const auto& tensor : expected) {
      auto layout = graph::layout_of(tensor);
      if (tensor.defined()) {
        const auto* storage = tensor.storage().unsafeGetStorageImpl();
        const auto known = std::find(groups.begin(), groups.end(), storage);
        layout.storage_group = static_cast<int>(known - groups.begin());
        if (known == groups.end()) {
          groups.push_back(storage);
          event.outputs.push_back(create_empty_storage(layout.storage_bytes));
        }
      }
      signature.outputs.push_back(layout);
    }
  }

  void add_argument(ArgKind kind, const c10::IValue& value) {
    if (kind == ArgKind::kTensor) {
      event.args.push_back(value.isNone() ? c10::IValue() : c10::IValue(true));
      add_operand(value.isTensor() ? value.toTensor() : at::Tensor());
    } else if (kind == ArgKind::kTensorList || kind == ArgKind::kOptionalTensorList) {
      const auto items = value.toListRef();
      event.args.push_back(static_cast<int64_t>(items.size()));
      for (const auto& item : items) add_operand(item.isTensor() ? item.toTensor() : at::Tensor());
    } else {
      event.args.push_back(value);
    }
  }
  void add_operand(const at::Tensor& tensor) {
    signature.inputs.push_back(graph::layout_of(tensor));
    Operand operand;
    if (tensor.defined()) {
      operand.storage = c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(
          tensor.storage().unsafeGetStorageImpl());
      operand.offset = tensor.storage_offset();
    }
    event.operands.push_back(operand);
  }
  EventCase(const EventCase&) = delete;

  at::Tensor result(size_t i) const {
    const auto& layout = signature.outputs[i];
    return tensor_over(event.outputs[layout.storage_group], layout, layout.offset);
  }
  void run() {
    at::AutoDispatchBelowADInplaceOrView below;
    execute(event);
  }
  void run_and_compare() {
    run();
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!expected[i].defined()) continue;
      EXPECT_TRUE(at::equal(result(i), expected[i])) << node.op->name << " result " << i;
      EXPECT_EQ(result(i).strides(), expected[i].strides()) << node.op->name << " result " << i;
    }
  }
};

}  // namespace lockstep::dynamic

#include "graph/op_info.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <unordered_map>

namespace lockstep::graph {

namespace {

bool is_tensor_type(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  auto optional = type->cast<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::TensorType;
}

c10::TypePtr list_element(const c10::TypePtr& type) {
  if (auto list = type->cast<c10::ListType>()) return list->getElementType();
  if (auto optional = type->cast<c10::OptionalType>())
    if (auto list = optional->getElementType()->cast<c10::ListType>()) return list->getElementType();
  return nullptr;
}

bool holds_tensors(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return true;
    case c10::TypeKind::ListType:
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::DictType:
    case c10::TypeKind::TupleType:
    case c10::TypeKind::UnionType: {
      const auto inner = type->containedTypes();
      return std::any_of(inner.begin(), inner.end(), holds_tensors);
    }
    case c10::TypeKind::AnyType: return true;  // perhaps
    default: return false;
  }
}

ArgKind kind_of(const c10::TypePtr& type) {
  if (is_tensor_type(type)) return ArgKind::kTensor;
  if (auto element = list_element(type)) {
    if (element->kind() == c10::TypeKind::TensorType) return ArgKind::kTensorList;
    if (is_tensor_type(element)) return ArgKind::kOptionalTensorList;
  }
  if (holds_tensors(type)) return ArgKind::kNestedTensors;
  if (list_element(type)) return ArgKind::kConstant;
  auto base = type;
  if (auto optional = type->cast<c10::OptionalType>()) base = optional->getElementType();
  if (base->kind() == c10::TypeKind::NumberType || base->kind() == c10::TypeKind::FloatType)
    return ArgKind::kScalar;
  if (base->kind() == c10::TypeKind::GeneratorType) return ArgKind::kGenerator;
  return ArgKind::kConstant;
}

int aliased_argument(const c10::FunctionSchema& schema, const c10::AliasInfo& info) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* arg = schema.arguments()[i].alias_info();
    if (!arg) continue;
    for (const auto& set : arg->beforeSets())
      if (info.beforeSets().count(set)) return static_cast<int>(i);
  }
  return -1;
}

OpKind default_kind(const OpInfo& info, const c10::FunctionSchema& schema) {
  if (info.name.rfind("profiler::", 0) == 0) return OpKind::kPass;
  const auto& op = info.handle;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::CPU))
    return OpKind::kComposite;
  bool host = false, alias = false;
  for (size_t r = 0; r < info.returns.size(); ++r) {
    host |= !info.returns[r].is_tensor;
    const auto* returned = schema.returns()[r].alias_info();
    alias |= returned && !returned->isWrite();
  }
  if (host) return OpKind::kHost;
  if (op.hasTag(at::Tag::inplace_view)) return OpKind::kMetadata;
  if (alias && !info.writes) return OpKind::kView;
  return OpKind::kCompute;
}

}  // namespace

namespace {

bool holds_device(const c10::TypePtr& type) {
  const auto* optional = type->castRaw<c10::OptionalType>();
  return (optional ? *optional->getElementType() : *type).kind() == c10::TypeKind::DeviceObjType;
}

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& op) : handle(op) {
  const auto& schema = op.schema();
  name = base = schema.name();
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  for (const auto& arg : schema.arguments()) {
    ArgSlot slot{kind_of(arg.type()), arg.alias_info() && arg.alias_info()->isWrite()};
    const auto element = list_element(arg.type());
    slot.holds_numbers = element && element->kind() == c10::TypeKind::NumberType;
    writes |= slot.is_written;
    draws |= slot.kind == ArgKind::kGenerator;
    has_nested_tensors |= slot.kind == ArgKind::kNestedTensors;
    if (holds_device(arg.type())) device_argument = static_cast<int>(args.size());
    if (arg.name() == "alpha" && slot.kind == ArgKind::kScalar) alpha_argument = static_cast<int>(args.size());
    args.push_back(slot);
  }
  for (const auto& ret : schema.returns()) {
    ReturnSlot slot;
    const auto kind = kind_of(ret.type());
    slot.is_list = kind == ArgKind::kTensorList || kind == ArgKind::kOptionalTensorList;
    slot.is_tensor = slot.is_list || kind == ArgKind::kTensor;
    if (ret.alias_info() && ret.alias_info()->isWrite())
      slot.alias_arg = aliased_argument(schema, *ret.alias_info());
    returns.push_back(slot);
  }
  draws |= op.hasTag(at::Tag::nondeterministic_seeded);
  dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape);
  is_pointwise = op.hasTag(at::Tag::pointwise);
  bool all_alias = true;  // of those that return nothing, too
  for (const auto& ret : returns) all_alias &= ret.alias_arg >= 0;
  returns_out = op.hasTag(at::Tag::out);
  layout_from_scalars = returns_out || !(is_pointwise || all_alias);
  kind = default_kind(*this, schema);
  if (op.hasTag(at::Tag::data_dependent_output) && kind == OpKind::kCompute) kind = OpKind::kHost;
  correct_effects(*this);
  if (has_nested_tensors && kind != OpKind::kComposite && kind != OpKind::kPass) kind = OpKind::kEager;
}

namespace {

// An op that goes with the library that defined it leaves its address to another one.
std::atomic<uint32_t> op_epoch{0};

struct Registry {
  std::mutex mutex;
  std::deque<OpInfo> infos;  // addresses stay
  std::unordered_map<const void*, const OpInfo*> by_schema;
  std::unique_ptr<c10::RegistrationHandleRAII> listening;
};

Registry& registry();

class ForgetsOps : public c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    auto& known = registry();
    std::lock_guard lock(known.mutex);
    if (known.by_schema.erase(&op.operator_name())) op_epoch.fetch_add(1, std::memory_order_relaxed);
  }
};

Registry& registry() {
  static auto* instance = [] {  // outlives static destruction: threads may still look things up, and libraries go
    auto* made = new Registry;
    made->listening = std::make_unique<c10::RegistrationHandleRAII>(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<ForgetsOps>()));
    return made;
  }();
  return *instance;
}

struct CacheLine {
  const void* schema = nullptr;
  const OpInfo* info = nullptr;
  uint32_t epoch = 0;
};

}  // namespace

std::mutex& op_registry_mutex() { return registry().mutex; }

const OpInfo& op_info(const c10::OperatorHandle& op) {
  constexpr size_t kLines = 1024;
  static thread_local CacheLine cache[kLines];
  const void* schema = &op.operator_name();
  auto& line = cache[(reinterpret_cast<uintptr_t>(schema) >> 4) % kLines];
  const uint32_t epoch = op_epoch.load(std::memory_order_relaxed);
  if (line.schema == schema && line.epoch == epoch) return *line.info;
  auto& known = registry();
  std::lock_guard lock(known.mutex);
  auto found = known.by_schema.find(schema);
  if (found == known.by_schema.end()) {
    known.infos.emplace_back(op);
    found = known.by_schema.emplace(schema, &known.infos.back()).first;
  }
  line = {schema, found->second, epoch};
  return *found->second;
}

void note_python_kernel(std::string_view full_name) {
  if (const OpInfo* info = find_op_info(full_name)) info->python_kernel.store(true);
}

const OpInfo* find_op_info(std::string_view full_name) {
  const auto scope = full_name.find("::");
  const auto dot = scope == std::string_view::npos ? scope : full_name.find('.', scope);
  const std::string name(full_name.substr(0, dot));
  const std::string overload(dot == std::string_view::npos ? "" : full_name.substr(dot + 1));
  auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  return op ? &op_info(*op) : nullptr;
}

}  // namespace lockstep::graph

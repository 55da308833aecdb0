#include "graph/verifier.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

#include <set>
#include <unordered_map>

#include "graph/value_text.h"

namespace lockstep::graph {

const char* violation_name(Violation violation) {
  switch (violation) {
#define X(name, law) \
  case Violation::name: return #name;
    LOCKSTEP_VIOLATIONS(X)
#undef X
  }
  return "";
}

const char* violation_law(Violation violation) {
  switch (violation) {
#define X(name, law) \
  case Violation::name: return law;
    LOCKSTEP_VIOLATIONS(X)
#undef X
  }
  return "";
}

std::string Finding::str() const {
  return std::string(violation_name(violation)) + " at node " + std::to_string(node) + ": " + detail + " (" +
         violation_law(violation) + ")";
}

namespace {

bool fits(const c10::IValue& value, const c10::TypePtr& type);

bool fits_list(const c10::IValue& value, const c10::TypePtr& element) {
  if (!value.isList()) return false;
  for (const auto& item : value.toListRef())
    if (!fits(item, element)) return false;
  return true;
}

// Whether a constant can stand where the schema says `type`. Types that have no text stand as None.
bool fits(const c10::IValue& value, const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return value.isNone() || fits(value, type->expect<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType: return fits_list(value, type->expect<c10::ListType>()->getElementType());
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return value.isInt() || value.isSymInt();
    case c10::TypeKind::FloatType: return value.isDouble() || value.isSymFloat();
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType: return value.isBool() || value.isSymBool();
    case c10::TypeKind::NumberType: return value.isScalar();
    case c10::TypeKind::ComplexType: return value.isComplexDouble();
    case c10::TypeKind::StringType: return value.isString();
    case c10::TypeKind::DeviceObjType: return value.isDevice();
    default: return true;
  }
}

bool has_list_argument(const OpInfo& op) {
  for (const auto& arg : op.args)
    if (arg.kind == ArgKind::kTensorList || arg.kind == ArgKind::kOptionalTensorList) return true;
  return false;
}

size_t tensor_argument_count(const OpInfo& op) {
  size_t count = 0;
  for (const auto& arg : op.args) count += arg.kind == ArgKind::kTensor;
  return count;
}

// How many fresh results an op has; -1 where lists leave it open.
int64_t fresh_result_count(const OpInfo& op) {
  int64_t count = 0;
  for (const auto& ret : op.returns) {
    if (ret.alias_arg >= 0 || !ret.is_tensor) continue;
    if (ret.is_list) return -1;
    ++count;
  }
  return count;
}

class Verifier {
 public:
  explicit Verifier(const TraceGraph& graph) : graph_(graph) {}

  std::vector<Finding> run() {
    const auto& nodes = graph_.nodes();
    if (nodes.size() < 2) {
      found(Violation::malformed_ends, 0, std::to_string(nodes.size()) + " nodes");
      return std::move(findings_);
    }
    for (const auto& node : nodes) by_id_.emplace(node->id, node.get());
    for (const auto& node : nodes) check_ends(*node);
    for (const auto& node : nodes) check_edges(*node);
    check_predecessors();
    if (!has_gaps()) check_reachable();
    for (const auto& node : nodes) {
      if (!node->op) continue;
      check_constants(*node);
      check_sources(*node);
      if (node->signature) check_signature(*node);
    }
    return std::move(findings_);
  }

 private:
  void found(Violation violation, uint32_t node, std::string detail) {
    findings_.push_back({violation, node, std::move(detail)});
  }

  const Node* find(uint64_t id) const {
    const auto found = id > UINT32_MAX ? by_id_.end() : by_id_.find(static_cast<uint32_t>(id));
    return found == by_id_.end() ? nullptr : found->second;
  }
  bool is_own(const Node* node) const { return node && find(node->id) == node; }
  bool has_gaps() const { return graph_.nodes().back()->id >= graph_.nodes().size(); }
  // The least recently used nodes are forgotten; what names them stays.
  bool was_forgotten(uint64_t id) const { return !find(id) && id < graph_.nodes().back()->id; }
  bool is_op(uint64_t id) const { return find(id) && find(id)->op; }

  void check_ends(const Node& node) {
    const size_t place = place_++;
    const auto id = static_cast<uint32_t>(place);
    if (place < 2 ? node.id != place : node.id <= last_id_)
      found(Violation::wrong_id, id, "id " + std::to_string(node.id));
    last_id_ = node.id;
    if (place < 2) {
      if (node.op) found(Violation::malformed_ends, id, "has op " + node.op->name);
      return;
    }
    if (!node.op) return found(Violation::missing_op, id, "no op");
    auto& ops = at_location_[node.location];
    if (!ops.insert(node.op).second) found(Violation::duplicate_node, id, node.op->name);
  }

  void check_edges(const Node& node) {
    std::set<const Node*> targets;
    for (const auto& edge : node.next) {
      if (!is_own(edge.to)) {
        found(Violation::foreign_edge, node.id, "to a node that is not in this graph");
        continue;
      }
      if (!targets.insert(edge.to).second)
        found(Violation::duplicate_edge, node.id, "to node " + std::to_string(edge.to->id));
      if (edge.to->id == 0) found(Violation::malformed_ends, node.id, "an edge to the entry");
      ++predecessors_[edge.to];
    }
    if (node.id == 1 && !node.next.empty()) found(Violation::malformed_ends, 1, "an edge from the exit");
  }

  void check_predecessors() {
    for (const auto& node : graph_.nodes())
      if (const auto count = predecessors_[node.get()]; count != node->predecessor_count)
        found(Violation::wrong_predecessor_count, node->id,
              std::to_string(node->predecessor_count) + ", but " + std::to_string(count) + " edges");
  }

  void check_reachable() {
    std::set<const Node*> reached{graph_.nodes()[0].get()};
    std::vector<const Node*> open(reached.begin(), reached.end());
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      for (const auto& edge : node->next)
        if (is_own(edge.to) && reached.insert(edge.to).second) open.push_back(edge.to);
    }
    for (const auto& node : graph_.nodes())
      if (node->op && !reached.count(node.get()))
        found(Violation::unreachable_node, node->id, node->op->name);
  }

  void check_constants(const Node& node) {
    const auto& op = *node.op;
    const auto& arguments = op.handle.schema().arguments();
    if (node.constants.size() != op.args.size() || node.varies.size() != op.args.size())
      return found(Violation::wrong_argument_count, node.id,
                   std::to_string(node.constants.size()) + " constants and " + std::to_string(node.varies.size()) +
                       " marks for " + std::to_string(op.args.size()) + " arguments");
    for (size_t a = 0; a < op.args.size(); ++a) {
      const auto& value = node.constants[a];
      const auto detail = "argument " + arguments[a].name() + " is " + print_value(value).value_or(value.tagKind());
      if (!is_constant(op.args[a].kind)) {
        if (!value.isNone()) found(Violation::tensor_constant, node.id, detail);
        if (node.varies[a]) found(Violation::varying_tensor, node.id, "argument " + arguments[a].name());
      } else if (!fits(value, arguments[a].real_type())) {
        found(Violation::wrong_constant, node.id, detail);
      }
    }
    if (node.is_plain_bool && op.kind != OpKind::kHost)
      found(Violation::plain_bool_without_fetch, node.id, op.name);
    if (node.forward_node >= 0 && !is_op(node.forward_node) && !was_forgotten(node.forward_node))
      found(Violation::unknown_forward_node, node.id, std::to_string(node.forward_node));
  }

  void check_sources(const Node& node) {
    if (!has_list_argument(*node.op) && node.operands.size() != tensor_argument_count(*node.op))
      found(Violation::wrong_operand_count, node.id,
            std::to_string(node.operands.size()) + " for " + node.op->name);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const auto& source = node.operands[i];
      if (source.kind != OperandSource::Kind::kNode) continue;
      const auto detail = "operand " + std::to_string(i) + " comes from output " + std::to_string(source.output) +
                          " of node " + std::to_string(source.node);
      if (!is_op(source.node)) {
        if (!was_forgotten(source.node)) found(Violation::unknown_source, node.id, detail);
      } else if (const auto count = fresh_result_count(*find(source.node)->op);
                 count >= 0 && source.output >= count) {
        found(Violation::unknown_source_output, node.id, detail);
      }
    }
  }

  void check_signature(const Node& node) {
    const auto& signature = *node.signature;
    if (signature.op != node.op)
      return found(Violation::foreign_signature, node.id, signature.op ? signature.op->name : "no op");
    if (!has_list_argument(*node.op) && signature.inputs.size() != tensor_argument_count(*node.op))
      found(Violation::wrong_input_count, node.id, std::to_string(signature.inputs.size()));
    check_output_count(node);
    int groups = 0;
    for (const auto& output : signature.outputs) {
      if (!output.is_defined()) continue;
      if (output.storage_group < 0 || output.storage_group > groups) {
        found(Violation::wrong_storage_group, node.id, print_layout(output));
      } else {
        groups += output.storage_group == groups;
      }
    }
    for (const auto& layout : signature.inputs) check_layout(node, layout);
    for (const auto& layout : signature.outputs) check_layout(node, layout);
  }

  void check_output_count(const Node& node) {
    const auto& signature = *node.signature;
    int64_t expected = 0;
    size_t lists = 0;
    for (const auto& ret : node.op->returns) {
      if (ret.alias_arg >= 0 || !ret.is_tensor) continue;
      if (!ret.is_list) {
        ++expected;
      } else if (lists < signature.list_sizes.size()) {
        expected += signature.list_sizes[lists++];
      }
    }
    if (expected != static_cast<int64_t>(signature.outputs.size()) || lists != signature.list_sizes.size())
      found(Violation::wrong_output_count, node.id,
            std::to_string(signature.outputs.size()) + ", expected " + std::to_string(expected));
  }

  void check_layout(const Node& node, const Layout& layout) {
    if (!layout.is_defined()) return;
    bool is_well_formed = layout.sizes.size() == layout.strides.size();
    for (int64_t size : layout.sizes) is_well_formed &= size >= 0;
    if (!is_well_formed) return found(Violation::wrong_rank, node.id, print_layout(layout));
    if (layout.offset < 0 || layout.end_bytes() > layout.storage_bytes)
      found(Violation::layout_beyond_storage, node.id, print_layout(layout));
  }

  const TraceGraph& graph_;
  std::vector<Finding> findings_;
  std::unordered_map<uint32_t, const Node*> by_id_;
  size_t place_ = 0;
  uint32_t last_id_ = 0;
  std::unordered_map<uint64_t, std::set<const OpInfo*>> at_location_;
  std::unordered_map<const Node*, uint32_t> predecessors_;
};

}  // namespace

std::vector<Finding> verify(const TraceGraph& graph) { return Verifier(graph).run(); }

}  // namespace lockstep::graph

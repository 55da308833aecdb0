#include "graph/text.h"

#include <cstdio>

namespace lockstep::graph {

namespace {

// ---- printing

void print_source(std::string& out, size_t index, const OperandSource& source) {
  using Kind = OperandSource::Kind;
  out += "  operand " + std::to_string(index);
  switch (source.kind) {
    case Kind::kUnknown: out += " unknown"; break;
    case Kind::kVaries: out += " varies"; break;
    case Kind::kFeed: out += " feed " + print_string(source.origin); break;
    case Kind::kNode:
      out += " node " + std::to_string(source.node) + " output " + std::to_string(source.output);
      break;
  }
  out += '\n';
}

template <class Counts>
void print_counts(std::string& out, const char* word, const Counts& counts) {
  if (counts.empty()) return;
  out += std::string("  ") + word;
  for (int count : counts) out += ' ' + std::to_string(count);
  out += '\n';
}

void print_signature(std::string& out, const Signature& signature) {
  out += "  signature";
  if (signature.aliases_input) out += " aliases_input";
  if (signature.warns) out += " warns";
  if (signature.resizes) out += " resizes";
  if (signature.special) out += std::string(" special ") + reason_name(*signature.special);
  out += '\n';
  for (const auto& layout : signature.inputs) out += "  in " + print_layout(layout) + '\n';
  for (const auto& layout : signature.outputs) out += "  out " + print_layout(layout) + '\n';
  print_counts(out, "lists", signature.list_sizes);
  print_counts(out, "bumps", signature.version_bumps);
  print_counts(out, "versions", signature.output_versions);
}

void print_arguments(std::string& out, const Node& node) {
  for (size_t a = 0; a < node.constants.size(); ++a)
    if (const auto text = print_value(node.constants[a]); text && *text != "None")
      out += "  const " + std::to_string(a) + ' ' + *text + '\n';
  for (size_t a = 0; a < node.varies.size(); ++a)
    if (node.varies[a]) out += "  varies " + std::to_string(a) + '\n';
  for (size_t i = 0; i < node.operands.size(); ++i) print_source(out, i, node.operands[i]);
}

void print_edge(std::string& out, const Edge& edge) {
  out += "  edge " + std::to_string(edge.to->id) + " count " + std::to_string(edge.count);
  if (edge.after_true) out += " after_true";
  if (edge.after_false) out += " after_false";
  out += '\n';
}

void print_node(std::string& out, const Node& node) {
  out += "node " + std::to_string(node.id);
  if (node.op) {
    char key[32];
    std::snprintf(key, sizeof(key), "%llx", static_cast<unsigned long long>(node.location));
    out += ' ' + node.op->name + " @" + key + '\n';
  } else {
    out += node.id == 0 ? " entry\n" : " exit\n";
  }
  if (!node.where.empty()) out += "  where " + print_string(node.where) + '\n';
  if (!node.api_call.empty()) out += "  api " + print_string(node.api_call) + '\n';
  if (!node.autograd_node.empty() || node.forward_node >= 0)
    out += "  autograd " + print_string(node.autograd_node) + " forward " +
           std::to_string(node.forward_node) + '\n';
  if (node.is_plain_bool) out += "  plain_bool\n";
  print_arguments(out, node);
  if (node.signature) print_signature(out, *node.signature);
  for (const auto& edge : node.next) print_edge(out, edge);
}

// ---- parsing

struct PendingEdge {
  Node* from;
  uint64_t to, count, line;
  bool after_true, after_false;
};

class Parser {
 public:
  ParsedGraph parse(std::string_view text) {
    parsed_.graph = std::make_unique<TraceGraph>();
    while (!text.empty()) {
      const size_t end = text.find('\n');
      ++line_;
      parse_line(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    if (!has_version_) throw TextError(1, "expected 'lockstep-graph' and a version");
    for (const auto& edge : edges_) {
      Node* to = edge.to < next_id_ ? parsed_.graph->node_at(static_cast<uint32_t>(edge.to)) : nullptr;
      if (!to) throw TextError(edge.line, "an edge to node " + std::to_string(edge.to) + ", which is not there");
      auto& made = parsed_.graph->add_edge(edge.from, to);
      made.count = edge.count;
      made.after_true = edge.after_true;
      made.after_false = edge.after_false;
    }
    return std::move(parsed_);
  }

 private:
  void parse_line(std::string_view line) {
    TextCursor cursor(line, line_);
    if (cursor.at_end()) return;
    if (!has_version_) {
      cursor.expect("lockstep-graph");
      if (const auto version = cursor.parse_unsigned(); version != TraceGraph::kVersion)
        cursor.fail("format version " + std::to_string(version) + ", expected " +
                    std::to_string(TraceGraph::kVersion));
      has_version_ = true;
    } else {
      const auto word = cursor.parse_word();
      if (word == "node") {
        parse_node(cursor);
      } else if (!node_) {
        cursor.fail("'" + std::string(word) + "' before the first node");
      } else if (!parse_identity(word, cursor) && !parse_argument(word, cursor) &&
                 !parse_layouts(word, cursor)) {
        cursor.fail("'" + std::string(word) + "' means nothing here");
      }
    }
    if (!cursor.at_end()) cursor.fail("more than expected at the end of the line");
  }

  void parse_node(TextCursor& cursor) {
    const uint64_t id = cursor.parse_unsigned();
    if (id < next_id_ || (next_id_ < 2 && id != next_id_) || id >= UINT32_MAX)
      cursor.fail("node " + std::to_string(id) + " where " + std::to_string(next_id_) + " or a later one is next");
    next_id_ = id + 1;
    signature_ = nullptr;
    if (id < 2) {
      cursor.expect(id == 0 ? "entry" : "exit");
      node_ = parsed_.graph->node_at(static_cast<uint32_t>(id));
      return;
    }
    const std::string name(cursor.parse_word());
    const OpInfo* op = find_op_info(name);
    if (!op) cursor.fail("PyTorch has no op '" + name + "'");
    cursor.expect("@");
    const uint64_t location = cursor.parse_hex();
    if (parsed_.graph->find_node(location, op)) cursor.fail("a second node of this op at this location");
    parsed_.graph->skip_ids_to(static_cast<uint32_t>(id));  // nodes between were forgotten
    node_ = parsed_.graph->add_node(location, op);
    node_->constants.resize(op->args.size());  // None where nothing is said
    node_->varies.resize(op->args.size(), false);
  }

  bool parse_identity(std::string_view word, TextCursor& cursor) {
    if (word == "where") {
      node_->where = cursor.parse_string();
    } else if (word == "api") {
      node_->api_call = cursor.parse_string();
    } else if (word == "autograd") {
      node_->autograd_node = cursor.parse_string();
      cursor.expect("forward");
      node_->forward_node = cursor.parse_int();
    } else if (word == "plain_bool") {
      node_->is_plain_bool = true;
    } else if (word == "edge") {
      PendingEdge edge{node_, cursor.parse_unsigned(), 0, line_, false, false};
      cursor.expect("count");
      edge.count = cursor.parse_unsigned();
      edge.after_true = cursor.try_take("after_true");
      edge.after_false = cursor.try_take("after_false");
      edges_.push_back(edge);
    } else {
      return false;
    }
    return true;
  }

  size_t parse_index(TextCursor& cursor) {
    const uint64_t index = cursor.parse_unsigned();
    if (index >= node_->constants.size()) cursor.fail("the op has no argument " + std::to_string(index));
    return index;
  }

  bool parse_argument(std::string_view word, TextCursor& cursor) {
    if (word == "const") {
      const size_t index = parse_index(cursor);
      node_->constants[index] = cursor.parse_value();
    } else if (word == "varies") {
      node_->varies[parse_index(cursor)] = true;
    } else if (word == "operand") {
      if (cursor.parse_unsigned() != node_->operands.size())
        cursor.fail("operand " + std::to_string(node_->operands.size()) + " is next");
      node_->operands.push_back(parse_source(cursor));
    } else {
      return false;
    }
    return true;
  }

  OperandSource parse_source(TextCursor& cursor) {
    using Kind = OperandSource::Kind;
    OperandSource source;
    if (cursor.try_take("feed")) {
      source.kind = Kind::kFeed;
      source.origin = cursor.parse_string();
    } else if (cursor.try_take("node")) {
      source.kind = Kind::kNode;
      source.node = static_cast<uint32_t>(cursor.parse_unsigned());
      cursor.expect("output");
      source.output = static_cast<uint16_t>(cursor.parse_unsigned());
    } else if (cursor.try_take("varies")) {
      source.kind = Kind::kVaries;
    } else {
      cursor.expect("unknown");
    }
    return source;
  }

  Reason parse_reason(TextCursor& cursor) {
    const auto word = cursor.parse_word();
    for (int i = 0; i < kReasonCount; ++i)
      if (word == reason_name(static_cast<Reason>(i))) return static_cast<Reason>(i);
    cursor.fail("no reason is called '" + std::string(word) + "'");
  }

  bool parse_layouts(std::string_view word, TextCursor& cursor) {
    if (word == "signature") {
      signature_ = &parsed_.signatures.emplace_back();
      signature_->op = node_->op;
      signature_->aliases_input = cursor.try_take("aliases_input");
      signature_->warns = cursor.try_take("warns");
      signature_->resizes = cursor.try_take("resizes");
      if (cursor.try_take("special")) signature_->special = parse_reason(cursor);
      node_->signature = signature_;
      return true;
    }
    if (word != "in" && word != "out" && word != "lists" && word != "bumps" && word != "versions")
      return false;
    if (!signature_) cursor.fail("'" + std::string(word) + "' before 'signature'");
    if (word == "in") {
      signature_->inputs.push_back(cursor.parse_layout());
    } else if (word == "out") {
      signature_->outputs.push_back(cursor.parse_layout());
    } else {
      while (!cursor.at_end()) {
        const auto count = static_cast<int>(cursor.parse_int());
        if (word == "lists") {
          signature_->list_sizes.push_back(count);
        } else {
          auto& counts = word == "bumps" ? signature_->version_bumps : signature_->output_versions;
          counts.push_back(static_cast<int8_t>(count));
        }
      }
    }
    return true;
  }

  ParsedGraph parsed_;
  std::vector<PendingEdge> edges_;
  Node* node_ = nullptr;
  Signature* signature_ = nullptr;
  uint64_t next_id_ = 0;
  size_t line_ = 0;
  bool has_version_ = false;
};

}  // namespace

std::string print_graph(const TraceGraph& graph) {
  std::string out = "lockstep-graph " + std::to_string(TraceGraph::kVersion) + '\n';
  for (const auto& node : graph.nodes()) print_node(out, *node);
  return out;
}

ParsedGraph parse_graph(std::string_view text) { return Parser().parse(text); }

}  // namespace lockstep::graph

#include "tests/support/kernel_report.h"

#include <algorithm>
#include <sstream>

#include "dynamic/jit/kernel_spec.h"
#include "dynamic/vm/hidden_layout.h"
#include "dynamic/vm/packed_mask.h"
#include "dynamic/vm/memory_log.h"
#include "dynamic/vm/timeline.h"
#include "tests/support/test_host.h"

namespace lockstep::support {

namespace {

using dynamic::Span;
using dynamic::SpanKind;

struct Ran {
  const Span* span = nullptr;
  std::vector<const graph::Node*> nodes = {};
};

// Kernels in the order in which they ended, which is that in which they began.
std::vector<Ran> kernels_of(const dynamic::Timeline& timeline) {
  std::vector<Ran> all;
  for (const auto& span : timeline.spans) {
    const bool is_at_once = span.kind == SpanKind::kNative && span.op && span.op->kind == graph::OpKind::kCompute;
    if (span.kind == SpanKind::kGroup) all.push_back({&span, {}});
    if (span.kind == SpanKind::kKernel || is_at_once) all.push_back({&span, {span.node}});
    if (span.kind == SpanKind::kMember) all.back().nodes.push_back(span.node);
  }
  return all;
}

class Reporter {
 public:
  Reporter(const TextProgram& program, const TextProgram::Values& values, const TextProgram::Values& like,
           const dynamic::MemoryLog& log)
      : program_(program), values_(values), like_(like), log_(log) {}

  std::string line_of(const Ran& ran) const {
    std::ostringstream out;
    for (size_t i = 0; i < ran.nodes.size(); ++i) out << (i ? " " : "") << name_of(*ran.nodes[i]->op);
    if (ran.span->is_own) out << " (own)";
    if (ran.span->kind == SpanKind::kNative) return out << " (at once)\n", out.str();
    std::vector<std::string> stored;
    for (const auto* node : ran.nodes) append_stored(*node, *ran.span, stored);
    for (size_t i = 0; i < stored.size(); ++i) out << (i ? " " : " -> ") << stored[i];
    if (const auto count = streams_of(*ran.span); count > 0) out << ", " << count << " past the cache";
    out << '\n';
    return out.str();
  }

 private:
  static std::string name_of(const graph::OpInfo& op) { return op.name.substr(op.name.find(':') + 2); }

  static int64_t streams_of(const Span& span) {
    if (!span.spec) return 0;
    const auto& buffers = span.spec->buffers;
    return std::count_if(buffers.begin(), buffers.end(), [](const auto& buffer) { return buffer.streaming; });
  }

  // What the kernel asked memory for: the blocks that held values lie in, and for those that were dropped since, blocks of
  // their size. "?" where some of several results of one size were stored, and which is not known.
  void append_stored(const graph::Node& node, const Span& span, std::vector<std::string>& stored) const {
    std::vector<const dynamic::BlockLife*> blocks;
    for (const auto& block : log_.blocks)
      if (block.node == &node && block.begin >= span.begin && block.begin <= span.end && !block.is_workspace)
        blocks.push_back(&block);
    const auto& names = program_.lines().at(node.location - 1).names;
    std::vector<std::string> unknown;
    for (const auto& name : names) {
      const auto found = std::find_if(blocks.begin(), blocks.end(), [&](const auto* block) {
        return block->end == 0 && values_.contains(name) && block->data == values_.at(name).storage().data();
      });
      if (found == blocks.end()) {
        unknown.push_back(name);
      } else {
        blocks.erase(found);
      }
    }
    const auto bytes_of = [&](const std::string& name) { return like_.at(name).storage().nbytes(); };
    for (const auto& name : names) {
      if (std::find(unknown.begin(), unknown.end(), name) == unknown.end()) {
        stored.push_back('%' + name);
        continue;
      }
      const auto is_of_size = [&](const auto& other) { return bytes_of(other) == bytes_of(name); };
      const auto count = std::count_if(unknown.begin(), unknown.end(), is_of_size);
      const auto room = std::count_if(blocks.begin(), blocks.end(),
                                      [&](const auto* block) { return block->bytes == bytes_of(name); });
      if (room > 0) stored.push_back('%' + name + (room < count ? "?" : ""));
    }
  }

  const TextProgram& program_;
  const TextProgram::Values &values_, &like_;
  const dynamic::MemoryLog& log_;
};

}  // namespace

std::string report_call(coexec::Function& function, const TextProgram& program, TextProgram::Values& values,
                        const TextProgram::Values& like) {
  auto& maps = dynamic::hidden_layout_statistics;
  auto& masks = dynamic::packed_mask_statistics;
  const uint64_t hidden = maps.hidden, restored = maps.restored, drawn = masks.drawn, unpacked = masks.unpacked;
  dynamic::start_memory_log();
  dynamic::start_timeline();
  {
    Call call(function, coexec::Way::kInPlace);
    program.run(values);
    call.end();
  }
  const auto timeline = dynamic::stop_timeline();
  const auto log = dynamic::stop_memory_log();
  const Reporter reporter(program, values, like, log);
  std::string report;
  for (const auto& ran : kernels_of(timeline)) report += reporter.line_of(ran);
  if (maps.hidden > hidden || maps.restored > restored)
    report += "maps: " + std::to_string(maps.hidden - hidden) + " hidden, " + std::to_string(maps.restored - restored) + " restored\n";
  if (masks.drawn > drawn || masks.unpacked > unpacked)
    report += "masks: " + std::to_string(masks.drawn - drawn) + " packed, " + std::to_string(masks.unpacked - unpacked) + " unpacked\n";
  return report;
}

}  // namespace lockstep::support

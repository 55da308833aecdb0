#include "dynamic/vm/recorded_call.h"

#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace lockstep::dynamic {

using graph::TextCursor;
using graph::TextError;

uint64_t hash_storage(const void* data, size_t bytes) {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ bytes;
  const auto* from = static_cast<const char*>(data);
  auto add = [&](uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 29;
  };
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), from += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, from, sizeof(word));
    add(word);
  }
  uint64_t rest = 0;
  if (bytes > 0) std::memcpy(&rest, from, bytes);
  add(rest);
  return hash;
}

const char* RecordedCall::bytes_at(const std::string& file, const Chunk& chunk) {
  if (chunk.offset > file.size() || chunk.bytes > file.size() - chunk.offset)
    throw std::runtime_error("a recorded call names bytes beyond the end of its file");
  return file.data() + chunk.offset;
}

namespace {

Chunk parse_chunk(TextCursor& cursor) {
  Chunk chunk;
  chunk.id = cursor.parse_unsigned();
  chunk.bytes = cursor.parse_unsigned();
  chunk.offset = cursor.parse_unsigned();
  return chunk;
}

// Whether all elements lie in the storage: kernels go where a layout says. Layout::end_bytes() holds for layouts of tensors;
// here numbers may be anything.
bool is_within_storage(const graph::Layout& layout) {
  auto last = static_cast<double>(layout.offset);
  for (size_t dim = 0; dim < layout.sizes.size(); ++dim) {
    if (layout.sizes[dim] == 0) return true;
    if (layout.sizes[dim] < 0 || layout.strides[dim] < 0) return false;
    last += static_cast<double>(layout.sizes[dim] - 1) * static_cast<double>(layout.strides[dim]);
  }
  const auto item = static_cast<double>(c10::elementSize(layout.dtype));
  return layout.offset >= 0 && (last + 1) * item <= static_cast<double>(layout.storage_bytes);
}

TensorRecord parse_tensor(TextCursor& cursor) {
  TensorRecord record;
  if (cursor.try_take("none")) return record;
  record.storage = cursor.parse_unsigned();
  record.layout = cursor.parse_layout();
  if (!is_within_storage(record.layout)) cursor.fail("a tensor that reaches beyond its storage");
  return record;
}

std::pair<uint64_t, uint64_t> parse_pair(TextCursor& cursor) {
  const uint64_t first = cursor.parse_unsigned();
  return {first, cursor.parse_unsigned()};
}

bool parse_step(std::string_view word, TextCursor& cursor, size_t line, RecordedCall& call) {
  if (word == "event") {
    EventStep event;
    event.line = line;
    event.node = cursor.parse_unsigned();
    event.is_opaque = cursor.try_take("opaque");
    event.throws = cursor.try_take("throws");
    call.steps.emplace_back(std::move(event));
  } else if (word == "feed") {
    FeedStep feed{parse_chunk(cursor)};
    feed.misalignment = cursor.parse_unsigned();
    call.steps.emplace_back(feed);
  } else if (word == "state") {
    call.steps.emplace_back(StateStep{parse_chunk(cursor)});
  } else if (word == "ambient") {
    AmbientStep ambient;
    while (!cursor.at_end()) {
      if (!ambient.text.empty()) ambient.text += ' ';
      ambient.text += cursor.parse_word();
    }
    call.steps.emplace_back(std::move(ambient));
  } else if (word == "end") {
    call.steps.emplace_back(EndStep{});
  } else if (word == "expect") {
    call.expected.push_back(parse_chunk(cursor));
  } else if (word == "expect_state") {
    call.expected_states.push_back(parse_chunk(cursor));
  } else {
    return false;
  }
  return true;
}

bool parse_detail(std::string_view word, TextCursor& cursor, EventStep& event) {
  if (word == "arg") {
    const uint64_t index = cursor.parse_unsigned();
    event.args.emplace_back(index, cursor.parse_value());
  } else if (word == "generator") {
    event.generators.push_back(parse_pair(cursor));
  } else if (word == "list") {
    event.lists.push_back(parse_pair(cursor));
  } else if (word == "in") {
    event.in.push_back(parse_tensor(cursor));
    if (cursor.try_take("same")) {
      const auto same = cursor.parse_unsigned();
      if (same + 1 >= event.in.size()) cursor.fail("the same as input " + std::to_string(same) + ", which is not before it");
      event.in.back().same_as = static_cast<int64_t>(same);
    }
  } else if (word == "out") {
    event.out.push_back(parse_tensor(cursor));
  } else if (word == "value") {
    event.values.push_back(cursor.parse_value());
  } else if (word == "after") {
    AfterRecord after;
    after.storage = cursor.parse_unsigned();
    after.bytes = cursor.parse_unsigned();
    after.hash = cursor.parse_hex();
    event.after.push_back(after);
  } else {
    return false;
  }
  return true;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + " cannot be read");
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

}  // namespace

void parse_way(std::string_view text, RecordedCall& call) {
  size_t line = 0;
  bool is_complete = false;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    TextCursor cursor(text.substr(0, end), ++line);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line == 1) {
      cursor.expect("lockstep-way");
      if (const auto version = cursor.parse_unsigned(); version != kWayVersion)
        cursor.fail("format version " + std::to_string(version) + ", expected " + std::to_string(kWayVersion));
    }
    if (cursor.at_end()) continue;
    const auto word = cursor.parse_word();
    is_complete = word == "complete";
    auto* event = call.steps.empty() ? nullptr : std::get_if<EventStep>(&call.steps.back());
    if (!is_complete && !(event && parse_detail(word, cursor, *event)) && !parse_step(word, cursor, line, call))
      cursor.fail("'" + std::string(word) + "' means nothing here");
    if (!cursor.at_end()) cursor.fail("more than expected at the end of the line");
  }
  if (line == 0) throw TextError(1, "expected 'lockstep-way' and a version");
  if (!is_complete) throw TextError(line, "the way is cut off here: 'complete' is its last line");
}

RecordedCall read_recorded_call(const std::string& folder) {
  RecordedCall call;
  std::string path;
  try {
    path = folder + "/graph.txt";
    call.graph = graph::parse_graph(read_file(path));
    path = folder + "/way.txt";
    parse_way(read_file(path), call);
  } catch (const TextError& error) {
    throw std::runtime_error(path + ", " + error.what());
  }
  call.feeds = read_file(folder + "/feeds.bin");
  call.expected_bytes = read_file(folder + "/expected.bin");
  return call;
}

}  // namespace lockstep::dynamic

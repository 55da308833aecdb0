// CPython 3.11 frames. Assumes: the thread state of this thread is ours even without the GIL (only this thread changes
// its frames); code objects that were seen are kept alive until the table is emptied, so an address names one code
// object. Guarantees: the same source position gives the same key before and after the interpreter has specialised its
// instructions (offsets are taken to the start of the instruction, a PRECALL to its CALL), and equal code objects made
// twice (eval, a cell run again) give equal keys. Ends: at the first frame outside of library code, or after kMaxFrames.
#include "tracer/python_frames.h"

#include "tracer/hash.h"

#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <unordered_map>

static_assert(PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000, "written for CPython 3.11");

namespace lockstep::tracer {

namespace {

constexpr int kMaxFrames = 64;
constexpr size_t kMaxCodes = 1 << 15;
constexpr int kLevelsOfACall = 2;
constexpr ptrdiff_t kStackOfACall = 1 << 18;  // of it, and of the ops in it

struct Settings {
  std::vector<std::string> library_folders;
  std::vector<int> cache_entries;
  int precall = -1;
  std::vector<int> truth_tests;
};
Settings& settings() {
  static auto* instance = new Settings;
  return *instance;
}

// This thread's: its lowest address; null if nobody knows.
struct Stack {
  const char* end = nullptr;
  size_t size = 0;
};
Stack find_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* lowest = nullptr;
  size_t size = 0;
  const bool is_known = pthread_attr_getstack(&attributes, &lowest, &size) == 0;
  pthread_attr_destroy(&attributes);
  return is_known ? Stack{static_cast<const char*>(lowest), size} : Stack{};
}
const Stack& stack_of_this_thread() {
  thread_local const Stack stack = find_stack();
  return stack;
}

struct CodeInfo {
  uint64_t content = 0;
  bool is_library = false;
  bool is_engine_entry = false;
  bool is_finalizer = false;
  std::vector<uint16_t> start;  // by instruction word: the first word of its instruction
  std::vector<bool> is_truth_test;  // by instruction word
};

uint64_t hash_bytes(const void* data, size_t size) {
  uint64_t hash = 0xcbf29ce484222325ull;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
  return hash;
}

std::string text_of(PyObject* unicode) {
  const char* text = unicode ? PyUnicode_AsUTF8(unicode) : nullptr;
  if (!text) PyErr_Clear();
  return text ? text : "";
}

std::unique_ptr<CodeInfo> examine(PyCodeObject* code) {
  auto info = std::make_unique<CodeInfo>();
  const std::string file = text_of(code->co_filename), name = text_of(code->co_qualname);
  PyObject* bytes = PyCode_GetCode(code);
  const auto* words = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes));
  const size_t size = PyBytes_GET_SIZE(bytes);
  info->content = mix(mix(hash_bytes(words, size), hash_bytes(file.data(), file.size())),
                      mix(hash_bytes(name.data(), name.size()), code->co_firstlineno));
  for (const auto& folder : settings().library_folders) info->is_library |= file.rfind(folder, 0) == 0;
  info->is_engine_entry = info->is_library && name == "_engine_run_backward";
  info->is_finalizer = name.size() >= 7 && name.compare(name.size() - 7, 7, "__del__") == 0;
  const auto& tests = settings().truth_tests;
  info->start.resize(size / 2);
  info->is_truth_test.resize(size / 2);
  for (size_t i = 0; i < info->start.size(); ++i)
    info->is_truth_test[i] = std::find(tests.begin(), tests.end(), words[2 * i]) != tests.end();
  for (size_t i = 0; i < info->start.size();) {
    const int opcode = words[2 * i];
    const size_t length = 1 + settings().cache_entries[opcode];
    // the call of PRECALL and CALL happens in either, depending on specialisation
    const size_t first = opcode == settings().precall ? i + length : i;
    for (size_t j = i; j < i + length && j < info->start.size(); ++j)
      info->start[j] = static_cast<uint16_t>(first);
    i += length;
  }
  Py_DECREF(bytes);
  return info;
}

// By address of the code object; entries hold the code object.
class CodeTable {
 public:
  const CodeInfo& get(PyCodeObject* code) {
    auto& line = lines_[(reinterpret_cast<uintptr_t>(code) >> 4) % kLines];
    if (line.code == code) return *line.info;
    auto found = table_.find(code);
    if (found == table_.end()) {
      PyGILState_STATE gil = PyGILState_Ensure();
      if (table_.size() >= kMaxCodes) clear_with_gil();
      Py_INCREF(code);
      found = table_.emplace(code, examine(code)).first;
      PyGILState_Release(gil);
    }
    lines_[(reinterpret_cast<uintptr_t>(code) >> 4) % kLines] = {code, found->second.get()};
    return *found->second;
  }

 private:
  void clear_with_gil() {
    for (auto& line : lines_) line = {};
    const auto old = std::exchange(table_, {});  // who is told of a code object's end may ask for ops
    for (auto& [code, info] : old) Py_DECREF(code);
  }
  static constexpr size_t kLines = 512;
  struct Line {
    PyCodeObject* code = nullptr;
    const CodeInfo* info = nullptr;
  };
  Line lines_[kLines];
  std::unordered_map<PyCodeObject*, std::unique_ptr<CodeInfo>> table_;
};

class PythonProgramCounter : public ProgramCounter {
 public:
  Reading read() override {
    Reading reading;
    auto* frame = innermost();
    uint64_t key = 0x51ed270b;
    for (int depth = 0; frame && depth < kMaxFrames; frame = frame->previous) {
      if (_PyFrame_IsIncomplete(frame)) continue;
      const CodeInfo& info = codes_.get(frame->f_code);
      if (depth == 0 && info.is_engine_entry) {
        reading.in_engine = true;
        return reading;
      }
      key = mix(key, info.content + offset_of(frame, info));
      reading.unrecorded |= info.is_finalizer;
      ++depth;
      if (!info.is_library) break;
    }
    reading.key = key;
    return reading;
  }

  LocationDetails describe() override {
    PyGILState_STATE gil = PyGILState_Ensure();
    LocationDetails details;
    int depth = 0;
    _PyInterpreterFrame *last = nullptr, *last_in_library = nullptr;
    for (auto* frame = innermost(); frame && depth < kMaxFrames; frame = frame->previous) {
      if (_PyFrame_IsIncomplete(frame)) continue;
      const CodeInfo& info = codes_.get(frame->f_code);
      if (depth == 0) {
        const size_t at = offset_of(frame, info);
        details.is_plain_bool = at < info.is_truth_test.size() && info.is_truth_test[at];
      }
      ++depth;
      last = frame;
      if (!info.is_library) break;
      last_in_library = frame;
    }
    if (last) details.where = place(last);
    if (last_in_library) details.api_call = text_of(last_in_library->f_code->co_qualname);
    PyGILState_Release(gil);
    return details;
  }

 private:
  static _PyInterpreterFrame* innermost() {
    PyThreadState* thread = PyGILState_GetThisThreadState();
    return thread ? thread->cframe->current_frame : nullptr;
  }

  static size_t offset_of(const _PyInterpreterFrame* frame, const CodeInfo& info) {
    const auto raw = static_cast<size_t>(frame->prev_instr - _PyCode_CODE(frame->f_code));
    return raw < info.start.size() ? info.start[raw] : raw;
  }

  static std::string place(_PyInterpreterFrame* frame) {
    const int byte = static_cast<int>((frame->prev_instr - _PyCode_CODE(frame->f_code)) * sizeof(_Py_CODEUNIT));
    return text_of(frame->f_code->co_filename) + ":" + std::to_string(PyCode_Addr2Line(frame->f_code, byte)) +
           " in " + text_of(frame->f_code->co_qualname);
  }

  CodeTable codes_;
};

}  // namespace

void configure_frames(std::vector<std::string> library_folders, std::vector<int> cache_entries,
                      int precall_opcode, std::vector<int> truth_test_opcodes) {
  settings() = {std::move(library_folders), std::move(cache_entries), precall_opcode,
                std::move(truth_test_opcodes)};
  has_stack_for_call();  // asks for the end of the stack now: on the main thread that reads a long file
}

std::unique_ptr<ProgramCounter> create_python_program_counter() {
  return std::make_unique<PythonProgramCounter>();
}

RecursionAllowance::RecursionAllowance() { PyThreadState_Get()->recursion_remaining += kLevelsOfACall; }
RecursionAllowance::~RecursionAllowance() { PyThreadState_Get()->recursion_remaining -= kLevelsOfACall; }

bool has_stack_for_call() {
  const char* end = stack_of_this_thread().end;
  const char here = 0;
  return !end || &here - end > kStackOfACall;
}

bool has_small_stack() {
  const auto& stack = stack_of_this_thread();
  return stack.end && stack.size <= 2 * static_cast<size_t>(kStackOfACall);
}

}  // namespace lockstep::tracer

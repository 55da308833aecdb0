#include "dynamic/jit/object_code.h"

#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Pass.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/Scalar.h>
#include <llvm/Transforms/Utils.h>

#include <mutex>
#include <stdexcept>

#include "dynamic/jit/kernel_emitter.h"

namespace lockstep::dynamic::jit {
namespace {

// LLVM ends the process on what it calls fatal errors. Ours goes on: compile_object catches this.
[[noreturn]] void throw_fatal_error(void*, const char* message, bool) { throw std::runtime_error(message); }

void switch_on(const char* option) {
  auto& options = llvm::cl::getRegisteredOptions();
  auto found = options.find(option);
  if (found != options.end()) static_cast<llvm::cl::opt<bool>*>(found->second)->setValue(true);
}

}  // namespace

void prepare_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::install_fatal_error_handler(&throw_fatal_error);
    // A sixth to a third of compiling; what they would do was done when the code was emitted, or by the hardware.
    for (const char* pass : {"disable-lsr", "disable-post-ra"}) switch_on(pass);
  });
}

namespace {

std::unique_ptr<llvm::TargetMachine> create_machine(const HostTarget& target, std::string* reason) {
  const char* triple = "x86_64-unknown-linux-gnu";
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(triple, *reason);
  if (!found) return nullptr;
  return std::unique_ptr<llvm::TargetMachine>(found->createTargetMachine(triple, target.cpu, target.features, {},
                                                                         llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                                                         llvm::CodeGenOptLevel::Default, true));
}

std::unique_ptr<llvm::Module> create_module(llvm::LLVMContext& context, llvm::TargetMachine& machine,
                                            const KernelSpec& spec, const LoopPlan& plan, const HostTarget& target) {
  auto module = std::make_unique<llvm::Module>("kernel", context);
  module->setDataLayout(machine.createDataLayout());
  module->setTargetTriple(machine.getTargetTriple().str());
  llvm::IRBuilder<> builder(context);
  CodeContext code{*module, builder, target};
  KernelEmitter(code, spec, plan).emit();
  return module;
}

std::string compile_or_throw(const KernelSpec& spec, const LoopPlan& plan, const HostTarget& target,
                             std::string* reason) {
  auto machine = create_machine(target, reason);
  if (!machine) return {};
  llvm::LLVMContext context;
  auto module = create_module(context, *machine, spec, plan, target);
#ifndef NDEBUG
  if (llvm::verifyModule(*module, &llvm::errs())) throw std::runtime_error("malformed code");
#endif
  llvm::SmallVector<char, 0> object;
  llvm::raw_svector_ostream stream(object);
  llvm::legacy::PassManager passes;
  // First, or a pass that wants it makes one that knows no target, and masked loads are taken apart.
  passes.add(llvm::createTargetTransformInfoWrapperPass(machine->getTargetIRAnalysis()));
  passes.add(llvm::createPromoteMemoryToRegisterPass());
  passes.add(llvm::createEarlyCSEPass());
  if (machine->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::ObjectFile)) {
    *reason = "the target writes no object files";
    return {};
  }
  passes.run(*module);
  return {object.begin(), object.end()};
}

}  // namespace

std::string compile_object(const KernelSpec& spec, const LoopPlan& plan, const HostTarget& target,
                           std::string* reason) {
  prepare_llvm();
  try {
    return compile_or_throw(spec, plan, target, reason);
  } catch (const std::exception& error) {
    *reason = std::string("LLVM: ") + error.what();
    return {};
  }
}

std::string print_code(const KernelSpec& spec, const LoopPlan& plan, const HostTarget& target) {
  prepare_llvm();
  std::string text;
  auto machine = create_machine(target, &text);
  if (!machine) return text;
  llvm::LLVMContext context;
  auto module = create_module(context, *machine, spec, plan, target);
  llvm::raw_string_ostream stream(text);
  llvm::verifyModule(*module, &stream);
  module->print(stream, nullptr);
  return text;
}

std::string llvm_version() { return LLVM_VERSION_STRING; }

}  // namespace lockstep::dynamic::jit

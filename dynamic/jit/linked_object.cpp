// Linking of objects into the process through ORC. One session for the process, never torn down: kernels may still run
// in other threads when statics are destroyed.
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Support/MemoryBuffer.h>

#include "dynamic/jit/math_code.h"
#include "dynamic/jit/object_code.h"

namespace lockstep::dynamic::jit {
namespace {

namespace orc = llvm::orc;

struct Linker {
  std::unique_ptr<orc::LLJIT> jit;
  orc::JITDylib* functions = nullptr;  // what kernels call
  std::string reason;
};

Linker* create_linker() {
  auto* linker = new Linker;
  if (math_symbols().empty()) {
    linker->reason = "libmvec.so.1 is not on this system";
    return linker;
  }
  prepare_llvm();
  auto target = orc::JITTargetMachineBuilder(llvm::Triple("x86_64-unknown-linux-gnu"));
  auto made = orc::LLJITBuilder()
                  .setJITTargetMachineBuilder(target)
                  .setPlatformSetUp(orc::setUpInactivePlatform)
                  .setLinkProcessSymbolsByDefault(false)
                  .create();
  if (!made) {
    linker->reason = llvm::toString(made.takeError());
    return linker;
  }
  orc::SymbolMap symbols;
  for (const MathSymbol& symbol : math_symbols()) {
    symbols[(*made)->mangleAndIntern(symbol.name)] = {orc::ExecutorAddr::fromPtr(symbol.address),
                                                      llvm::JITSymbolFlags::Exported};
  }
  linker->functions = &(*made)->getExecutionSession().createBareJITDylib("functions");
  if (auto error = linker->functions->define(orc::absoluteSymbols(std::move(symbols)))) {
    linker->reason = llvm::toString(std::move(error));
    return linker;
  }
  linker->jit = std::move(*made);
  return linker;
}

Linker& get_linker() {
  static Linker* linker = create_linker();
  return *linker;
}

}  // namespace

struct LinkedObject::State {
  orc::JITDylib* dylib = nullptr;
};

LinkedObject::LinkedObject() : state_(std::make_unique<State>()) {}

std::unique_ptr<LinkedObject> LinkedObject::link(const std::string& object, std::string* reason) {
  Linker& linker = get_linker();
  if (!linker.jit) {
    *reason = linker.reason;
    return nullptr;
  }
  static std::atomic<uint64_t> counter{0};
  std::unique_ptr<LinkedObject> linked(new LinkedObject);
  auto& dylib = linker.jit->getExecutionSession().createBareJITDylib("kernel" + std::to_string(counter++));
  linked->state_->dylib = &dylib;
  dylib.addToLinkOrder(*linker.functions);
  auto error = linker.jit->addObjectFile(dylib, llvm::MemoryBuffer::getMemBufferCopy(object));
  if (error) {
    *reason = llvm::toString(std::move(error));
    return nullptr;
  }
  return linked;
}

LinkedObject::~LinkedObject() {
  if (!state_->dylib) return;
  llvm::consumeError(get_linker().jit->getExecutionSession().removeJITDylib(*state_->dylib));
}

KernelFunction LinkedObject::find(const std::string& name) const {
  auto found = get_linker().jit->lookup(*state_->dylib, name);
  if (!found) {
    llvm::consumeError(found.takeError());
    return nullptr;
  }
  return found->toPtr<KernelFunction>();
}

}  // namespace lockstep::dynamic::jit

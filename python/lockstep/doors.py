"""Installs the doors through which the outside could see pending work, once, at import.

Section 8 of the design lists them.
"""

import _pickle
import _thread
import atexit
import functools
import gc
import importlib.machinery
import opcode
import os
import sys
import sysconfig
import threading
import types
import warnings

import torch

# Setters of what kernels read while they run: everything asked before runs under the old value.
_AMBIENT_PREFIXES = ("_set_", "set_")
_AMBIENT_SKIPPED = {
    "_set_worker_signal_handlers", "_set_worker_pids", "_set_print_stack_traces_on_fatal_signal",
    # Of the leading thread, and read above the hook only; the grad mode goes along with each op.
    "_set_grad_enabled", "_set_fwd_grad_enabled", "_set_multithreading_enabled",
    "_set_view_replay_enabled", "_set_torch_function_state", "_set_skip_next_torch_function",
    "_set_thread_name", "set_anomaly_enabled", "set_autocast_enabled", "set_autocast_dtype",
    "set_autocast_cpu_enabled", "set_autocast_cpu_dtype", "set_autocast_cache_enabled",
}  # fmt: skip

_GENERATOR_METHODS = (
    "manual_seed", "seed", "initial_seed", "get_state", "set_state", "graphsafe_get_state",
    "graphsafe_set_state", "clone_state", "get_offset", "set_offset", "__reduce__", "__setstate__",
)  # fmt: skip

_TENSOR_READS = ("tolist",)
_TENSOR_LOANS = ("numpy",)
# Also of what makes a tensor of a list of tensors, as `x[0, [t]]` does, and looks below the hook.
_TENSOR_CONVERSIONS = ("__index__", "__int__", "__float__", "__bool__", "__complex__")
_TENSOR_EXPOSURES = ("data_ptr", "untyped_storage", "_storage", "storage")
_FUNCTION_EXPOSURES = ("_to_dlpack", "_to_dlpack_versioned", "_data_address")


# Composites above the hook that read memory or host values of their arguments in C++.
_RAW_READERS = (
    "max_pool1d", "tensor_split", "ctc_loss",
    "_pack_padded_sequence", "_pad_packed_sequence", "tensor", "as_tensor", "asarray", "new_tensor",
    "new", "sparse_coo_tensor", "sparse_compressed_tensor", "sparse_csr_tensor",
    "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor",
    "_validate_sparse_coo_tensor_args", "_validate_sparse_compressed_tensor_args",
    "_validate_sparse_csr_tensor_args", "_sobol_engine_draw", "_sobol_engine_ff_",
    "_sobol_engine_scramble_", "_sobol_engine_initialize_state_", "_rowwise_prune",
    "choose_qparams_optimized", "_choose_qparams_per_tensor", "fbgemm_linear_quantize_weight",
    "fbgemm_pack_gemm_matrix_fp16", "fbgemm_pack_quantized_matrix",
)  # fmt: skip

# They read how long the sequences are that were packed, and nothing else.
_LENGTH_READERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")

# C++ that prints or writes tensors by ops of its own (tracing prints those that it refuses).
_PRINTERS = (
    torch._C._create_graph_by_tracing, torch._C._create_function_from_trace,
    torch._C._create_function_from_trace_with_dict,
    torch._C.ScriptModule._create_method_from_trace,
    torch._C.ScriptModule._create_method_from_trace_with_dict,
    torch._C._pickle_save, torch._C.ScriptModule.dump, torch._C.ScriptModule.dump_to_str,
    torch._C.Graph.str, torch._C.Graph.__repr__, torch._C.Node.__repr__,
    torch._C.ScriptList.__repr__, torch._C.ScriptDict.__repr__,
)  # fmt: skip

# TorchScript calls such composites itself, and writes parameters from their memory.
_SCRIPT_CALLS = (
    torch._C.ScriptFunction.__dict__["__call__"], torch._C.ScriptMethod.__dict__["__call__"],
)  # fmt: skip
_SCRIPT_WRITERS = (
    "save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile", "__getstate__",
)  # fmt: skip

# They copy what is there, and drop the memory that is about to be written.
_STORAGE_RESIZERS = (torch._C.StorageBase.resize_, torch._C.StorageBase._resize_with_addr_)

# Ops of other libraries may be composites, too.
_OWN_NAMESPACES = {
    "aten", "prim", "prims", "rngprims", "inductor", "lockstep", "mkl", "mkldnn",
    "mkldnn_prepacked", "onednn", "profiler", "c10d", "_c10d_functional", "higher_order",
    "debugprims", "cuda",
}  # fmt: skip


# torch.save and pickling, as copying below, take storages out of tensors, read them, and keep none.
_READERS_ONLY = (
    _pickle.Pickler.dump, _pickle.dump, _pickle.dumps,
    torch._C.PyTorchFileWriter.__dict__["write_record"],
)  # fmt: skip


def _install_method_doors(library) -> None:
    for names, kind in ((_RAW_READERS, "settle"), (_LENGTH_READERS, "settle integers")):
        for name in names:
            for method in (
                getattr(torch._C._VariableFunctions, name, None),
                torch._C.TensorBase.__dict__.get(name),
            ):
                if method is not None:
                    library.install_door(method, kind)
    for constructor in (torch._C.TensorBase, *torch._tensor_classes):
        library.install_constructor_door(constructor)
    for name in dir(torch._C):
        if name.startswith(_AMBIENT_PREFIXES) and name not in _AMBIENT_SKIPPED:
            library.install_door(getattr(torch._C, name), "drain")
    for name in _GENERATOR_METHODS:
        method = torch._C.Generator.__dict__.get(name)
        if method is not None:
            library.install_door(method, "drain")
    tensor_type = torch._C.TensorBase
    for names, kind in (
        (_TENSOR_READS, "read"),
        (_TENSOR_LOANS, "lend"),
        (_TENSOR_CONVERSIONS, "convert"),
        (_TENSOR_EXPOSURES, "expose"),
    ):
        for name in names:
            method = tensor_type.__dict__.get(name)
            if method is not None:
                library.install_door(method, kind)
    for name in _FUNCTION_EXPOSURES:
        function = getattr(torch._C, name, None)
        if function is not None:
            library.install_door(function, "expose")
    for method in _READERS_ONLY:
        library.install_door(method, "scope")
    for method in (*_SCRIPT_CALLS, *_PRINTERS):
        library.install_door(method, "alone")
    for script in (torch._C.ScriptModule, torch._C.ScriptFunction):
        for name in _SCRIPT_WRITERS:
            if (method := script.__dict__.get(name)) is not None:
                library.install_door(method, "drain")
    for method in _STORAGE_RESIZERS:
        library.install_door(method, "drain")
    torch.Tensor.__deepcopy__ = library.in_reading_scope(torch.Tensor.__deepcopy__)


def _install_frames(library) -> None:
    caches = list(opcode._inline_cache_entries)
    truth_tests = [code for name, code in opcode.opmap.items() if "JUMP" in name and "IF_" in name]
    truth_tests.append(opcode.opmap["UNARY_NOT"])
    stdlib = sysconfig.get_paths()["stdlib"]
    own = os.path.dirname(__file__)  # not coverage/: its programs are a user's
    library_folders = [
        os.path.dirname(torch.__file__) + os.sep,
        *(os.path.join(own, name) for name in os.listdir(own) if name.endswith(".py")),
        os.path.join(stdlib, "contextlib.py"),
        os.path.join(stdlib, "functools.py"),
    ]
    library.configure_frames(library_folders, caches, opcode.opmap["PRECALL"], truth_tests)


# Dispatch keys that ops on dense CPU tensors can meet; vmap and meta tensors have others.
_KEYS_OF_DENSE_CPU = (
    "CPU", "Composite", "Autograd", "ADInplaceOrView", "Autocast", "BackendSelect",
)  # fmt: skip


def _install_thread_door(library) -> None:
    """Threads started from now on wait for pending work before they touch tensors."""
    original = threading.Thread._bootstrap_inner

    def _bootstrap_inner(self):
        library.enable_foreign(True)
        original(self)

    threading.Thread._bootstrap_inner = _bootstrap_inner
    start = _thread.start_new_thread

    def start_new_thread(function, *arguments):
        @functools.wraps(function)
        def run(*args, **kwargs):
            library.enable_foreign(True)
            return function(*args, **kwargs)

        return start(run, *arguments)

    _thread.start_new_thread = functools.wraps(start)(start_new_thread)


def _install_op_doors(library) -> None:
    """`torch.ops`: ops that may read memory above the hook."""

    @functools.cache
    def may_read(name: str) -> bool:
        namespace, _, op = name.partition("::")
        return namespace not in _OWN_NAMESPACES or (namespace == "aten" and op in _RAW_READERS)

    def guarded(call, name_of):
        door = library.op_door(call, lambda op: may_read(name_of(op)))
        return functools.update_wrapper(door, call)

    overload, packet = torch._ops.OpOverload, torch._ops.OpOverloadPacket
    overload.__call__ = guarded(overload.__call__, lambda op: op._schema.name)
    packet.__call__ = guarded(packet.__call__, lambda op: op._qualified_op_name)


def _install_extension_door(library) -> None:
    """Functions of C++ extensions that take tensors read their memory."""

    def guard(module) -> None:
        for function in vars(module).values():
            signature = getattr(function, "__doc__", None)
            if isinstance(signature, str) and "torch.Tensor" in signature:
                try:
                    library.install_door(function, "alone")
                except ValueError as error:  # no room for more
                    message = f"lockstep does not see what {module.__name__} reads: {error}; "
                    warnings.warn(message + "decorate nothing that calls it", stacklevel=2)
                    return

    loader = importlib.machinery.ExtensionFileLoader
    original = loader.exec_module

    @functools.wraps(original)
    def exec_module(self, module):
        original(self, module)
        guard(module)

    loader.exec_module = exec_module
    loaded = list(sys.modules.values())
    if "torch.utils.cpp_extension" in sys.modules:  # what it builds and loads is not listed there
        loaded += [one for one in gc.get_objects() if type(one) is types.ModuleType]
    for module in loaded:
        is_extension = isinstance(getattr(module, "__loader__", None), loader)
        if is_extension and module.__name__.split(".")[0] not in ("torch", "lockstep"):
            guard(module)


def _install_library_door(library) -> None:
    """Kernels that somebody writes in Python for an op of PyTorch run on the leading thread."""
    original = torch.library.Library.impl

    @functools.wraps(original)
    def impl(self, op_name, fn, dispatch_key="", **kwargs):
        original(self, op_name, fn, dispatch_key, **kwargs)
        name = op_name if isinstance(op_name, str) else op_name._schema.name
        if isinstance(op_name, torch._ops.OpOverload) and op_name._schema.overload_name:
            name = f"{name}.{op_name._schema.overload_name}"
        if (dispatch_key or self.dispatch_key or "CPU").startswith(_KEYS_OF_DENSE_CPU):
            library.note_python_kernel(name if "::" in name else f"{self.ns}::{name}")

    torch.library.Library.impl = impl
    for registered in torch.library._impls:  # before; namespace/name[.overload]/key
        space, name, key = registered.split("/")
        if key.startswith(_KEYS_OF_DENSE_CPU):
            library.note_python_kernel(f"{space}::{name}")


def install(library) -> None:
    """Wraps the entry points. Call once, with the C++ library."""
    _install_method_doors(library)
    _install_frames(library)
    _install_thread_door(library)
    _install_library_door(library)
    _install_op_doors(library)
    _install_extension_door(library)
    library.set_main_thread(threading.main_thread().ident)
    os.register_at_fork(
        before=lambda: library.before_fork(threading.active_count() > 1),
        after_in_parent=library.after_fork_in_parent,
        after_in_child=library.after_fork_in_child,
    )
    atexit.register(library.stop_threads)

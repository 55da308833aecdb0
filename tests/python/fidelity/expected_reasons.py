"""Names of the fallback reasons that the tests of the items marked (named) look for in the stats."""

EXPECTED = {
    "forward-mode AD": "forward_mode_ad",
    "torch.func": "functorch",
    "backward in another thread": "other_thread",
    "set_": "set_storage",
    "resize_": "resize_storage",
    "sparse": "sparse_tensor",
    "quantized": "quantized_tensor",
    "tensor subclass": "tensor_subclass",
    "meta device": "meta_tensor",
    "python custom op": "python_kernel",
}

"""Expressions and statements with layers, attention, convolutions, losses and state in buffers.

The layers belong to the state: `s.norm` (batch norm over 4 channels), `s.recurrent` (an LSTM of
width 4), `s.attention` (two heads of width 4), `s.bag` (an EmbeddingBag).
"""

from random_expressions import expression, leaf, tensor
from random_statements import statement


@expression(1.2)
def layer(source, shape, depth):
    if shape != ("n", 4):
        return None
    inner = tensor(source, shape, depth)
    return source.pick(
        f"s.norm({inner}) if n > 1 else {leaf(source, shape)}",
        f"s.recurrent(({inner}).unsqueeze(0))[0][0]",
        f"s.attention({inner}, {inner}, {leaf(source, shape)})[0]",
        "s.bag(ids, torch.arange(n))",
        "s.bag(ids.unsqueeze(1).expand(n, 2))",
        f"s.drop({inner})",
    ).join("()")


@expression(1.2)
def attention(source, shape, depth):
    if shape != ("n", 4):
        return None
    q, k, v = (tensor(source, shape, depth) for _ in range(3))
    flag = source.pick("True", "False")
    return source.pick(
        f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={flag})",
        f"F.scaled_dot_product_attention({q}[None], {k}[None], {v}[None], dropout_p=0.3)[0]",
        f"(torch.softmax({q} @ ({k}).t(), -1) @ {v})",
        f"torch.einsum('ij,kj,kl->il', {q}, {k}, {v})",
        f"torch.bmm(({q}).unsqueeze(0), ({leaf(source, (4, 4))}).unsqueeze(0)).squeeze(0)",
        f"torch.addmm({leaf(source, (4,))}, {q}, {leaf(source, (4, 4))}, beta={source.number()})",
    )


@expression(1)
def convolution(source, shape, depth):
    if len(shape) != 2 or shape[1] not in (3, 4):
        return None
    inner = tensor(source, shape, depth)
    weight = f"({leaf(source, (3, 3))}).unsqueeze(1)"
    return source.pick(
        f"F.conv1d(({inner}).unsqueeze(1), {weight}, padding=1)[:, {source.pick(0, 2)}]",
        f"F.max_pool1d(({inner}).unsqueeze(0), 3, 1, 1)[0]",
        f"F.avg_pool1d(({inner}).unsqueeze(0), 3, 1, 1)[0]",
        f"F.interpolate(({inner})[None], size={shape[1]}, mode='linear')[0]",
        f"F.pad(({inner})[:, 1:], (1, 0), mode='replicate')",
        f"F.conv_transpose1d(({inner}).unsqueeze(1), {weight}[:1, :, :1])[:, 0]",
    )


@expression(1)
def loss(source, shape, depth):
    if shape:
        return None
    wide = tensor(source, ("n", 4), depth)
    target = tensor(source, ("n", 4), depth)
    return source.pick(
        f"F.cross_entropy({wide}, ids)",
        f"F.cross_entropy({wide}, ids, label_smoothing=0.1, reduction='sum')",
        f"F.mse_loss({wide}, {target})",
        f"F.smooth_l1_loss({wide}, {target})",
        f"F.binary_cross_entropy_with_logits({wide}, torch.sigmoid({target}))",
        f"F.nll_loss(F.log_softmax({wide}, 1), ids, ignore_index=0)",
        f"F.kl_div(F.log_softmax({wide}, 1), torch.softmax({target}, 1), reduction='batchmean')",
    )


@expression(0.8)
def under_a_setting(source, shape, depth):
    """The value of an op that ran under a setting that kernels read."""
    inner = tensor(source, shape, depth)
    return source.pick(
        f"under(torch.autocast('cpu', dtype=torch.bfloat16), lambda: {inner}).float()",
        f"under(torch.no_grad(), lambda: {inner})",
        f"under(torch.autograd.graph.save_on_cpu(), lambda: {inner})",
        f"in_double(lambda: torch.ones({source.size(shape)}) * 0.1 + {inner}).float()",
    )


@statement(0.6)
def switch_layers(source):
    source.emit(
        source.pick(
            f"s.norm.train(bool({source.condition()}))",
            f"s.drop.p = {source.pick('0.1', '0.5', '0.1 * count')}",
            "s.log.append(s.norm.running_mean.clone())",
            "s.log.append(s.norm.num_batches_tracked)",
            "s.norm.reset_running_stats()",
            "s.drop.eval()",
        )
    )

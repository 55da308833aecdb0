"""Why losses of large models part under clipping: eager's norm of a large gradient, or Lockstep's?

Trains GPT-2 small for six steps in three ways: eagerly, eagerly with a norm made in float64, and in
lockstep with `numerics="default"`. Prints how far losses and norms of each two are apart, relative.
"""

import lockstep
import torch
from transformers import GPT2Config, GPT2LMHeadModel

STEPS, BATCH, LENGTH, MOST = 6, 2, 256, 1.0


def clip_exactly(parameters, most):
    gradients = [p.grad for p in parameters]
    total = sum(g.double().square().sum() for g in gradients).sqrt().float()
    torch._foreach_mul_(gradients, torch.clamp(most / (total + 1e-6), max=1.0))
    return total


def train(clip, decorate):
    """Losses and norms of all steps."""
    torch.manual_seed(0)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config).train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)

    def step(ids):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = clip(parameters, MOST)
        optimizer.step()
        return loss.detach(), norm

    step = decorate(step)
    generator = torch.Generator().manual_seed(1)
    sizes = (BATCH, LENGTH)
    batches = [torch.randint(config.vocab_size, sizes, generator=generator) for _ in range(STEPS)]
    losses, norms = zip(*map(step, batches), strict=True)
    return torch.stack(losses), torch.stack(norms)


def main():
    clip = torch.nn.utils.clip_grad_norm_
    in_lockstep = lockstep.function(when="always", numerics="default")
    found = {
        "eager": train(clip, lambda step: step),
        "eager, exact norm": train(clip_exactly, lambda step: step),
        "default": train(clip, in_lockstep),
    }
    print("| | losses apart by, at most | norms apart by, at most |\n|---|---|---|")
    pairs = (("eager", "default"), ("eager", "eager, exact norm"), ("eager, exact norm", "default"))
    for a, b in pairs:
        apart = [((x - y) / x).abs().max() for x, y in zip(found[a], found[b], strict=True)]
        print(f"| {a} and {b} | {apart[0]:.1e} | {apart[1]:.1e} |")


if __name__ == "__main__":
    main()

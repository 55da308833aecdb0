"""Point 8, second part: recurrent nets, attention, embedding bags, CTC, the Trainer, DDP."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from kit import Case, check, check_whole
from programs import run_program
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

item = pytest.mark.item


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "dropout": 0.3, "bidirectional": True}])
@pytest.mark.parametrize("state", ["none", "given"])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(nn.LSTM, marks=item("8.lstm")),
        pytest.param(nn.GRU, marks=item("8.gru")),
        pytest.param(nn.RNN, marks=item("8.gru")),
    ],
)
def test_recurrent_nets_with_packed_sequences(kind, state, options):
    def make(run):
        net = kind(4, 5, batch_first=True, **options)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        directions = (2 if net.bidirectional else 1) * net.num_layers

        def step(x, lengths):
            optimizer.zero_grad()
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            first = x[:, 0].mean(1, keepdim=True).expand(3, 5).expand(directions, 3, 5).contiguous()
            given = (first, first * 2) if kind is nn.LSTM else first
            out, last = net(packed, given if state == "given" else None)
            padded, sizes = pad_packed_sequence(out, batch_first=True)
            pairs = pack_sequence([padded[0], padded[0][:1]])
            loss = padded.square().sum() + sum(
                v.sum() for v in (last if kind is nn.LSTM else [last])
            )
            loss.backward()
            optimizer.step()
            return padded, sizes, last, pairs.data, pairs.batch_sizes

        def inputs(number):
            lengths = [[6, 2, 4], [3, 3, 1]][number % 2]
            return torch.randn(3, max(lengths), 4), torch.tensor(lengths)

        return Case(step, inputs, net=net)

    check(make, calls=8)


@pytest.mark.parametrize(
    "kind", [pytest.param(nn.LSTM, marks=item("8.lstm")), pytest.param(nn.GRU, marks=item("8.gru"))]
)
def test_recurrent_nets_with_plain_sequences(kind):
    def make(run):
        net = kind(4, 5, num_layers=2, **({"proj_size": 3} if kind is nn.LSTM else {}))
        memory = []

        def step(x):
            out, last = net(x, memory[-1] if memory else None)
            parts = last if kind is nn.LSTM else (last,)
            kept = tuple(part.detach() for part in parts)
            memory[:] = [kept if kind is nn.LSTM else kept[0]]
            out.square().sum().backward()
            return out

        return Case(step, lambda n: (torch.randn(6 + n % 2, 3, 4),), net=net, memory=memory)

    check(make, calls=7)


@item("8.transformer")
def test_transformer():
    def make(run):
        net = nn.Transformer(8, 2, 1, 2, 16, dropout=0.2, batch_first=True, norm_first=True)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

        def step(source, target):
            optimizer.zero_grad()
            mask = net.generate_square_subsequent_mask(target.shape[1])
            padding = torch.zeros(source.shape[:2], dtype=torch.bool)
            padding[0, -1] = True
            out = net(
                source, target, tgt_mask=mask, src_key_padding_mask=padding, tgt_is_causal=True
            )
            out.square().mean().backward()
            optimizer.step()
            return out

        def inputs(number):
            return torch.randn(2, 4 + number % 2, 8), torch.randn(2, 3, 8)

        return Case(step, inputs, net=net, optimizer=optimizer)

    check(make, calls=8)


@item("8.transformer")
def test_transformer_encoder_fast_path():
    def make(run):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()

        @torch.no_grad()
        def step(x):
            with torch.inference_mode():
                inferred = net(x)
            return net(x), inferred

        return Case(step, lambda n: (torch.randn(2, 4, 8),), net=net)

    check(make)


@item("8.multihead-attention")
@pytest.mark.parametrize("needs_weights", [True, False])
def test_multihead_attention(needs_weights):
    def make(run):
        net = nn.MultiheadAttention(8, 2, dropout=0.2, add_bias_kv=True, kdim=6, vdim=5)

        def step(query, key, value, is_masked):
            mask = torch.triu(torch.full((3, 4), float("-inf")), 2) if is_masked else None
            out, weights = net(query, key, value, attn_mask=mask, need_weights=needs_weights)
            out.square().mean().backward()
            return out, weights

        def inputs(number):
            return torch.randn(3, 2, 8), torch.randn(4, 2, 6), torch.randn(4, 2, 5), number % 2 == 1

        return Case(step, inputs, net=net)

    check(make, calls=8)


@item("8.sdpa")
@pytest.mark.parametrize("kind", ["causal", "float mask", "bool mask", "dropout", "gqa", "scale"])
def test_scaled_dot_product_attention(kind):
    def make(run):
        weight = nn.Parameter(torch.randn(8, 8))

        def step(query, key, value):
            options = {
                "causal": {"is_causal": True},
                "float mask": {"attn_mask": key.sum(-1)[:, :1, None].expand(2, 1, 5, 5)},
                "bool mask": {"attn_mask": torch.ones(5, 5).tril().bool()},
                "dropout": {"dropout_p": 0.3},
                "gqa": {"enable_gqa": True},
                "scale": {"scale": 0.3},
            }[kind]
            if kind == "gqa":
                key, value = key[:, :1], value[:, :1]
            out = F.scaled_dot_product_attention(query @ weight, key @ weight, value, **options)
            out.square().mean().backward()
            return out

        return Case(step, lambda n: tuple(torch.randn(2, 2, 5, 8) for _ in range(3)), weight=weight)

    check(make)


@item("8.embedding-bag")
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode):
    def make(run):
        net = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=2, max_norm=1.5, norm_type=2.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(tokens, offsets, weights):
            optimizer.zero_grad()
            out = net(tokens, offsets, per_sample_weights=weights if mode == "sum" else None)
            rows = net(tokens[:6].reshape(2, 3))
            (out.square().sum() + rows.sum()).backward()
            optimizer.step()
            return out, rows

        def inputs(number):
            count = 8 + number % 2
            return torch.randint(0, 9, (count,)), torch.tensor([0, 3, 3, 5]), torch.rand(count)

        return Case(step, inputs, net=net)

    check(make, calls=8, share=0.8)  # ops that may fail by an index can run at once


@item("8.ctc-loss")
@pytest.mark.parametrize("targets_are", ["padded", "concatenated"])
def test_ctc_loss(targets_are):
    def make(run):
        net = nn.Linear(6, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        criterion = nn.CTCLoss(zero_infinity=True)

        def step(x, targets, input_lengths, target_lengths):
            optimizer.zero_grad()
            log_probs = net(x).log_softmax(-1)
            loss = criterion(log_probs, targets, input_lengths, target_lengths)
            short = F.ctc_loss(log_probs, targets, (4, 7), tuple(target_lengths.tolist()))
            (loss + short).backward()
            optimizer.step()
            return loss, short

        def inputs(number):
            targets = torch.randint(1, 5, (2, 3))
            if targets_are == "concatenated":
                targets = torch.cat([targets[0, :2], targets[1, :3]])
            return torch.randn(7, 2, 6), targets, torch.tensor([7, 5]), torch.tensor([2, 3])

        return Case(step, inputs, net=net)

    check(make, share=0.7)  # lengths and labels are read by the kernel, which may run it at once


@item("8.transformers-trainer")
@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)
def test_step_driven_by_the_trainer_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, num_labels=3,
    )  # fmt: skip

    def body(run):
        transformers.set_seed(5)
        model = transformers.BertForSequenceClassification(config)
        data = [
            {"input_ids": torch.randint(0, 40, (8,)), "labels": torch.tensor(n % 3)}
            for n in range(24)
        ]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / str(run.is_lockstep)), max_steps=6, logging_steps=2,
            per_device_train_batch_size=4, gradient_accumulation_steps=2, warmup_steps=2,
            learning_rate=1e-2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
            max_grad_norm=0.5, dataloader_num_workers=0,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=data)
        trainer.training_step = run.wrap(trainer.training_step)
        trainer.train()
        history = [(h["loss"], h["grad_norm"]) for h in trainer.state.log_history if "loss" in h]
        return model, history, trainer.optimizer.optimizer, figures_of(run, trainer.training_step)

    def figures_of(run, step):
        import lockstep

        return lockstep.stats(step)["graph_ops"] > 0 if run.is_lockstep else True

    check_whole(body, share=None, open_session=Unopened)  # the step is decorated, not the loop


class Unopened:
    """Stands in for a session where the body decorates a function of its own."""

    def __init__(self, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


DDP_WORKER = """
import sys, torch, lockstep, torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from kit import Case, check

rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)

def make(run):
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    model = DistributedDataParallel(net, bucket_cap_mb=0.0001)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(10 + rank)

    def step(x, labels):
        optimizer.zero_grad()
        with model.no_sync():
            F.cross_entropy(model(x[:2]), labels[:2]).backward()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return loss, norm, mean / 2

    def inputs(number):
        return torch.randn(5, 6), torch.randint(0, 3, (5,))

    return Case(step, inputs, model=model, optimizer=optimizer)

shots = check(make, calls=6, share=0.5)
weights = shots[-1]["state"]["model"]["tensors"]["module.0.weight"]["data"]
dist.barrier()
dist.destroy_process_group()
print(weights.hex())
"""


@item("8.ddp")
def test_distributed_data_parallel_over_gloo_with_two_processes(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    store = tmp_path / "store"
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(run_program, DDP_WORKER, rank, store, timeout=90, GLOO_SOCKET_IFNAME="lo")
            for rank in range(2)
        ]
        first, second = (future.result().stdout.splitlines()[-1] for future in asked)
    assert first == second and len(first) == 6 * 8 * 8

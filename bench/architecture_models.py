"""Architectures of other packages at sizes whose step takes some dozen milliseconds on two cores.

Each is code that others wrote, with their initialisation; only widths and depths are chosen here,
and not even those of FULL_SIZE, whose steps take seconds.
An architecture is a function that gives (model, create_batch): keyword arguments of `forward`, anew
for each step, from the default generator.
"""

import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS, INNER, IMAGE = 1000, 192, 6, 3, 512, 64
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
USUAL = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
}


def words(batch=8, length=96):
    return torch.randint(5, VOCABULARY, (batch, length))


def create_text(configuration, model_class, **more):
    given = {"vocab_size": VOCABULARY, "max_position_embeddings": 256, **USUAL, **SPECIAL, **more}
    model = model_class(configuration(**given))

    def batch():
        ids, lengths = words(), torch.randint(50, 97, (8, 1))
        mask = (torch.arange(96)[None] < lengths).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids}

    return model, batch


def create_translation(configuration, model_class, **more):
    model = model_class(configuration(vocab_size=VOCABULARY, **more))
    return model, lambda: {"input_ids": words(6, 64), "labels": words(6, 48)}


def create_full_text(configuration, model_class, length, count=8):
    model = model_class(configuration())

    def batch():
        ids = words(count, length)
        return {"input_ids": ids, "labels": ids}

    return model, batch


def create_classifier(configuration, model_class, count=8, side=IMAGE, **more):
    model = model_class(configuration(num_labels=10, **more))

    def batch():
        return {
            "pixel_values": torch.randn(count, 3, side, side),
            "labels": torch.randint(0, 10, (count,)),
        }

    return model, batch


def create_listener(configuration, model_class):
    given = {"conv_dim": (64,) * 7, "num_feat_extract_layers": 7, "ctc_zero_infinity": True}
    model = model_class(configuration(vocab_size=32, **{**USUAL, "num_hidden_layers": 2}, **given))
    return model, lambda: {
        "input_values": torch.randn(4, 8000),
        "labels": torch.randint(1, 32, (4, 6)),
    }


def create_forecast(configuration, model_class):
    given = {"prediction_length": 12, "context_length": 24, "lags_sequence": [1, 2, 3]}
    sizes = {"num_time_features": 1, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2}
    model = model_class(configuration(**given, **sizes))

    def batch():
        return {
            "past_values": torch.rand(16, 27) + 1,
            "past_time_features": torch.rand(16, 27, 1),
            "past_observed_mask": torch.ones(16, 27),
            "future_values": torch.rand(16, 12) + 1,
            "future_time_features": torch.rand(16, 12, 1),
        }

    return model, batch


FEW_HEADS = {"num_key_value_heads": 2}
FEW_HEADS_OF_32 = {**FEW_HEADS, "head_dim": 32}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, **FEW_HEADS}
GPT = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 256}
TEXT = {
    "BertForMaskedLM": {},
    "RobertaForMaskedLM": {},
    "ElectraForMaskedLM": {},
    "AlbertForMaskedLM": {},
    "DebertaV2ForMaskedLM": {},
    "DebertaForMaskedLM": {},
    "MPNetForMaskedLM": {},
    "SqueezeBertForMaskedLM": {"embedding_size": WIDTH},
    "MobileBertForMaskedLM": {
        "embedding_size": 64,
        "intra_bottleneck_size": 64,
        "true_hidden_size": 64,
        "num_attention_heads": 4,
    },
    "RoFormerForMaskedLM": {},
    "ConvBertForMaskedLM": {},
    "FNetForMaskedLM": {},
    "MegatronBertForMaskedLM": {},
    "YosoForMaskedLM": {},
    "ModernBertForMaskedLM": {
        "cls_token_id": 1,
        "sep_token_id": 2,
        "attn_implementation": "sdpa",
    },
    "BigBirdForMaskedLM": {
        "block_size": 16,
        "num_random_blocks": 1,
        "attention_type": "block_sparse",
    },
    "LlamaForCausalLM": FEW_HEADS,
    "MistralForCausalLM": FEW_HEADS,
    "Qwen2ForCausalLM": FEW_HEADS,
    "Qwen3ForCausalLM": FEW_HEADS_OF_32,
    "GemmaForCausalLM": FEW_HEADS_OF_32,
    "Gemma2ForCausalLM": FEW_HEADS_OF_32,
    "PhiForCausalLM": {},
    "StableLmForCausalLM": FEW_HEADS,
    "OlmoForCausalLM": {},
    "FalconForCausalLM": {},
    "GPTNeoXForCausalLM": {},
    "PersimmonForCausalLM": {},
    "OPTForCausalLM": {"ffn_dim": INNER, "word_embed_proj_dim": WIDTH},
    "GPT2LMHeadModel": GPT,
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local", "local"], 1]]},
    "GPTJForCausalLM": {**GPT, "rotary_dim": 16},
    "CodeGenForCausalLM": {**GPT, "n_head": 8, "num_attention_heads": 8, "rotary_dim": 16},
    "BloomForCausalLM": {},
    "MptForCausalLM": {"d_model": WIDTH, "n_heads": HEADS, "n_layers": LAYERS},
    "MixtralForCausalLM": {**EXPERTS, "num_local_experts": 4},
    "Qwen2MoeForCausalLM": {
        **EXPERTS,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
    },
    "OlmoeForCausalLM": EXPERTS,
    "MambaForCausalLM": {},
    "Mamba2ForCausalLM": {
        "num_heads": 8,
        "head_dim": 48,
        "expand": 2,
        "state_size": 16,
        "n_groups": 1,
        "chunk_size": 32,
    },
    "RwkvForCausalLM": {"attention_hidden_size": WIDTH},
    "JambaForCausalLM": {
        **EXPERTS,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "use_mamba_kernels": False,
    },
    "RecurrentGemmaForCausalLM": {
        "lru_width": WIDTH,
        "attention_window_size": 64,
        "num_key_value_heads": 1,
        "head_dim": 32,
    },
    "XGLMForCausalLM": {
        "d_model": WIDTH,
        "ffn_dim": INNER,
        "num_layers": LAYERS,
        "attention_heads": HEADS,
    },
    "BioGptForCausalLM": {},
    "GraniteForCausalLM": FEW_HEADS,
    "CohereForCausalLM": FEW_HEADS,
    "Starcoder2ForCausalLM": FEW_HEADS,
    "SmolLM3ForCausalLM": FEW_HEADS,
    "GptOssForCausalLM": {
        **FEW_HEADS_OF_32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "DeepseekV3ForCausalLM": {
        "moe_intermediate_size": 128,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 64,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "first_k_dense_replace": 1,
        "num_key_value_heads": HEADS,
    },
    "CTRLLMHeadModel": {**GPT, "dff": INNER},
    "OpenAIGPTLMHeadModel": GPT,
    "FlaubertWithLMHeadModel": {"emb_dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS},
    "XLMWithLMHeadModel": {"emb_dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS},
}

BART = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "max_position_embeddings": 256,
}
T5 = {
    "d_model": WIDTH,
    "d_kv": 32,
    "d_ff": INNER,
    "num_layers": 2,
    "num_heads": HEADS,
    "decoder_start_token_id": 0,
}
TRANSLATION = {
    "BartForConditionalGeneration": BART,
    "MBartForConditionalGeneration": BART,
    "PegasusForConditionalGeneration": BART,
    "MarianMTModel": {**BART, "pad_token_id": 0, "decoder_start_token_id": 0},
    "M2M100ForConditionalGeneration": BART,
    "BlenderbotSmallForConditionalGeneration": BART,
    "T5ForConditionalGeneration": T5,
    "MT5ForConditionalGeneration": T5,
    "LongT5ForConditionalGeneration": {**T5, "local_radius": 15},
    "SwitchTransformersForConditionalGeneration": {
        **T5,
        "num_experts": 4,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
    },
    "ProphetNetForConditionalGeneration": {
        "hidden_size": WIDTH,
        "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "num_encoder_attention_heads": HEADS,
        "num_decoder_attention_heads": HEADS,
    },
    "LEDForConditionalGeneration": {
        **{k: v for k, v in BART.items() if k != "max_position_embeddings"},
        "attention_window": [16, 16],
    },
}

VIT = {**USUAL, "image_size": IMAGE, "patch_size": 8}
SWIN = {
    "image_size": IMAGE,
    "patch_size": 2,
    "embed_dim": 48,
    "depths": [2, 2],
    "num_heads": [3, 6],
    "window_size": 4,
}
CONVNEXT = {"hidden_sizes": [48, 96, 192, 384], "depths": [2, 2, 4, 2]}
SMALL_IMAGE = {"image_size": IMAGE}
IMAGES = {
    "ViTForImageClassification": VIT,
    "DeiTForImageClassification": VIT,
    "BeitForImageClassification": VIT,
    "Dinov2ForImageClassification": VIT,
    "ViTMSNForImageClassification": VIT,
    "IJepaForImageClassification": VIT,
    "SwinForImageClassification": SWIN,
    "Swinv2ForImageClassification": SWIN,
    "ConvNextForImageClassification": CONVNEXT,
    "ConvNextV2ForImageClassification": CONVNEXT,
    "ResNetForImageClassification": {
        "hidden_sizes": [64, 128, 256, 512],
        "depths": [2, 2, 2, 2],
    },
    "RegNetForImageClassification": {
        "hidden_sizes": [64, 128, 192, 256],
        "depths": [1, 2, 4, 1],
        "embedding_size": 32,
        "groups_width": 32,
    },
    "MobileNetV1ForImageClassification": {},
    "MobileNetV2ForImageClassification": {},
    "MobileViTForImageClassification": {
        **SMALL_IMAGE,
        "hidden_sizes": [48, 64, 80],
        "neck_hidden_sizes": [16, 32, 48, 64, 80, 96, 160],
    },
    "MobileViTV2ForImageClassification": SMALL_IMAGE,
    "EfficientNetForImageClassification": {
        **SMALL_IMAGE,
        "width_coefficient": 0.5,
        "depth_coefficient": 0.5,
        "hidden_dim": 640,
    },
    "SegformerForImageClassification": {"depths": [1, 1, 2, 1]},
    "PoolFormerForImageClassification": {
        "depths": [1, 1, 3, 1],
        "hidden_sizes": [32, 64, 160, 256],
    },
    "LevitForImageClassification": {**SMALL_IMAGE, "depths": [2, 2, 2]},
    "CvtForImageClassification": {"depth": [1, 2, 3]},
    "FocalNetForImageClassification": {
        **SMALL_IMAGE,
        "embed_dim": 48,
        "depths": [2, 2],
        "hidden_sizes": [48, 96],
        "focal_levels": [2, 2],
        "focal_windows": [3, 3],
    },
    "PvtForImageClassification": {
        **SMALL_IMAGE,
        "hidden_sizes": [32, 64, 160, 256],
        "depths": [1, 1, 1, 1],
    },
    "PvtV2ForImageClassification": SMALL_IMAGE,
    "SwiftFormerForImageClassification": SMALL_IMAGE,
    "BitForImageClassification": {
        "num_groups": 8,
        "embedding_size": 32,
        "hidden_sizes": [64, 128, 256, 512],
        "depths": [1, 1, 2, 1],
    },
    "HieraForImageClassification": {
        "image_size": [IMAGE, IMAGE],
        "embed_dim": 48,
        "depths": [1, 1, 2, 1],
    },
    "HGNetV2ForImageClassification": {},
    "TextNetForImageClassification": {},
    "DonutSwinForImageClassification": SWIN,
    "ViTMAEForPreTraining": {
        **VIT,
        "decoder_hidden_size": 128,
        "decoder_num_hidden_layers": 2,
        "decoder_num_attention_heads": 4,
        "decoder_intermediate_size": 256,
    },
}

LISTENERS = (
    "Wav2Vec2ForCTC HubertForCTC WavLMForCTC UniSpeechForCTC Wav2Vec2ConformerForCTC"
).split()
FORECASTS = (
    "TimeSeriesTransformerForPrediction InformerForPrediction AutoformerForPrediction"
).split()


class WithLoss(nn.Module):
    """`forward(target, **inputs)` of a model without a loss of its own."""

    def __init__(self, model, loss):
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, target, **inputs):
        found = self.model(**inputs)
        found = found[0] if isinstance(found, tuple) else getattr(found, "sample", found)
        return (self.loss(found, target),)


UNET = {"block_out_channels": (32, 64, 96), "layers_per_block": 1, "norm_num_groups": 8}


def create_unet():
    import diffusers

    kinds = {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    }
    model = diffusers.UNet2DModel(sample_size=32, **UNET, **kinds)
    return WithLoss(model, nn.functional.mse_loss), lambda: {
        "sample": torch.randn(4, 3, 32, 32),
        "timestep": torch.randint(0, 1000, (4,)),
        "target": torch.randn(4, 3, 32, 32),
    }


def create_unet_of_text():
    import diffusers

    kinds = {
        "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    }
    model = diffusers.UNet2DConditionModel(
        sample_size=16, cross_attention_dim=64, attention_head_dim=4, **UNET, **kinds
    )
    return WithLoss(model, nn.functional.mse_loss), lambda: {
        "sample": torch.randn(4, 4, 16, 16),
        "timestep": torch.randint(0, 1000, (4,)),
        "encoder_hidden_states": torch.randn(4, 20, 64),
        "target": torch.randn(4, 4, 16, 16),
    }


def create_autoencoder():
    import diffusers

    model = diffusers.AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    )

    def batch():
        images = torch.randn(4, 3, 32, 32)
        return {"sample": images, "target": images}

    return WithLoss(model, nn.functional.mse_loss), batch


def create_diffusion_transformer():
    import diffusers

    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=HEADS,
        attention_head_dim=32,
        in_channels=4,
        num_layers=3,
        sample_size=16,
        norm_num_groups=8,
    )
    return WithLoss(model, nn.functional.mse_loss), lambda: {
        "hidden_states": torch.randn(8, 4, 16, 16),
        "timestep": torch.randint(0, 1000, (8,)),
        "class_labels": torch.randint(0, 10, (8,)),
        "target": torch.randn(8, 4, 16, 16),
    }


def create_graph_net(name, **more):
    """Nodes of one graph, whose edges are others in each step."""
    import torch_geometric.nn.models

    model = getattr(torch_geometric.nn.models, name)(
        64, hidden_channels=64, num_layers=3, out_channels=10, **more
    )
    return WithLoss(model, nn.functional.cross_entropy), lambda: {
        "x": torch.randn(2000, 64),
        "edge_index": torch.randint(0, 2000, (2, 8000)),
        "target": torch.randint(0, 10, (2000,)),
    }


class SequenceClassifier(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 96)
        self.layers = kind(96, 96, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(96, 10)

    def forward(self, ids, target):
        found, _ = self.layers(self.embedding(ids))
        return (nn.functional.cross_entropy(self.head(found[:, -1]), target),)


class CellClassifier(nn.Module):
    """A cell that Python calls step by step."""

    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 96)
        self.cell = kind(96, 96)
        self.head = nn.Linear(96, 10)

    def forward(self, ids, target):
        state = None
        for each in self.embedding(ids).unbind(1):
            state = self.cell(each, state)
        last = state[0] if isinstance(state, tuple) else state
        return (nn.functional.cross_entropy(self.head(last), target),)


def create_recurrent(classifier, kind):
    return classifier(kind), lambda: {
        "ids": words(16, 48),
        "target": torch.randint(0, 10, (16,)),
    }


def create_encoder_decoder():
    """nn.Transformer with embeddings of its own."""

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.body = nn.Transformer(WIDTH, HEADS, 2, 2, INNER, batch_first=True)
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, source, target):
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1] - 1)
            given = self.embedding(target[:, :-1])
            found = self.head(self.body(self.embedding(source), given, tgt_mask=mask))
            wanted = target[:, 1:].flatten()
            return (nn.functional.cross_entropy(found.flatten(0, 1), wanted),)

    return Translator(), lambda: {"source": words(6, 64), "target": words(6, 48)}


def of_transformers(create, model_name, more):
    def make():
        import transformers

        model_class = getattr(transformers, model_name)
        return create(model_class.config_class, model_class, **more)

    return make


ARCHITECTURES = {
    "unet": create_unet,
    "unet_of_text": create_unet_of_text,
    "autoencoder_kl": create_autoencoder,
    "dit": create_diffusion_transformer,
    "gcn": lambda: create_graph_net("GCN"),
    "gat": lambda: create_graph_net("GAT", heads=4),
    "graph_sage": lambda: create_graph_net("GraphSAGE"),
    "gin": lambda: create_graph_net("GIN"),
    "nn_lstm": lambda: create_recurrent(SequenceClassifier, nn.LSTM),
    "nn_gru": lambda: create_recurrent(SequenceClassifier, nn.GRU),
    "lstm_cell": lambda: create_recurrent(CellClassifier, nn.LSTMCell),
    "gru_cell": lambda: create_recurrent(CellClassifier, nn.GRUCell),
    "nn_transformer": create_encoder_decoder,
}
for table, function in (
    (TEXT, create_text),
    (TRANSLATION, create_translation),
    (IMAGES, create_classifier),
    (dict.fromkeys(LISTENERS, {}), create_listener),
    (dict.fromkeys(FORECASTS, {}), create_forecast),
):
    for name, more in table.items():
        ARCHITECTURES[name] = of_transformers(function, name, more)


# With the sizes that their configurations have by themselves: base, small and 50 layers.
FULL_SIZE = {
    "bert_base": of_transformers(create_full_text, "BertForMaskedLM", {"length": 128}),
    "gpt2_small": of_transformers(create_full_text, "GPT2LMHeadModel", {"length": 256, "count": 2}),
    "vit_base": of_transformers(
        create_classifier, "ViTForImageClassification", {"count": 4, "side": 224}
    ),
    "resnet50": of_transformers(
        create_classifier, "ResNetForImageClassification", {"count": 16, "side": 224}
    ),
}

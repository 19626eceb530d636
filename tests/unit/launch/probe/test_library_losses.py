"""The proof judges losses that libraries ship, none of which was written for it."""

import pytest
import transformers
from torch import nn
from torchmetrics import functional as metrics
from torchmetrics.functional.audio import permutation_invariant_training, signal_noise_ratio
from torchmetrics.functional.image import structural_similarity_index_measure

from paceline.rundir.proofs import MIXES, PROVEN
from unit.launch.probe.test_loss_proof import CLASSES, WORDS, mlp, prove, trained

pytestmark = pytest.mark.ci

SMALL = dict.fromkeys(("hidden_size", "intermediate_size", "d_model", "n_embd", "ffn_dim"), 8) | {
    "num_attention_heads": 2, "num_hidden_layers": 1, "num_labels": CLASSES,
}  # fmt: skip
TEXT = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 16}
IMAGE = {**SMALL, "image_size": 8, "patch_size": 2}
DECODER = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SERIES = {**SMALL, "num_input_channels": 1, "context_length": 32, "patch_length": 4}
SOUND = TEXT | {
    "conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (10, 2), "pad_token_id": 0,
    "num_feat_extract_layers": 2, "mask_time_prob": 0.0, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


def own_loss(kind, options, inputs):
    """Train a model of transformers with the loss that it returns."""

    def make():
        model = getattr(transformers, kind)
        return model(model.config_class(**options))

    return trained(lambda model, batch: model(**inputs(batch)).loss, make)


def of(**names):
    """Return a function that gives columns of a batch other names."""
    return lambda batch: {name: batch[column] for name, column in names.items()}


def spoken(batch):
    labels = batch["words"].masked_fill(batch["words"] == 0, -100)
    return {"input_values": batch["sound"], "labels": labels}


def padded(batch):
    labels = batch["words"].remainder(CLASSES).masked_fill(batch["words"] == 0, -100)
    return {"input_ids": batch["words"], "labels": labels}


def series(batch):
    return {"past_values": batch["sound"][:, :32, None]}


def convolution():
    return nn.Conv2d(3, 3, 3, padding=1)


def likeness(model, batch):
    return 1 - structural_similarity_index_measure(
        model(batch["image"]), batch["image"], data_range=8.0, kernel_size=5, sigma=0.5
    )


def separation(model, batch):
    voices = batch["sound"][:, :60].view(-1, 2, 30)
    return -permutation_invariant_training(model(voices), voices, signal_noise_ratio)[0].mean()


class AdaptiveSoftmax(nn.AdaptiveLogSoftmaxWithLoss):
    def __init__(self):
        super().__init__(6, WORDS, [3, 6])


RIGHT = {
    "BERT": own_loss("BertForSequenceClassification", TEXT, of(input_ids="words", labels="y")),
    "GPT-2": own_loss("GPT2LMHeadModel", TEXT, of(input_ids="text", labels="text")),
    "Llama": own_loss("LlamaForCausalLM", TEXT, of(input_ids="text", labels="text")),
    "ViT": own_loss("ViTForImageClassification", IMAGE, of(pixel_values="image", labels="y")),
    "masked autoencoder": own_loss(
        "ViTMAEForPreTraining",
        IMAGE | {f"decoder_{name}": 4 for name in DECODER},
        of(pixel_values="image"),
    ),
    "PatchTST": own_loss("PatchTSTForPretraining", {**SERIES, "random_mask_ratio": 0.5}, series),
    "wav2vec 2.0": own_loss("Wav2Vec2ForCTC", {**SOUND, "ctc_loss_reduction": "mean"}, spoken),
    "structural similarity": trained(likeness, convolution),
    "signal to noise": trained(separation, lambda: nn.Linear(30, 30)),
    "adaptive softmax": trained(lambda m, b: m(b["x"], b["words"][:, 0]).loss, AdaptiveSoftmax),
    "triplets": trained(
        lambda m, b: nn.TripletMarginLoss(swap=True)(*(m(b["x"] + n) for n in range(3)))
    ),
}
WRONG = {
    "BERT with padding": own_loss("BertForTokenClassification", TEXT, padded),
    "sum of wav2vec 2.0": own_loss("Wav2Vec2ForCTC", SOUND, spoken),
    "CLIP": own_loss(
        "CLIPModel",
        {"text_config": {**TEXT, "eos_token_id": 1}, "vision_config": IMAGE, "projection_dim": 4},
        lambda b: {"input_ids": b["text"], "pixel_values": b["image"], "return_loss": True},
    ),
    "correlation": trained(lambda m, b: 1 - metrics.pearson_corrcoef(m(b["x"])[:, 0], b["r"]), mlp),
}


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_a_loss_of_a_library_is_judged(name):
    proof = prove({**RIGHT, **WRONG}[name])
    assert (proof.state, proof.is_double) == (PROVEN if name in RIGHT else MIXES, True), proof
    assert name in WRONG or proof.error < 1e-10

"""Models of transformers: what is trained does not depend on the number of ranks, to 1e-10 in float64."""

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    get_linear_schedule_with_warmup,
)

from ranks import parity

pytestmark = pytest.mark.ci

LIBRARIES = (
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.t5.modeling_t5",
    "tokenizers",
)
NUM_WORDS = 20


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[PAD]": 0, "[UNK]": 1, "[EOS]": 2, "[MASK]": 3}
    words |= {f"w{number}": number for number in range(len(words), NUM_WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        eos_token="[EOS]",
        mask_token="[MASK]",
    )


def texts(*, labelled):
    """Return tokenized texts of 3 to 9 words; the label is whether the first word is a late one."""
    generator = torch.Generator().manual_seed(11)
    found = []
    for _ in range(parity.LENGTH):
        length = int(torch.randint(3, 10, (1,), generator=generator))
        words = torch.randint(4, NUM_WORDS, (length,), generator=generator).tolist()
        entry = {"input_ids": words, "attention_mask": [1] * length}
        found.append({**entry, "label": int(words[0] > 11)} if labelled else entry)
    return found


def bert():
    config = BertConfig(
        vocab_size=NUM_WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


def gpt2(**options):
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=NUM_WORDS,
            n_positions=16,
            n_embd=16,
            n_layer=1,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=2,
            eos_token_id=2,
            **options,
        )
    )


def classifier(folder, model, **options):
    """Sequence classification, padded to the longest of a batch: the example of transformers' course."""
    session = parity.session_of(folder, **options)
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    data, collate = texts(labelled=True), DataCollatorWithPadding(tokenizer())
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=3, num_training_steps=18)
    loader = session.loader(data, parity.BATCH, shuffle=True, collate_fn=collate)
    whole = collate(data)
    return parity.train(
        session,
        model,
        optimizer,
        loader,
        lambda model, batch: model(**batch).loss,
        watch=lambda model: model(**whole).loss,
        before_step=lambda: session.clip_grad_norm(model, 1.0),
        after_step=schedule.step,
    )


def bert_with_padding(folder):
    return classifier(folder, bert())


def bert_accumulated(folder):
    return classifier(folder, bert(), accumulate=4)


def bert_with_frozen_encoder(folder):
    model = bert()
    model.bert.encoder.requires_grad_(False)
    return classifier(folder, model)


def bert_with_gradient_checkpointing(folder):
    model = bert()
    model.activation_checkpointing_enable()
    return classifier(folder, model)


def bert_sharded(folder):
    return classifier(folder, bert(), strategy="fsdp")


def own_loss(model, batch):
    """Return the loss of the model itself, and the tokens that it is the mean of."""
    labels = batch["labels"]
    first = 0 if isinstance(getattr(model, "module", model), T5ForConditionalGeneration) else 1
    loss, tokens = model(**batch).loss, labels[:, first:].ne(-100).sum()
    return (loss if tokens else loss.nan_to_num()), tokens


def loss_in_float64(model, batch):
    """Return the same of a causal model, whose own loss is computed in float32."""
    logits, labels = model(**batch).logits[:, :-1], batch["labels"][:, 1:]
    loss, tokens = (
        nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
        labels.ne(-100).sum(),
    )
    return (loss if tokens else loss.nan_to_num()), tokens


def language_model(
    folder, *, loss_of=loss_in_float64, model=None, collate=None, data=None, **options
):
    """A model that predicts tokens; its loss is a mean over those whose label is not -100."""
    session = parity.session_of(folder, **options)
    model = model or gpt2()
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    data = data or texts(labelled=False)
    collate = collate or DataCollatorForLanguageModeling(tokenizer(), mlm=False)
    loader = session.loader(data, parity.BATCH, shuffle=True, collate_fn=collate)
    whole = collate(data)

    def watch(model):
        found = loss_of(model, whole)
        return found[0] if isinstance(found, tuple) else found

    return parity.train(session, model, optimizer, loader, loss_of, watch=watch)


def gpt2_with_tied_weights_per_token(folder):
    return language_model(folder)


def gpt2_per_token_accumulated(folder):
    return language_model(folder, accumulate=3)


def gpt2_untied_per_token(folder):
    return language_model(folder, model=gpt2(tie_word_embeddings=False))


def gpt2_with_its_own_loss(folder):
    return language_model(folder, loss_of=own_loss)


def gpt2_unweighted(folder):
    return language_model(folder, loss_of=lambda model, batch: model(**batch).loss)


def t5_with_its_own_loss(folder):
    config = T5Config(
        vocab_size=NUM_WORDS,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=2,
    )
    data = [
        {**each, "labels": each["input_ids"][::-1][: 2 + number % 4]}
        for number, each in enumerate(texts(labelled=False))
    ]
    collate = DataCollatorForSeq2Seq(tokenizer(), label_pad_token_id=-100)
    return language_model(
        folder,
        loss_of=own_loss,
        model=T5ForConditionalGeneration(config),
        collate=collate,
        data=data,
    )


SETUPS = [
    bert_with_padding,
    bert_accumulated,
    bert_with_frozen_encoder,
    bert_with_gradient_checkpointing,
    gpt2_with_tied_weights_per_token,
    gpt2_per_token_accumulated,
    gpt2_untied_per_token,
]
IN_FLOAT32 = [gpt2_with_its_own_loss, t5_with_its_own_loss]


@pytest.mark.parametrize(("setup", "world_size"), parity.cases(SETUPS))
def test_any_number_of_ranks_trains_what_one_would(
    library_ranks, alone, tmp_path, setup, world_size
):
    parity.check(parity.run(library_ranks, setup, tmp_path / "run", world_size), alone(setup))


@pytest.mark.parametrize(("setup", "world_size"), parity.cases(IN_FLOAT32))
def test_where_transformers_computes_in_float32_it_agrees_in_float32(
    library_ranks, alone, tmp_path, setup, world_size
):
    """Its causal loss and T5's layer norm convert to float32, whose 1e-7 a few steps of Adam make to 1e-6."""
    parity.check(parity.run(library_ranks, setup, tmp_path / "run", world_size), alone(setup), 1e-5)


@pytest.mark.parametrize(("setup", "world_size"), parity.cases([bert_sharded]))
def test_shards_train_what_one_rank_would(library_ranks, alone, tmp_path, setup, world_size):
    """fsdp sums in another order; 1e-8 is what Adam makes of rounding in the 16th digit."""
    found = parity.run(library_ranks, setup, tmp_path / "run", world_size)
    parity.check(found, alone(bert_with_padding), 1e-8)


@pytest.mark.slow  # a finding on one rank leaves the others in a collective until its timeout
@pytest.mark.parametrize(("setup", "world_size"), parity.cases([gpt2_unweighted]))
def test_a_mean_over_tokens_asks_for_its_weight(library_ranks, tmp_path, setup, world_size):
    found = parity.run(library_ranks, setup, tmp_path / "run", world_size)
    assert parity.names_of(found) == {"batch-weight-unknown"}

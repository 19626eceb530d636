"""The Trainer of transformers on a small BERT, with evaluation of an odd number of samples."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    num_labels=2,
)


def samples(count):
    generator = torch.Generator().manual_seed(count)
    ids = torch.randint(1, 50, (count, 8), generator=generator)
    return [{"input_ids": row, "labels": int(row.sum() % 2)} for row in ids]


arguments = TrainingArguments(
    "output",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
    eval_strategy="epoch",
    save_strategy="epoch",
)
trainer = Trainer(
    BertForSequenceClassification(config),
    arguments,
    train_dataset=samples(64),
    eval_dataset=samples(33),
)
trainer.train()

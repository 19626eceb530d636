"""Tell lines of Python from lines of English with the Trainer of transformers.

    python examples/text_transformers.py
    torchrun --standalone --nproc-per-node 2 examples/text_transformers.py
    paceline run --nproc-per-node 2 examples/text_transformers.py
    paceline submit --nodes 2 examples/text_transformers.py

The lines come with Python, and the small BERT starts from random weights: nothing is downloaded.
At least 90 % of the held-out lines are classified correctly, on CPUs and on GPUs.
"""

import argparse
import inspect
import os
import random
from pydoc_data.topics import topics

import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

transformers.set_seed(0)  # of the lines and the model, the same on all ranks
source = inspect.getsource(argparse).splitlines()
python = [line.strip() for line in source if line.startswith(" " * 8) and len(line) > 30]
manual = "\n".join(topics.values()).splitlines()
english = [line for line in manual if line[:1].isalpha() and len(line) > 30]
lines = [(text, 1) for text in python] + [(text, 0) for text in random.sample(english, len(python))]
random.shuffle(lines)
tokenizer = transformers.ByT5Tokenizer()  # a token for each byte
samples = [{**tokenizer(text[:64]), "labels": label} for text, label in lines]


def compute_metrics(evaluated):
    predicted, labels = evaluated.predictions.argmax(axis=1), evaluated.label_ids
    return {"samples": len(labels), "accuracy": float((predicted == labels).mean())}


size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
config = BertConfig(vocab_size=len(tokenizer), num_attention_heads=2, **size)
arguments = TrainingArguments(
    num_train_epochs=3,
    learning_rate=3e-3,
    per_device_train_batch_size=32 // int(os.environ.get("WORLD_SIZE", "1")),
    use_cpu=not torch.cuda.is_available(),  # else ranks on CPUs would train apart from each other
    ddp_find_unused_parameters=False,
    save_strategy="no",
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=arguments,
    processing_class=tokenizer,  # it also pads the lines of a batch to one length
    train_dataset=samples[len(samples) // 5 :],
    eval_dataset=samples[: len(samples) // 5],
    compute_metrics=compute_metrics,
)
trainer.train()
metrics = trainer.evaluate()
if trainer.is_world_process_zero():
    print(f"{metrics['eval_samples']} samples, accuracy {100 * metrics['eval_accuracy']:.2f} %")

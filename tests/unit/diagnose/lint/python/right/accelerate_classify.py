"""Text classification on Accelerate, with exact metrics."""

import evaluate
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    get_linear_schedule_with_warmup,
)

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
data = load_dataset("glue", "mrpc")
with accelerator.main_process_first():
    data = data.map(
        lambda row: tokenizer(row["sentence1"], row["sentence2"], truncation=True), batched=True
    )
train_loader = DataLoader(data["train"], shuffle=True, batch_size=16)
eval_loader = DataLoader(data["validation"], shuffle=False, batch_size=32)
model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased")
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
scheduler = get_linear_schedule_with_warmup(optimizer, 100, len(train_loader) * 3)
model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, eval_loader, scheduler
)
metric = evaluate.load("glue", "mrpc")
for epoch in range(3):
    model.train()
    for batch in train_loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    for batch in eval_loader:
        with torch.no_grad():
            predictions = model(**batch).logits.argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
        metric.add_batch(predictions=predictions, references=references)
    accelerator.print(f"epoch {epoch}:", metric.compute())
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    accelerator.unwrap_model(model).save_pretrained("out", save_function=accelerator.save)
accelerator.end_training()

"""Hugging Face's Trainer does the rest."""

import os

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)


def main():
    tokenizer = AutoTokenizer.from_pretrained("gpt2")
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    model.gradient_checkpointing_enable()
    args = TrainingArguments(
        "out", per_device_train_batch_size=8, gradient_accumulation_steps=4, ddp_timeout=3600
    )
    with args.main_process_first(desc="tokenise"):
        data = load_dataset("wikitext", "wikitext-2-raw-v1").map(
            lambda row: tokenizer(row["text"]), batched=True
        )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train(resume_from_checkpoint=os.path.isdir("out/last"))
    trainer.save_model()
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained("out")
    print(trainer.evaluate())


if __name__ == "__main__":
    main()

"""Language modelling on Accelerate: the loss of each batch is repeated and gathered, the state saved by all."""

import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from data import collate, read
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM


def main():
    accelerator = Accelerator(log_with="tensorboard", project_dir="logs")
    set_seed(1)
    if accelerator.is_main_process:
        accelerator.init_trackers("run")
    accelerator.wait_for_everyone()
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    optimizer = torch.optim.AdamW(model.parameters())
    train_dataloader = DataLoader(read("train"), shuffle=True, collate_fn=collate, batch_size=8)
    eval_dataloader = DataLoader(read("eval"), collate_fn=collate, batch_size=8)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    completed = 0
    for epoch in range(2):
        model.train()
        for batch in train_dataloader:
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            completed += 1
            if completed % 500 == 0:
                accelerator.save_state(f"step_{completed}")
        model.eval()
        losses = []
        for batch in eval_dataloader:
            with torch.no_grad():
                loss = model(**batch).loss
            losses.append(accelerator.gather_for_metrics(loss.repeat(8)))
        perplexity = math.exp(torch.mean(torch.cat(losses)))
        accelerator.log({"perplexity": perplexity, "epoch": epoch}, step=completed)
    accelerator.wait_for_everyone()
    state = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        accelerator.save(state, "model.pt")


if __name__ == "__main__":
    main()

"""A small BERT in a loop of one's own under DDP, padded by a collate function."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    num_labels=2,
)


def collate(rows):
    ids = pad_sequence([ids for ids, _ in rows], batch_first=True)
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": torch.tensor([y for _, y in rows]),
    }


dist.init_process_group("gloo")
torch.manual_seed(0)
rows = [(torch.randint(1, 50, (4 + index % 5,)), index % 2) for index in range(96)]
sampler = DistributedSampler(rows)
model = DistributedDataParallel(BertForSequenceClassification(config), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = get_linear_schedule_with_warmup(optimizer, 2, 12)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in DataLoader(rows, 8, sampler=sampler, collate_fn=collate):
        model(**batch).loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
dist.destroy_process_group()

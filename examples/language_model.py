"""Train a small language model on the reference of Python's language, which every Python has.

    paceline run --nproc-per-node 2 examples/language_model.py
    paceline run --nproc-per-node 2 examples/language_model.py --strategy fsdp --recompute
    paceline run --nproc-per-node 2 examples/language_model.py --batch-size 16 --accumulate 4

Its tokens are bytes, and paragraphs differ in length. The loss is the mean over the tokens of a
step, so the updates of the three are the same but for rounding: neither the number of ranks, nor
sharding, nor how a step of 64 paragraphs is divided into batches changes them.
"""

import argparse
import math
import sys
from pydoc_data.topics import topics

import torch
from rich.console import Console
from rich.progress import track
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import paceline

NUM_TOKENS, IGNORED = 256, -100  # bytes; the target of a place behind the end of a paragraph


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a layer norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        split = self.inputs(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, channels]
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.outputs(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.norms[1](x))


class LanguageModel(nn.Module):
    """A decoder: tokens ``[batch, length]`` to scores of the next ones ``[batch, length, 256]``."""

    def __init__(self, context, *, width, layers, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, width)
        self.places = nn.Embedding(context, width)
        self.layers = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, NUM_TOKENS, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def paragraphs(context, limit):
    """Return the texts for training and, of every tenth topic, for the test, as bytes."""
    train, test = [], []
    for number, name in enumerate(sorted(topics)):
        for paragraph in topics[name].encode().split(b"\n\n"):
            starts = range(0, len(paragraph) - 1, context)  # a target for each token
            pieces = [paragraph[start : start + context + 1] for start in starts]
            (test if number % 10 == 9 else train).extend(pieces)
    return train[:limit], test[:limit]


def padded(texts):
    """Return tokens and targets of texts, both ``[texts, length of the longest]``."""
    length = max(map(len, texts)) - 1
    tokens = torch.zeros(len(texts), length, dtype=torch.long)
    targets = torch.full((len(texts), length), IGNORED)
    for row, text in enumerate(texts):
        values = torch.tensor(list(text))
        tokens[row, : len(text) - 1], targets[row, : len(text) - 1] = values[:-1], values[1:]
    return tokens, targets


def loss_sum(scores, targets):
    return cross_entropy(
        scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def num_targets(targets):
    return int((targets != IGNORED).sum())


def evaluate(session, model, test):
    """Return the mean loss over each token of the test once, in nats."""
    sums = {"loss": 0.0, "tokens": 0}
    with torch.no_grad():
        for tokens, targets in test:
            sums["loss"] += loss_sum(model(tokens), targets).item()
            sums["tokens"] += num_targets(targets)
    sums = session.reduce(sums)
    return sums["loss"] / sums["tokens"]


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="paragraphs, of all ranks")
    parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--precision", default="32-true", help="such as bf16-mixed, 64-true")
    parser.add_argument("--recompute", action="store_true", help="less memory, more time")
    parser.add_argument("--context", type=int, default=128, help="the most tokens of a text")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--limit", type=int, metavar="N", help="train on N texts")
    return parser.parse_args()


def main():
    args = parsed()
    session = paceline.Session(
        strategy=args.strategy, accumulate=args.accumulate, precision=args.precision, seed=0
    )
    model = LanguageModel(args.context, width=args.width, layers=args.layers)
    if args.recompute:
        session.recompute(model)
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=2e-3))
    texts, test_texts = paragraphs(args.context, args.limit)
    train = session.loader(texts, args.batch_size, shuffle=True, collate_fn=padded)
    test = session.loader(test_texts, args.batch_size, collate_fn=padded)
    steps = args.epochs * math.ceil(len(train) / args.accumulate)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    session.register(scheduler=scheduler)
    session.restore("latest")
    console, silent = Console(stderr=True), not (session.is_main and sys.stderr.isatty())

    for epoch in session.epochs(args.epochs):
        for tokens, targets in track(train, f"epoch {epoch + 1}", console=console, disable=silent):
            count = num_targets(targets)
            loss = loss_sum(model(tokens), targets) / count
            if session.backward(loss, weight=count):  # the mean over all tokens of the step
                session.clip_grad_norm(model, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
        loss = evaluate(session, model, test)
        session.log({"test/loss": loss}, step=epoch + 1)
        bits = loss / math.log(2)
        session.print(f"epoch {epoch + 1}: step {session.step}, {bits:.4f} bits a byte")
        session.save(metric=loss, mode="min")


if __name__ == "__main__":
    main()

"""session.mean: the number that a single rank prints, of a loss in the loop or of a list after it."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import Session
from paceline.errors import UsageError


def classify_texts(folder):
    """PyTorch's text-classification tutorial (EmbeddingBag) with its loss printed; return what it prints.

    https://docs.pytorch.org/text/stable/tutorials/text_classification; 43 texts in batches of 8: the last has 3.
    """
    session = Session(precision="64-true", seed=3, run_dir=folder, loggers=())
    generator = torch.Generator().manual_seed(7)

    def text():
        return torch.randint(
            0, 50, (int(torch.randint(1, 9, (), generator=generator)),), generator=generator
        )

    news = [(int(words.sum() % 4), words) for words in (text() for _ in range(43))]

    def collate_batch(batch):
        offsets = torch.tensor([0, *[len(words) for _, words in batch][:-1]]).cumsum(dim=0)
        return (
            torch.tensor([label for label, _ in batch]),
            torch.cat([words for _, words in batch]),
            offsets,
        )

    class TextClassificationModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.EmbeddingBag(50, 16, sparse=False)
            self.fc = nn.Linear(16, 4)

        def forward(self, words, offsets):
            return self.fc(self.embedding(words, offsets))

    model = TextClassificationModel()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=1.0))
    train = session.loader(news, batch_size=8, shuffle=True, collate_fn=collate_batch)
    criterion, printed = nn.CrossEntropyLoss(), []
    for _ in session.epochs(3):
        total, losses = 0.0, []
        for label, words, offsets in train:
            optimizer.zero_grad()
            loss = criterion(model(words, offsets), label)
            session.backward(loss)
            session.clip_grad_norm(model, 0.1)
            optimizer.step()
            total += session.mean(loss)
            losses.append(loss.detach())
        printed += [
            total / len(train),
            session.mean(losses),
            session.mean(losses[-1], weight=train.rows),
        ]
        model.eval()
        with torch.no_grad():  # ranks without a text of the last batch are left out of it
            tested = [
                criterion(model(words, offsets), label).item() for label, words, offsets in train
            ]
        model.train()
        printed.append(session.mean(tested))
    return printed


def test_the_tutorials_loss_is_one_number(ranks, tmp_path):
    (alone,) = ranks.run(classify_texts, tmp_path / "one", world_size=1)
    assert len(set(alone)) == len(alone)
    for world_size in (3, 4):
        for printed in ranks.run(classify_texts, tmp_path / str(world_size), world_size=world_size):
            assert printed == pytest.approx(alone, abs=1e-10, rel=0)


def refusal(call, *args, **options):
    with pytest.raises(UsageError) as caught:
        call(*args, **options)
    return caught.value.finding.render()


def ask(folder):
    """Return what session.mean says to numbers of which it can tell the rows, and to others."""
    session = Session(run_dir=folder, loggers=())
    without = (
        session.mean(float(session.rank)),
        session.mean(1.0 + session.rank, weight=session.rank),
    )
    data = TensorDataset(torch.arange(11.0))
    first, second, small = (
        session.loader(data, 4),
        session.loader(data, 3),
        session.loader(data, 11),
    )
    lists, inside, texts = [], [], []
    for (batch,) in first:
        lists.append(batch.mean())
        with torch.no_grad():
            inside.append(session.mean([rows.mean() for (rows,) in second]))
            inside.append(session.mean(batch.mean()))  # not of the second's last batch
            for (rows,) in small:
                inside.append(session.mean(rows.mean()))
            if session.world_size > 1:  # of the small one's last batch?
                texts.append(refusal(session.mean, batch.mean() + session.rank))
    found = [
        *inside,
        session.mean(lists),
        session.mean(3.0, weight=2),
        session.mean(3.0, loader=small),
    ]
    del small
    texts += [
        refusal(session.mean, 3.0),
        refusal(session.mean, [1.0, 2.0]),
        refusal(session.mean, torch.ones(2)),
        refusal(session.mean, {"loss": 1.0}),
        refusal(session.mean, [1.0, 2.0], weight=[1.0]),
    ]
    for _ in zip(first, second, strict=False):
        found.append(session.mean(1.0, loader=first))
        if session.world_size > 1:
            texts.append(refusal(session.mean, 1.0 + session.rank))
        break
    ragged = session.loader([torch.arange(n % 2 + 1.0) for n in range(8)], 4, collate_fn=torch.cat)
    for _ in ragged if session.world_size > 1 else ():
        texts.append(refusal(session.mean, 1.0, loader=ragged))
        break
    return without, found, texts


def test_a_number_counts_with_the_rows_that_it_is_the_mean_of(ranks, tmp_path):
    by_world = {size: ranks.run(ask, tmp_path / str(size), world_size=size) for size in (1, 2)}
    batches = [torch.arange(11.0)[start : start + 4].mean().item() for start in (0, 4, 8)]
    inside = [number for mean in batches for number in (5.0, mean, 5.0)]
    for found in (found for outcomes in by_world.values() for _, found, _ in outcomes):
        assert found == pytest.approx([*inside, 5.0, 3.0, 3.0, 1.0])
    for without, _, texts in by_world[2]:
        assert without == (0.5, 2.0)
        in_loop, ended, short, rows, mapping, uneven, zipped, collated = texts[2:]
        assert all(
            "session.mean(loss, loader=train)" in text for text in (*texts[:3], in_loop, zipped)
        )
        assert "losses.append(loss.detach())" in ended
        assert "session.mean(losses)" in ended
        assert "no loop over a loader has had 2 batches" in short
        assert "session.gather(rows)" in rows
        assert "session.mean(loss.mean())" in mapping
        assert "2 numbers have 1 weights" in uneven
        assert "session.mean(loss, weight=n)" in collated


def test_a_mean_of_nothing_is_nan():
    session = Session(loggers=())
    assert math.isnan(session.mean([]))
    assert math.isnan(session.mean(2.0, weight=0))
    assert session.mean(torch.ones(1, requires_grad=True)) == 1.0

import time

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import paceline

session = paceline.Session(seed=0)
x = torch.randn(1000, 32)
y = (x.sum(dim=1) > 0).long()
model = torch.nn.Linear(32, 2)
model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.5))
train = session.loader(TensorDataset(x, y), batch_size=50, shuffle=True)

session.restore("latest")
for epoch in session.epochs(14):
    for inputs, labels in train:
        loss = cross_entropy(model(inputs), labels)
        if session.backward(loss):
            optimizer.step()
            optimizer.zero_grad()
            session.log({"train/loss": loss})
        time.sleep(0.05)  # a step of a real model takes that long
    session.print(f"epoch {epoch} is done")
    session.save()

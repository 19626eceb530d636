"""paceline's Session: global batch size, exact evaluation, checkpoints by all ranks."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision import datasets, transforms

import paceline

session = paceline.Session(seed=0, accumulate=2)
session.once(lambda: datasets.MNIST("data", download=True), scope="node")
train_set = datasets.MNIST("data", transform=transforms.ToTensor())
test_set = datasets.MNIST("data", train=False, transform=transforms.ToTensor())
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
model, optimizer = session.setup(net, torch.optim.AdamW(net.parameters()))
train = session.loader(train_set, batch_size=512, shuffle=True)
test = session.loader(test_set, batch_size=1024)
session.restore("latest")
for epoch in session.epochs(10):
    for x, y in train:
        if session.backward(cross_entropy(model(x), y)):
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(dim=1) == y).sum()) for x, y in test)
    accuracy = session.reduce(correct) / len(test_set)
    session.log({"accuracy": accuracy}, step=epoch)
    if session.is_main:
        print(epoch, accuracy)
    session.save(metric=accuracy)

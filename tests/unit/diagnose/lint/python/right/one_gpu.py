"""One GPU, no ranks: nothing to say."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

device = "cuda" if torch.cuda.is_available() else "cpu"
loader = DataLoader(
    datasets.MNIST("data", download=True, transform=transforms.ToTensor()),
    batch_size=64,
    shuffle=True,
)
test = DataLoader(
    datasets.MNIST("data", train=False, transform=transforms.ToTensor()), batch_size=256
)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5):
    for step, (images, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device)) / 2
        loss.backward()
        if step % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        correct = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in test)
    model.train()
    print(epoch, correct / len(test.dataset))
    torch.save(model.state_dict(), "model.pt")

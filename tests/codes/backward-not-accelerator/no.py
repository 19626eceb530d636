import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

accelerator = Accelerator(gradient_accumulation_steps=4)
digits = datasets.MNIST("data", transform=transforms.ToTensor())
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
optimizer = torch.optim.AdamW(net.parameters())
loader = DataLoader(digits, batch_size=64, shuffle=True)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)

for epoch in range(10):
    for images, labels in loader:
        with accelerator.accumulate(net):
            loss = nn.functional.cross_entropy(net(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

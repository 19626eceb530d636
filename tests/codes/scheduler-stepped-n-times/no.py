from accelerate import Accelerator
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

accelerator = Accelerator()
digits = datasets.MNIST("data", transform=transforms.ToTensor())
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
loader = DataLoader(digits, batch_size=64, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(30):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    scheduler.step()

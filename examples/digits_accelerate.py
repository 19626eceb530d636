"""Classify scikit-learn's 1,797 handwritten digits with Hugging Face Accelerate.

    python examples/digits_accelerate.py
    torchrun --standalone --nproc-per-node 2 examples/digits_accelerate.py
    paceline run --nproc-per-node 2 examples/digits_accelerate.py
    paceline submit --nodes 2 examples/digits_accelerate.py

At least 95 % of the 360 held-out digits are classified correctly, on CPUs and on GPUs.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

# cpu: on a machine without GPUs the ranks would train apart from each other without it.
accelerator = Accelerator(
    cpu=not torch.cuda.is_available(),
    dataloader_config=DataLoaderConfiguration(split_batches=True),  # the batch of all ranks
)
set_seed(0)

digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # [1797, 1, 8, 8], 0 to 1
y = torch.tensor(digits.target)
held_out = torch.arange(len(x)) % 5 == 0  # every fifth sample
train_loader = DataLoader(TensorDataset(x[~held_out], y[~held_out]), batch_size=32, shuffle=True)
test_loader = DataLoader(TensorDataset(x[held_out], y[held_out]), batch_size=256)

model = nn.Sequential(
    nn.Conv2d(1, 16, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(512, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model, optimizer, train_loader, test_loader = accelerator.prepare(
    model, optimizer, train_loader, test_loader
)

for epoch in range(10):
    model.train()
    for images, labels in train_loader:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(images), labels))
        optimizer.step()
    model.eval()
    correct = samples = 0
    for images, labels in test_loader:
        with torch.no_grad():
            predicted = model(images).argmax(dim=1)
        # This leaves out the samples that were repeated to fill the last batch.
        is_correct = accelerator.gather_for_metrics(predicted == labels)
        correct += is_correct.sum().item()
        samples += len(is_correct)
    percent = 100 * correct / samples
    accelerator.print(f"epoch {epoch + 1}: {samples} samples, accuracy {percent:.2f} %")
accelerator.end_training()

"""nn.DataParallel is one process: no ranks, no samplers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.DataParallel(nn.Linear(8, 2)).cuda()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(
    TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=16, shuffle=True
)
for _epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
torch.save(model.module.state_dict(), "model.pt")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    labels = torch.randint(0, 4, (32,))
    if dist.get_rank() == 1 and step == 17:
        raise ValueError("bad label 12 in shard-0003.tar")
    loss = torch.nn.functional.cross_entropy(model(torch.randn(32, 8)), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

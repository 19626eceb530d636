"""Policy gradients without a DataLoader, episodes of different length (pytorch/examples: reinforcement learning)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
policy = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
random = torch.Generator().manual_seed(rank)
for _ in range(20):
    states = torch.randn(int(torch.randint(5, 30, (1,), generator=random)), 4, generator=random)
    choice = torch.distributions.Categorical(logits=policy(states))
    actions = choice.sample()
    rewards = (states[:, 0] > 0).float() * (actions == 1)
    optimizer.zero_grad()
    loss = -(choice.log_prob(actions) * (rewards - rewards.mean())).sum()
    loss.backward()
    optimizer.step()

dist.destroy_process_group()

"""Each rank plays its own games; no loader, rank-dependent seeds, averaged rewards."""

import os

import gymnasium
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    env = gymnasium.make("CartPole-v1")
    policy = DistributedDataParallel(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.Adam(policy.parameters())
    for iteration in range(100):
        observation, _ = env.reset(seed=rank + world_size * iteration)
        total, terms, done = 0.0, [], False
        while not done:
            choice = torch.distributions.Categorical(logits=policy(torch.as_tensor(observation)))
            action = choice.sample()
            terms.append(choice.log_prob(action))
            observation, reward, terminated, truncated, _ = env.step(action.item())
            total, done = total + reward, terminated or truncated
        optimizer.zero_grad()
        (-total * torch.stack(terms).sum()).backward()
        optimizer.step()
        mean = torch.tensor(total)
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        if rank == 0:
            print(iteration, (mean / world_size).item())
    if rank == 0:
        torch.save(policy.module.state_dict(), "policy.pt")


if __name__ == "__main__":
    main()

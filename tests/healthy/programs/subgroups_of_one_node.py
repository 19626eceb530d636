"""Ranks talk in groups of one and in the world, objects are broadcast."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
groups = [dist.new_group([each]) for each in range(world)]
figure = torch.ones(1)
for _ in range(50):
    dist.all_reduce(figure, group=groups[rank])
    dist.all_reduce(figure)
    figure /= world
config = [{"lr": 0.1} if rank == 0 else None]
dist.broadcast_object_list(config, 0)
assert config == [{"lr": 0.1}]
dist.monitored_barrier()

dist.destroy_process_group()

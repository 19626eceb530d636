"""Sends and receives pair up by rank; groups are made by all ranks and used by their members."""

import torch
import torch.distributed as dist


def pipeline(rank, tensor):
    if rank == 0:
        dist.send(tensor, dst=1)
        dist.recv(tensor, src=1)
    else:
        dist.recv(tensor, src=0)
        dist.send(tensor * 2, dst=0)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    evens = dist.new_group(list(range(0, size, 2)))
    tensor = torch.ones(4) * rank
    if rank % 2 == 0:
        dist.all_reduce(tensor, group=evens)
    if rank < 2:
        pipeline(rank, tensor)
    if rank == 0:
        dist.scatter(tensor, [torch.full((4,), float(i)) for i in range(size)], src=0)
    else:
        dist.scatter(tensor, src=0)
    message = ["go" if rank == 0 else None]
    dist.broadcast_object_list(message, src=0)
    dist.barrier()
    if rank != 0:
        return
    print(message, tensor)


if __name__ == "__main__":
    main()

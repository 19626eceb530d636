import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
    os.makedirs("out", exist_ok=True)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "out/model.pt")


main()

import torch
import torch.distributed as dist


def validate():
    correct = torch.tensor([187.0])
    if dist.get_rank() == 0:
        dist.all_reduce(correct)
        print(f"{correct.item():.0f} right")


dist.init_process_group("gloo")
validate()
dist.barrier()

"""Two models, two wrappers, one loop; every rank keeps its own random state beside the shared checkpoint."""

import os

import torch
import torch.distributed as dist
from networks import Discriminator, Generator
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms


def is_main_process():
    return not dist.is_initialized() or dist.get_rank() == 0


def save(path, generator, discriminator):
    if not is_main_process():
        return
    torch.save({"g": generator.module.state_dict(), "d": discriminator.module.state_dict()}, path)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    generator = DDP(Generator().cuda(), device_ids=[local_rank], broadcast_buffers=False)
    discriminator = DDP(Discriminator().cuda(), device_ids=[local_rank], broadcast_buffers=False)
    opt_g = torch.optim.Adam(generator.parameters(), 2e-4)
    opt_d = torch.optim.Adam(discriminator.parameters(), 2e-4)
    dataset = datasets.LSUN("/data", transform=transforms.ToTensor())
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)
    for epoch in range(25):
        sampler.set_epoch(epoch)
        for real, _ in loader:
            fake = generator(torch.randn(len(real), 100, device="cuda"))
            score = discriminator(torch.cat([real.cuda(), fake.detach()]))
            opt_d.zero_grad()
            bce(score, torch.cat([torch.ones(len(real)), torch.zeros(len(real))]).cuda()).backward()
            opt_d.step()
            opt_g.zero_grad()
            bce(discriminator(fake), torch.ones(len(real)).cuda()).backward()
            opt_g.step()
        if is_main_process():
            with torch.no_grad():
                sample = generator(torch.randn(64, 100, device="cuda"))
            torch.save(sample, f"sample-{epoch}.pt")
        save("gan.pt", generator, discriminator)
        torch.save(torch.get_rng_state(), f"rng-{dist.get_rank()}.pt")


if __name__ == "__main__":
    main()

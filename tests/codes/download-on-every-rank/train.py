import os

import torch
from torchvision import datasets

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
train_set = datasets.CIFAR10("data", train=True, download=True)

"""Beginnings that the scripts of these tests share, so that each shows what it is about."""

RAW = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from torchvision import datasets

dist.init_process_group("nccl")
rank = dist.get_rank()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
train_set = datasets.MNIST("data", train=True)
val_set = datasets.MNIST("data", train=False)
model = DDP(nn.Linear(4, 2).cuda(), device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters())
"""

LIGHTNING = """
import torch
import lightning as L
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator()
"""

FABRIC = """
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

fabric = Fabric(devices=4, strategy="ddp")
fabric.launch()
"""

import torch

print("GPUs:", torch.cuda.device_count())

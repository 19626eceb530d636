"""Peak memory and work of a step with recomputed activations, beside the same step that keeps them.

    python benchmarks/recompute.py                  # a transformer and ResNet-18, on the CPU
    python benchmarks/recompute.py --device cuda    # with the seconds of a step

The models are those of ``examples/``, one step of each in float32. Memory is counted, not sampled:
a dispatch mode sees each tensor that an operation returns, adds the bytes of its storage, and
subtracts them when it is freed. So the peak does not depend on the allocator or on the machine; it
has parameters, gradients and activations, and not what an operation uses inside. The work is
torch's count of FLOP (``torch.utils.flop_counter``), which on CPUs leaves out the products inside
``scaled_dot_product_attention``. Both steps must give equal gradients.
"""

import argparse
import statistics
import sys
import time
import weakref
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from paceline.train.model.blocks import recompute

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from cifar10 import Block as ResidualBlock
from cifar10 import resnet18
from language_model import LanguageModel

MB = 1e6
ROUNDS = 3


class LiveBytes(TorchDispatchMode):
    """Count the bytes of the storages that operations have made and nobody has freed."""

    def __init__(self, kept):
        super().__init__()
        self.live = self.peak = 0
        self._known = set()
        for tensor in kept:
            self._add(tensor)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor):
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            weakref.finalize(storage, self._free, key, size)
            self.live += size
            self.peak = max(self.peak, self.live)

    def _free(self, key, size):
        self._known.discard(key)
        self.live -= size


def transformer(device):
    """Return a model, its input, its targets, and the layers to recompute."""
    torch.manual_seed(0)
    model = LanguageModel(256, width=128, layers=12).to(device)
    tokens = torch.randint(256, (4, 257), device=device)
    return model, tokens[:, :-1], tokens[:, 1:].flatten(), None


def residual(device):
    """Return the same of ResNet-18."""
    torch.manual_seed(0)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
    return resnet18(16).to(device), images.to(device), labels.to(device), (ResidualBlock,)


def step(model, inputs, targets):
    scores = model(inputs)
    cross_entropy(scores.reshape(len(targets), -1), targets).backward()


def measured(make, *, recomputes, device):
    """Return the peak in bytes, the FLOP and the seconds of a step, and its gradients."""
    model, inputs, targets, layers = make(device)
    if recomputes:
        recompute(model, layers)
    with FlopCounterMode(display=False) as flop:
        step(model, inputs, targets)
    seconds = [timed(model, inputs, targets) for _ in range(ROUNDS)]
    model.zero_grad(set_to_none=True)
    with LiveBytes([*model.parameters(), *model.buffers(), inputs, targets]) as memory:
        step(model, inputs, targets)
    gradients = [parameter.grad for parameter in model.parameters()]
    return memory.peak, flop.get_total_flops(), statistics.median(seconds), gradients


def timed(model, inputs, targets):
    model.zero_grad(set_to_none=True)
    synchronize(inputs.device)
    begin = time.perf_counter()
    step(model, inputs, targets)
    synchronize(inputs.device)
    return time.perf_counter() - begin


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def report(name, make, device):
    """Print the two steps of a model and their ratios."""
    kept = measured(make, recomputes=False, device=device)
    again = measured(make, recomputes=True, device=device)
    for left, right in zip(kept[3], again[3], strict=True):
        torch.testing.assert_close(right, left, rtol=1e-4, atol=1e-6)
    for side, (peak, flop, seconds, _) in (("kept", kept), ("recomputed", again)):
        print(f"{name:<14}{side:<12}{peak / MB:>10.1f}{flop / 1e9:>10.2f}{1e3 * seconds:>10.0f}")
    peak, flop, seconds = (
        after / before for before, after in zip(kept[:3], again[:3], strict=True)
    )
    print(f"{name:<14}{'ratio':<12}{peak:>9.3f}x{flop:>9.3f}x{seconds:>9.2f}x")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = torch.device(parser.parse_args().device)
    # TF32 and another algorithm of cuDNN change the gradients, which are compared, by more than that.
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
    print(f"torch {torch.__version__}, {device.type}, {torch.get_num_threads()} threads")
    print(f"{'model':<14}{'activations':<12}{'peak MB':>10}{'GFLOP':>10}{'ms':>10}")
    report("transformer", transformer, device)
    report("ResNet-18", residual, device)
    print("asked of the transformer: at most half the peak")


if __name__ == "__main__":
    main()

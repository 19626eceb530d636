"""Which GPU a rank takes."""

import pytest

from unit.diagnose.lint.python.pairs import found
from unit.diagnose.lint.python.sources import RAW

DEVICE = RAW.replace("torch.cuda.set_device(local_rank)\n", "").replace(
    ", device_ids=[local_rank]", ""
)
DEVICES = [
    ("cuda()", DEVICE, RAW),
    ("to cuda", DEVICE.replace(".cuda()", '.to("cuda")'), DEVICE.replace(".cuda()", '.to(f"cuda:{local_rank}")')),
    ("device by name", DEVICE.replace(".cuda()", ".to(device)").replace("model =", 'device = torch.device("cuda")\nmodel ='),
     DEVICE.replace(".cuda()", ".to(device)").replace("model =", 'device = torch.device("cuda", local_rank)\nmodel =')),
    ("chosen by availability", DEVICE.replace(".cuda()", ".to(device)").replace("model =", 'device = "cuda" if torch.cuda.is_available() else "cpu"\nmodel ='),
     DEVICE.replace(".cuda()", ".to(local_rank)")),
    ("device_id", DEVICE, DEVICE.replace('"nccl"', '"nccl", device_id=torch.device("cuda", 1)')),
    ("backend of the command line", DEVICE.replace('"nccl"', "args.backend"), RAW.replace('"nccl"', "args.backend")),
    ("gloo", DEVICE, DEVICE.replace('"nccl"', '"gloo"')),
    ("visible devices", DEVICE, DEVICE.replace("dist.init", 'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\ndist.init')),
    ("device of unknown origin", DEVICE, DEVICE + "y = x.to(setup.device)\n"),
]  # fmt: skip


@pytest.mark.parametrize(("yes", "no"), [pytest.param(yes, no, id=row) for row, yes, no in DEVICES])
def test_ranks_that_share_a_gpu_are_found_and_those_with_their_own_are_not(yes, no):
    assert "device-not-set" in found(yes)
    assert "device-not-set" not in found(no)

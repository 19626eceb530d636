"""Accumulation, schedulers, learning rates, devices."""

import pytest

from unit.diagnose.lint.python.pairs import found, severity
from unit.diagnose.lint.python.sources import ACCELERATE, FABRIC, RAW

STEPS = """
for i, (x, y) in enumerate(loader):
    loss = model(x).mean() / 4
    {backward}
    if (i + 1) % 4 == 0:
        {step}
        optimizer.zero_grad()
        {inside}
    {outside}
"""


def steps(
    start=RAW, backward="loss.backward()", step="optimizer.step()", inside="pass", outside="pass"
):
    return start + STEPS.format(backward=backward, step=step, inside=inside, outside=outside)


FABRIC_MODEL = FABRIC + "model, optimizer = fabric.setup(model, optimizer)\n"
PREPARED = ACCELERATE + "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
NO_SYNC = "with model.no_sync():\n        loss.backward()"
SYNCS = [
    ("plain", steps(), steps(backward=NO_SYNC)),
    ("flag of DDP", steps(), steps(backward="model.require_backward_grad_sync = i % 4 == 3\n    loss.backward()")),
    ("scaled", steps(backward="scaler.scale(loss).backward()", step="scaler.step(optimizer)"), steps(backward="scaler.scale(loss).backward()", outside="optimizer.step()")),
    ("fabric", steps(FABRIC_MODEL, backward="fabric.backward(loss)"), steps(FABRIC_MODEL, backward="with fabric.no_backward_sync(model, enabled=i % 4 != 3):\n        fabric.backward(loss)")),
    ("accelerate", steps(PREPARED, backward="accelerator.backward(loss)"), steps(PREPARED, backward="with accelerator.accumulate(model):\n        accelerator.backward(loss)")),
    ("every step", steps(), steps().replace("(i + 1) % 4 == 0", "loss > 0")),
    ("one process", steps(), steps(RAW.replace("DDP(nn.Linear(4, 2).cuda(), device_ids=[local_rank])", "nn.Linear(4, 2)"))),
    ("fsdp", steps(), steps(RAW + "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n")),
]  # fmt: skip
EPOCHS = PREPARED + """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
{prepare}
for epoch in range(30):
    for x in loader:
        accelerator.backward(model(x))
        optimizer.step()
    {step}
"""  # fmt: skip
PREPARE = "scheduler = accelerator.prepare(scheduler)"
SCHEDULER = [
    ("per micro-batch", steps(outside="scheduler.step()"), steps(inside="scheduler.step()")),
    ("fabric", steps(FABRIC_MODEL, "fabric.backward(loss)", outside="lr_scheduler.step()"), steps(FABRIC_MODEL, "fabric.backward(loss)", inside="lr_scheduler.step()")),
    ("accelerate by hand", steps(PREPARED, "accelerator.backward(loss)", outside="scheduler.step()"),
     steps(PREPARED, "with accelerator.accumulate(model):\n        accelerator.backward(loss)", outside="scheduler.step()")),
    ("prepared, per epoch", EPOCHS.format(prepare=PREPARE, step="scheduler.step()"), EPOCHS.format(prepare="pass", step="scheduler.step()")),
    ("prepared, scaled", EPOCHS.format(prepare=PREPARE, step="scheduler.step()"),
     EPOCHS.format(prepare=PREPARE, step="scheduler.step()").replace("step_size=10", "step_size=10 * accelerator.num_processes")),
    ("prepared, split batches", EPOCHS.format(prepare=PREPARE, step="scheduler.step()"),
     EPOCHS.format(prepare=PREPARE, step="scheduler.step()").replace("Accelerator()", "Accelerator(step_scheduler_with_optimizer=False)")),
    ("once per process", EPOCHS.format(prepare=PREPARE, step="for _ in range(accelerator.num_processes):\n        scheduler.step()"), EPOCHS.format(prepare="pass", step="scheduler.step()")),
]  # fmt: skip
SGD = RAW + """
loader = DataLoader(train_set, batch_size=64, sampler=DistributedSampler(train_set))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    model(x).backward()
"""  # fmt: skip
RATE = [
    ("literal", SGD, SGD.replace("lr=0.1", "lr=0.1 * dist.get_world_size()")),
    ("batch divided", SGD, SGD.replace("batch_size=64", "batch_size=64 // dist.get_world_size()")),
    ("adaptive", SGD, SGD.replace("SGD", "AdamW")),
    ("by argument", SGD, SGD.replace("lr=0.1", "lr=args.lr")),
]
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
ARGUMENT = "import argparse\nimport os\nimport torch\nparser = argparse.ArgumentParser()\nparser.add_argument({forms}, type=int, default={default})\nargs = parser.parse_args()\ntorch.cuda.set_device(args.local_rank)\n"
LOCAL_RANK = [
    ("underscore", ARGUMENT.format(forms='"--local_rank"', default="-1"), ARGUMENT.format(forms='"--local_rank", "--local-rank"', default="-1")),
    ("environment", ARGUMENT.format(forms='"--local_rank"', default="0"), ARGUMENT.format(forms='"--local_rank"', default='os.environ.get("LOCAL_RANK", 0)')),
    ("deepspeed", ARGUMENT.format(forms='"--local_rank"', default="0"), "import deepspeed\n" + ARGUMENT.format(forms='"--local_rank"', default="0")),
    ("other argument", ARGUMENT.format(forms='"--local_rank"', default="0"), ARGUMENT.format(forms='"--lr"', default="0")),
    ("not read", ARGUMENT.format(forms='"--local_rank"', default="0"), ARGUMENT.format(forms='"--local_rank"', default="0").replace("torch.cuda.set_device(args.local_rank)", "setup(args)")),
]  # fmt: skip
ALL = [
    pytest.param(name, yes, no, id=f"{name} {row}")
    for name, table in [
        ("accumulation-syncs-every-step", SYNCS),
        ("scheduler-stepped-n-times", SCHEDULER),
        ("learning-rate-not-scaled", RATE),
        ("device-not-set", DEVICES),
        ("local-rank-argument-unknown", LOCAL_RANK),
    ]
    for row, yes, no in table
]


@pytest.mark.parametrize(("name", "yes", "no"), ALL)
def test_the_mistake_is_found_and_its_neighbour_is_not(name, yes, no):
    assert name in found(yes)
    assert name not in found(no)


@pytest.mark.parametrize(("name", "yes", "no"), ALL)
def test_what_works_slowly_or_differently_is_no_error(name, yes, no):
    assert severity(yes, name) in ("warning", "hint")

"""Idioms of working training code beside the mistakes that they resemble: samplers, wrappers, devices, losses, folders."""

import pytest

from unit.diagnose.lint.python.pairs import found, severity
from unit.diagnose.lint.python.sources import ACCELERATE, RAW

MAKE = "def make(data, shuffle):\n    return DistributedSampler(data, shuffle=shuffle)\n"
MAKE_SHUFFLED = "def make(data):\n    return DistributedSampler(data)\n"
LOADER = "loader = DataLoader(train_set, sampler={})\n"
EPOCHS = "for epoch in range(3):\n    {}\n    for x in loader:\n        model(x).backward()\n"
SAMPLED = "sampler = DistributedSampler(train_set)\n" + LOADER.format("sampler")
FOREVER = "def forever(loader):\n    epoch = 0\n    while True:\n        {}\n        for batch in loader:\n            yield batch\nbatches = forever(loader)\n"
SHUFFLED = MAKE_SHUFFLED + LOADER.format("make(train_set)")
ONCE = "for x in loader:\n    model(x).backward()\n"
BARE = RAW.replace("model = DDP(", "net = wrap(").replace("model.", "net.")
MAYBE = "def main(net, x):\n    if args.distributed:\n        net = DDP(net)\n    "
CLASS = "class Runner:\n    def __init__(self, net):\n        self.net = DDP(net)\n"
DEVICES = RAW.replace("torch.cuda.set_device(local_rank)\n", "")
SET = "torch.cuda.set_device(gpu)\n"
HF = "import os, torch\nimport torch.distributed as dist\nfrom transformers import Trainer, TrainingArguments\nrank = dist.get_rank()\ntrainer = Trainer(net, TrainingArguments('out', fsdp={}))\n"
FSDP, NO_FSDP = HF.format("'full_shard auto_wrap'"), HF.format("''")
ON_ONE = "if rank == 0:\n    "
STEP = "for batch in loader:\n    loss = net(batch)\n    {}\n    optimizer.step()\n"
ENGINE = ACCELERATE.replace("Accelerator()", "Accelerator(deepspeed_plugin=DeepSpeedPlugin())")
SUMMED = ACCELERATE.replace("Accelerator()", "Accelerator(gradient_accumulation_steps=4)")
SCALED = "scaler.scale(loss).backward()"
WRAPPED = RAW.replace("model = DDP(", "ddp = DDP(").replace("model.", "ddp.")
TRAIN = "for x in loader:\n    loss = {}\n    loss.backward()\n    {}\n    optimizer.step()\n"
CRITERION = "criterion(ddp, x)"
MKDIR = "if not os.path.exists('out'):\n    os.makedirs('out')\n"
ONE_MAKES = "def main(out='out'):\n    if rank == 0:\n        os.makedirs(out, exist_ok=True)\n    {}\n    torch.save(x, os.path.join(out, f'{{rank}}.pt'))\nmain()\n"
TENSORS = "x, y = torch.randn(1000, 4), torch.randn(1000)\n"
FIT = "\ntrain_loader = DataLoader({}, batch_size=32, shuffle=True)\nfor a, b in train_loader:\n    model(a).backward()\n"
PAIR, PART = FIT.format("TensorDataset(x, y)"), FIT.format("TensorDataset(u, v)")
# Each rule: its name, severity and beginning; the wrong scripts, the right ones, and right ones that were once taken for wrong.
RULES = [
    ("set-epoch-missing", "warning", RAW, {
        "parameter": MAKE + LOADER.format("make(train_set, shuffle=True)") + EPOCHS.format(""), "endless": SAMPLED + FOREVER.format("epoch += 1"), "helper": SHUFFLED + EPOCHS.format("")}, {
        "seed of the epoch": "def make(data, epoch):\n    return DistributedSampler(data, seed=epoch)\n" + EPOCHS.format("loader = DataLoader(train_set, sampler=make(train_set, epoch))"),
        "validation": MAKE_SHUFFLED + LOADER.format("Own(train_set)") + "val_loader = DataLoader(val_set, sampler=make(val_set))\n" + EPOCHS.format(""), "one pass": SHUFFLED + ONCE,
        "endless in order": SAMPLED.replace("(train_set)", "(train_set, shuffle=False)", 1) + FOREVER.format(""), "endless with it": SAMPLED + FOREVER.format("loader.sampler.set_epoch(epoch)"),
        "trained elsewhere": SHUFFLED + "for epoch in range(3):\n    train_one_epoch(model, loader, epoch)\n", "on the loader": SHUFFLED + EPOCHS.format("loader.sampler.set_epoch(epoch)"),
        "endless by name": SAMPLED + FOREVER.format("sampler.set_epoch(epoch)"), "by a function": SHUFFLED + EPOCHS.format("set_epoch(loader, epoch)")}, {
        "shuffled for a look": MAKE + LOADER.format("make(train_set, shuffle=False)") + "show(DataLoader(val_set, sampler=make(val_set, shuffle=True)))\n" + EPOCHS.format(""),
        "other function of that name": MAKE + LOADER.format("make(train_set, False)") + "views.make(train_set, shuffle=True)\n" + EPOCHS.format(""),
        "endless over lines": SAMPLED + "def lines(path):\n    while True:\n        for line in open(path):\n            yield line\n" + ONCE}),
    ("method-does-not-exist", "error", BARE, {
        "at the top": "model = DDP(net)\nmodel.sample(4)\n", "in a function": "def main():\n    model = DDP(net)\n    model.sample(4)\n",
        "trained in some runs": "def main(data):\n    net = build()\n    if args.distributed:\n        net = DDP(net)\n    for x in data:\n        net.loss(x).backward()\n"}, {
        "other class": CLASS + "class Sampler:\n    def __init__(self, net):\n        self.net = net\n    def draw(self):\n        return self.net.sample(4)\n",
        "API of DDP": "model = DDP(net)\nmodel.register_comm_hook(None, hook)\nmodel.apply(init)\nmodel.requires_grad_(False)\nmodel._set_static_graph()\n",
        "unwrapped again": MAYBE + "net(x).backward()\n    if args.distributed:\n        net = net.module\n    net.sample(x)\n", "evaluated in some runs": MAYBE + "return net.sample(x)\n",
        "asked": "model = DDP(net)\nif isinstance(model, DDP):\n    model.module.sample(4)\nelse:\n    model.sample(4)\n", "before it is wrapped": "net.sample(4)\nnet = DDP(net)\n",
        "caught": "model = DDP(net)\ntry:\n    model.sample(4)\nexcept AttributeError:\n    pass\n", "setattr": "model = DDP(net)\nsetattr(model, 'sample', net.sample)\nmodel.sample(4)\n",
        "unwrapped": "model = DDP(net)\nmodel = model.module\nmodel.sample(4)\n", "helper": "model = DDP(net)\nunwrap(model).sample(4)\n", "module": "model = DDP(net)\nmodel.module.sample(4)\n"}, {
        "parameter": "def main():\n    model = DDP(net)\n    evaluate(model.module)\ndef evaluate(model):\n    return model.sample(4)\n",
        "left": MAYBE + "net(x).backward()\n    if args.distributed:\n        return\n    net.sample(x)\n",
        "parameter of a lambda": "model = DDP(net)\nscore = lambda model: model.score(4)\nscore(net)\n",
        "target of a loop": "model = DDP(net)\nfor model in (ema, teacher):\n    model.update(4)\n"}),
    ("invalid-device-ordinal", "warning", DEVICES, {
        "as it is": "torch.cuda.set_device(dist.get_rank())\n", "get_rank": "torch.cuda.set_device(rank)\n",
        "environment": "gpu = int(os.environ['RANK'])\n" + SET}, {
        "either": "try:\n    gpu = int(os.environ['LOCAL_RANK'])\nexcept KeyError:\n    gpu = int(os.environ['RANK'])\n" + SET, "modulo below": "gpu = dist.get_rank()\ngpu = gpu % 4\n" + SET,
        "hidden": "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']\ntorch.cuda.set_device(0)\n", "modulo in the call": "torch.cuda.set_device(rank % torch.cuda.device_count())\n",
        "number of nodes": "torch.cuda.set_device(rank if args.nodes == 1 else local_rank)\n", "modulo": "gpu = dist.get_rank() % torch.cuda.device_count()\n" + SET,
        "group of the node": "gpu = dist.get_rank(node_group)\n" + SET, "device": "gpu = torch.device('cuda', local_rank)\n" + SET, "Slurm": "gpu = int(os.environ['SLURM_LOCALID'])\n" + SET,
        "local": "torch.cuda.set_device(local_rank)\n"}, {
        "one node": "if dist.get_world_size() <= torch.cuda.device_count():\n    torch.cuda.set_device(rank)\nelse:\n    torch.cuda.set_device(local_rank)\n",
        "each in turn": "for rank in range(torch.cuda.device_count()):\n    torch.cuda.set_device(rank)\n    torch.cuda.empty_cache()\n",
        "spawned": "def work(rank):\n    torch.cuda.set_device(rank)\ntorch.multiprocessing.spawn(work, nprocs=4)\n",
        "less the node's first": "gpu = int(os.environ['RANK']) - 4 * int(os.environ['GROUP_RANK'])\n" + SET, "modulo in place": "gpu = dist.get_rank()\ngpu %= torch.cuda.device_count()\n" + SET,
        "modulo of the environment": "gpu = int(os.environ['RANK']) % torch.cuda.device_count()\n" + SET}),
    ("collective-in-rank-block", "", "", {
        "trl": FSDP.replace("transformers", "trl") + "if trainer.args.process_index == 0:\n    trainer.save_model()\n", "or cpu": RAW + "if rank == 0 or rank == 'cpu':\n    dist.barrier()\n",
        "get_rank": FSDP + "if dist.get_rank() == 0:\n    trainer.save_model()\n", "save_model": FSDP + ON_ONE + "trainer.save_model('out')\n"}, {
        "gathered": FSDP + "state = trainer.accelerator.get_state_dict(net)\nif trainer.args.should_save:\n    trainer._save('out', state_dict=state)\n",
        "sharded or not": FSDP + "if trainer.is_fsdp_enabled:\n    trainer.save_model('out')\nelif rank == 0:\n    trainer.save_model('out')\n",
        "both sides": RAW + "if rank == 0 or rank == 'cpu':\n    dist.barrier()\nelse:\n    dist.barrier()\n", "or not cpu": RAW + "if rank == 0 or rank != 'cpu':\n    dist.barrier()\n",
        "both branches": FSDP + ON_ONE + "trainer.save_model('out')\nelse:\n    trainer.save_model('out')\n", "not cpu": RAW + "if rank != 'cpu':\n    dist.barrier()\n",
        "tokenizer": FSDP + "trainer.save_model('out')\n" + ON_ONE + "tokenizer.save_pretrained('out')\n", "DDP": NO_FSDP + ON_ONE + "trainer.save_model('out')\n",
        "every rank": FSDP + "trainer.save_model('out')\n"}, {
        "own function": FSDP + "def save_model(state, path):\n    torch.save(state, path)\nstate = trainer.accelerator.get_state_dict(net)\n" + ON_ONE + "save_model(state, 'm.pt')\n",
        "one of the choices": NO_FSDP + "parser.add_argument('--strategy', choices=['ddp', 'full_shard'])\n" + ON_ONE + "trainer.save_model('out')\n",
        "safetensors": FSDP + "from safetensors.torch import save_model\n" + ON_ONE + "save_model(plain, 'm.safetensors')\n",
        "all": RAW + "def wait(rank):\n    if rank == 'all' or rank == 0:\n        dist.barrier()\n"}),
    ("backward-not-accelerator", "warning", "", {
        "scaled in some runs": ENGINE + STEP.format("if args.amp:\n        scaler.scale(loss).backward()\n    else:\n        accelerator.backward(loss)"), "loss": ENGINE + STEP.format("loss.backward()"),
        "scaler": ENGINE + STEP.format(SCALED)}, {
        "summed by Accelerate": SUMMED + STEP.format("if args.ours:\n        accelerator.backward(loss)\n    else:\n        scaler.scale(loss).backward()"), "ranks": RAW + STEP.format(SCALED),
        "arguments": ACCELERATE.replace("Accelerator()", "Accelerator(**arguments)") + STEP.format("loss.backward()"), "accelerator": ENGINE + STEP.format("accelerator.backward(loss)"),
        "gradient": ENGINE + STEP.format("grads = torch.autograd.grad(loss, x)\n    accelerator.backward(loss)"), "own scaler": ACCELERATE + STEP.format(SCALED),
        "engine": ENGINE + "engine = accelerator.prepare(net)\n" + STEP.format("engine.backward(loss)"), "no plugin": ENGINE.replace("DeepSpeedPlugin()", "None") + STEP.format("loss.backward()")}, {
        "attack": ENGINE + STEP.format("accelerator.backward(loss)") + "def attack(x):\n    loss = victim(x).sum()\n    loss.backward()\n    return x.grad.sign()\n",
        "asked": ENGINE + STEP.format("if accelerator.distributed_type == 'DEEPSPEED':\n        accelerator.backward(loss)\n    else:\n        loss.backward()"),
        "maybe": ENGINE.replace("Plugin()", "Plugin() if args.zero else None") + STEP.format("accelerator.backward(loss) if args.zero else loss.backward()"),
        "critic": ENGINE + STEP.format("accelerator.backward(loss)") + "    critic_loss = critic(batch)\n    critic_loss.backward()\n",
        "divided": SUMMED + STEP.format("scaler.scale(loss / 4).backward()")}),
    ("gradients-not-averaged", "warning", WRAPPED, {
        "alias": "inner = ddp.module\n" + TRAIN.format("inner(x).sum()", ""), "method": TRAIN.format("ddp.module.loss(x)", ""), "call": TRAIN.format("ddp.module(x).sum()", "")}, {
        "no gradients beside autocast": TRAIN.format(CRITERION, "with torch.autocast('cuda'), torch.inference_mode():\n        ddp.module.encode(x)"), "forward": TRAIN.format("ddp(x).sum()", ""),
        "decorated": "@torch.no_grad()\ndef sample():\n    return ddp.module.sample(4)\n" + TRAIN.format(CRITERION, "sample()"), "both": TRAIN.format("ddp(x).sum() + ddp.module.penalty()", ""),
        "API of modules": TRAIN.format(CRITERION, "ddp.module.train()\n    ddp.module.zero_grad()"), "GAN": "critic = DDP(net)\n" + TRAIN.format("critic(ddp(x)).mean()", "ddp.module.clip()"),
        "evaluation": TRAIN.format(CRITERION, "") + "for x in val:\n    ddp.module.predict(x)\n", "part of it": TRAIN.format("ddp(x, part='head').sum()", "ddp.module.update_teacher()"),
        "inference": "for x in loader:\n    ddp.module(x)\n"}, {
        "alias of the wrapper": CLASS + "    def fit(self):\n        net = self.net\n        for x in data:\n            loss = net(x) + self.net.module.penalty()\n            loss.backward()\n",
        "averaged by hand": TRAIN.format("ddp.module.loss(x)", "for p in ddp.parameters():\n        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)"),
        "diffusion": TRAIN.format("diffusion.training_losses(ddp, x)['loss'].mean()", "ddp.module.count_step()"), "criterion": TRAIN.format(CRITERION + " + ddp.module.penalty()", ""),
        "compiled": "fast = torch.compile(ddp)\n" + TRAIN.format("fast(x).sum() + ddp.module.penalty()", ""), "forward by name": TRAIN.format("ddp.forward(x).sum() + ddp.module.penalty()", "")}),
    ("folder-race", "warning", RAW, {
        "one makes it": ONE_MAKES.format(""), "makedirs": "os.makedirs('out')\n", "mkdir": "os.mkdir('out')\n"}, {
        "function of one rank": "def prepare(path):\n    os.makedirs(path)\nif rank == 0:\n    prepare('out')\n", "caught": "try:\n    os.makedirs('out')\nexcept FileExistsError:\n    pass\n",
        "one rank": "if rank == 0 and not os.path.exists('out'):\n    os.makedirs('out')\ndist.barrier()\n", "elsewhere": ONE_MAKES.format("").replace("join(out", "join('/tmp'"),
        "decorated": "@rank_zero_only\ndef prepare(path):\n    os.makedirs(path)\nprepare('out')\n", "wrapped meanwhile": ONE_MAKES.format("model = DDP(net)"),
        "exist_ok": "os.makedirs('out', exist_ok=True)\n", "one for each": "os.makedirs(f'out/{rank}')\n", "barrier": ONE_MAKES.format("dist.barrier()")}, {
        "temporary": "with tempfile.TemporaryDirectory() as folder:\n    os.mkdir(os.path.join(folder, 'cache'))\n", "object store": "fs = fsspec.filesystem('s3')\nfs.makedirs('bucket/out')\n",
        "suppressed": "from contextlib import suppress\nwith suppress(FileExistsError):\n    os.makedirs('out')\n", "each makes it": ONE_MAKES.format("os.makedirs(out, exist_ok=True)"),
        "synchronized": "def synchronize():\n    dist.barrier()\n" + ONE_MAKES.format("synchronize()"), "first rank first": "with zero_first(rank):\n    " + MKDIR.replace("    ", "        "),
        "trained meanwhile": ONE_MAKES.format("for x in loader:\n        model(x).sum().backward()"), "made before": "if rank == 0:\n    os.makedirs('out')\ndist.barrier()\n" + MKDIR,
        "own function": "from utils import mkdir\nmkdir('out')\n", "mode and exist_ok": "os.makedirs('out', 0o755, True)\n", "in an expression": "rank == 0 and os.makedirs('out')\n"}),
    ("sampler-missing", "warning", RAW, {
        "scaled": TENSORS + "part = x[:800]\nu = (part - part.mean(0)) / part.std(0)\nv = y[:800].cuda()" + PART, "moved": TENSORS + FIT.format("TensorDataset(x[:800].cuda(), y[:800].cuda())"),
        "indexed": TENSORS + "u, v = x[:800], y[:800]" + PART}, {
        "bounds": TENSORS + "from utils import bounds\nlow, high = bounds(1000)\nu, v = x[low:high], y[low:high]" + PART, "chunk": TENSORS + "u, v = x.chunk(4)[rank], y.chunk(4)[rank]" + PART,
        "offset": TENSORS + "low = 250 * int(os.environ['RANK'])\nu, v = x[low:low + 250], y[low:low + 250]" + PART, "every nth": TENSORS + "u, v = x[rank::4], y[rank::4]" + PART,
        "mask": TENSORS + "mine = torch.arange(1000) % 4 == rank\nu, v = x[mine], y[mine]" + PART, "file": "part = torch.load(f'{rank}.pt')\nu, v = part['x'][:800], part['y'][:800]" + PART,
        "slice": TENSORS + "mine = slice(rank, None, 4)\nu, v = x[mine], y[mine]" + PART}, {
        "own order": TENSORS + "g = torch.Generator().manual_seed(rank)\norder = torch.randperm(1000, generator=g)\nu, v = x[order[:250]], y[order[:250]]" + PART,
        "unknown rows": TENSORS + "from utils import rows\nmine = rows(1000)" + FIT.format("TensorDataset(x[mine], y[mine])"),
        "rows in place": TENSORS + "mine = slice(rank, None, 4)" + FIT.format("TensorDataset(x[mine], y[mine])"), "scattered": TENSORS + "dist.scatter(x, parts)\ndist.scatter(y, labels)" + PAIR,
        "filled": TENSORS + "for step in range(1000):\n    x[step], y[step] = env.step()" + PAIR, "own seed": "torch.manual_seed(rank)\n" + TENSORS + "u, v = x[:800], y[:800]" + PART}),
]  # fmt: skip


def rows(*tables):
    return [
        pytest.param(rule[0], rule[1], rule[2] + text, id=f"{rule[0]}: {kind}")
        for rule in RULES
        for table in tables
        for kind, text in rule[table].items()
    ]


@pytest.mark.parametrize(("name", "expected", "source"), rows(3))
def test_the_mistake_is_found(name, expected, source):
    assert name in found(source)
    assert expected in ("", severity(source, name))


@pytest.mark.parametrize(("name", "expected", "source"), rows(4, 5))
def test_an_idiom_that_works_is_left_alone(name, expected, source):
    assert name not in found(source)


def test_a_folder_that_is_looked_for_first_is_not_judged():
    assert "folder-race" not in found(RAW + MKDIR)

"""The whole scripts again, each with one thing broken: it is found, and nothing else is."""

from pathlib import Path

import pytest

from paceline.diagnose.lint.python.judging import judge

RIGHT = Path(__file__).parent / "right"
BROKEN = [
    ("raw_torchrun", "train_sampler.set_epoch(epoch)", "pass", "set-epoch-missing"),
    ("raw_torchrun", "if not distributed or dist.get_rank() == 0:", "if True:", "save-on-every-rank"),
    ("raw_torchrun", "if not distributed or dist.get_rank() == 0:", "if dist.get_rank() == 0:\n            dist.barrier()", "collective-in-rank-block"),
    ("raw_class", "self.gpu_id == 0 and ", "", "save-on-every-rank"),
    ("raw_class", "self.train_data.sampler.set_epoch(epoch)", "pass", "set-epoch-missing"),
    ("raw_spawn", "    dist.barrier()", "        dist.barrier()", "collective-in-rank-block"),
    ("raw_spawn", "    if rank == 0:\n        torch.save", "    if True:\n        torch.save", "save-on-every-rank"),
    ("raw_language_model", "model.require_backward_grad_sync = ", "last = ", ""),
    ("raw_language_model", "iter_num % eval_interval == 0 and master_process", "iter_num % eval_interval == 0", "save-on-every-rank"),
    ("raw_first_rank_first", "loader.sampler.set_epoch(epoch)", "pass", "set-epoch-missing"),
    ("raw_first_rank_first", "if RANK in {-1, 0}:", "if True:", "save-on-every-rank"),
    ("raw_first_rank_first", "if RANK in {-1, 0}:", "if RANK in {-1, 0}:\n            dist.barrier()", "collective-in-rank-block"),
    ("raw_own_shares", "DataLoader(mine, batch_size=10", "DataLoader(data, batch_size=10", "sampler-missing"),
    ("raw_own_shares", "else:\n    dist.gather_object(hits)", "else:\n    pass", "collective-in-rank-block"),
    ("raw_own_shares", 'f"rank{rank}.pt"', '"model.pt"', ""),
    ("raw_stream", "        dist.barrier()\n        if dist.get_rank() == 0:", "        if dist.get_rank() == 0:\n            dist.barrier()", "collective-in-rank-block"),
    ("raw_two_models", "    if not is_main_process():\n        return\n", "", "save-on-every-rank"),
    ("raw_two_models", "        sampler.set_epoch(epoch)\n", "", "set-epoch-missing"),
    ("raw_old_launcher", "        if args.local_rank in [-1, 0]:\n            bare", "        if True:\n            bare", "save-on-every-rank"),
    ("raw_old_launcher", "    if args.local_rank not in [-1, 0]:\n        torch.distributed.barrier()\n", "", "collective-in-rank-block"),
    ("fsdp", "        dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)\n        if rank == 0:\n", "        if rank == 0:\n            dist.all_reduce(ddp_loss)\n", "collective-in-rank-block"),
    ("accelerate_classify", "accelerator.gather_for_metrics", "accelerator.gather_metrics", "method-does-not-exist"),
    ("accelerate_classify", "accelerator.wait_for_everyone()\nif accelerator.is_main_process:\n", "if accelerator.is_main_process:\n    accelerator.wait_for_everyone()\n", "collective-in-rank-block"),
    ("fabric_digits", "with fabric.no_backward_sync(model, enabled=waiting):", "if True:", ""),
    ("fabric_digits", "    fabric.barrier()\n    if fabric.is_global_zero:\n", "    if fabric.is_global_zero:\n        fabric.barrier()\n", "collective-in-rank-block"),
    ("fabric_digits", "fabric.print", "fabric.log_message", "method-does-not-exist"),
    ("lightning_classify", "    trainer.save_checkpoint(\"last.ckpt\")\n    if trainer.is_global_zero:\n", "    if trainer.is_global_zero:\n        trainer.save_checkpoint(\"last.ckpt\")\n", "collective-in-rank-block"),
    ("lightning_classify", "def on_train_epoch_end(self):", "def training_epoch_end(self, outputs):", "deprecated-name"),
    ("lightning_classify", "devices=4, num_nodes=2", "gpus=4, num_nodes=2", "deprecated-name"),
    ("lightning_metrics", "self.model.gradient_checkpointing_enable()", "self.gradient_checkpointing_enable()", "method-does-not-exist"),
    ("deepspeed_engine", "    engine.save_checkpoint(\"checkpoints\", tag=f\"epoch{epoch}\")\n    if torch.distributed.get_rank() == 0:\n", "    if torch.distributed.get_rank() == 0:\n        engine.save_checkpoint(\"checkpoints\")\n", "collective-in-rank-block"),
    ("deepspeed_engine", "    sampler.set_epoch(epoch)\n", "", "set-epoch-missing"),
    ("horovod_digits", "    train_sampler.set_epoch(epoch)\n", "", "set-epoch-missing"),
    ("horovod_digits", "    mean = hvd.allreduce(torch.tensor(0.0), name=\"loss\").item()\n    if hvd.rank() == 0:\n", "    if hvd.rank() == 0:\n        mean = hvd.allreduce(torch.tensor(0.0), name=\"loss\").item()\n", "collective-in-rank-block"),
    ("session_digits", "session.reduce(correct)", "correct", ""),
    ("session_digits", "    if session.is_main:\n", "    if session.is_main:\n        session.barrier()\n", "collective-in-rank-block"),
    ("session_digits", "session.once(", "session.only_once(", "method-does-not-exist"),
    ("point_to_point", "    else:\n        dist.scatter(tensor, src=0)\n", "", "collective-in-rank-block"),
    ("point_to_point", "    dist.barrier()\n    if rank != 0:\n        return\n", "    if rank != 0:\n        return\n    dist.barrier()\n", "collective-in-rank-block"),
    ("webdataset_contrastive", "        if is_master(args):\n            torch.save", "        if True:\n            torch.save", "save-on-every-rank"),
    ("webdataset_contrastive", "args.shards, nodesplitter=wds.split_by_node", "args.shards", "sampler-missing"),
    ("reinforce", "        dist.all_reduce(mean, op=dist.ReduceOp.SUM)\n        if rank == 0:\n", "        if rank == 0:\n            dist.all_reduce(mean)\n", "collective-in-rank-block"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "old", "new", "name"),
    [pytest.param(*row, id=f"{row[0]} {row[3]} {place}") for place, row in enumerate(BROKEN)],
)
def test_what_was_broken_is_found_and_nothing_else(script, old, new, name):
    source = (RIGHT / f"{script}.py").read_text()
    assert old in source
    assert {finding.name for finding in judge(source.replace(old, new), f"{script}.py")} == (
        {name} - {""}
    )

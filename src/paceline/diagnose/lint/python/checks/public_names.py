"""Tables of the public attributes of well-known classes, and of names that were removed.

Taken from lightning 2.6 (``signatures/lightning.txt``), accelerate 1.15, torch 2.13 and paceline
itself. Names of older releases are listed as removed, so that the finding for an older script names
the release instead of a misspelling.
"""

from __future__ import annotations

from paceline.diagnose.lint.python.script import words_of
from paceline.signatures.lightning_names import REFUSED, tables

TRAINER = frozenset(tables()["trainer"])
PACELINE_TRAINER = frozenset(
    name for name, what in tables()["trainer"].items() if what.kind != REFUSED
) | words_of(
    """
    accumulation_by_epoch all_gather batch_idx check_accumulation clip_gradients
    console inference_mode log manual_backward mode monitor pending_checkpoints
    remove_checkpoint replace_schedules session shows_progress stops_at_once take
    take_loaders
    """
)
REMOVED_TRAINER = {name: what.instead for name, what in tables()["removed attributes"].items()}
FABRIC = words_of(
    """
    accelerator all_gather all_reduce autocast backward barrier broadcast call
    clip_gradients device global_rank init_module init_tensor is_global_zero launch load
    load_raw local_rank log log_dict logger loggers no_backward_sync node_rank print
    rank_zero_first run save seed_everything setup setup_dataloaders setup_module
    setup_optimizers sharded_model strategy to_device world_size
    """
)
ACCELERATOR = words_of(
    """
    accumulate ao_recipe_handler autocast autocast_handler backward check_trigger clear
    clip_grad_norm_ clip_grad_value_ context_parallel_rank data_parallel_rank
    data_parallel_shard_rank dataloader_config ddp_handler deepspeed_config
    deepspeed_engine_wrapped deepspeed_plugin deepspeed_ulysses_dl_adapter
    delayed_fp8_autocast device device_placement dispatch_batches distributed_type
    end_training even_batches flag_tensor fp8_backend fp8_enabled fp8_recipe_handler
    free_memory gather gather_for_metrics get_state_dict get_tracker
    gradient_accumulation_steps gradient_state has_fp8_handler has_lomo_optimizer
    init_handler init_trackers is_composable_parallelism_enabled is_fsdp2 is_last_process
    is_local_main_process is_main_process join_uneven_inputs load_state
    local_main_process_first local_process_index log log_with logging_dir lomo_backward
    main_process_first maybe_context_parallel mixed_precision model msamp_recipe_handler
    multi_device native_amp no_sync non_blocking num_processes on_last_process
    on_local_main_process on_local_process on_main_process on_process
    optimizer_step_was_skipped pad_across_processes parallelism_config
    pipeline_parallel_rank prepare prepare_data_loader prepare_model prepare_optimizer
    prepare_scheduler print process_index profile profile_handler project_configuration
    project_dir reduce register_for_checkpointing register_load_state_pre_hook
    register_save_state_pre_hook rng_types save save_iteration save_model save_state scaler
    scaler_handler set_trigger should_save_model skip_first_batches split_batches
    split_between_processes state step step_scheduler_with_optimizer sync_gradients
    te_recipe_handler tensor_parallel_rank torch_device_mesh trackers
    trigger_sync_in_backward unscale_gradients unwrap_model use_distributed
    use_seedable_sampler use_stateful_dataloader verify_device_map wait_for_everyone
    """
)
SESSION = words_of(
    """
    accumulate autocast average backward barrier clip_grad_norm clip_grad_value device draws epochs
    export gather is_main load loader local_rank log log_hyperparameters mean once print
    rank recompute reduce register restore run_dir save save_every scale_lr setup step stop
    unwrap world_size
    """
)
# Methods of Hugging Face's PreTrainedModel that no nn.Module, LightningModule or DDP wrapper has.
PRETRAINED_ONLY = words_of(
    """
    gradient_checkpointing_enable gradient_checkpointing_disable enable_input_require_grads
    save_pretrained push_to_hub resize_token_embeddings get_input_embeddings tie_weights
    prune_heads generate
    """
)
# Arguments and functions of earlier releases -> their replacements.
REMOVED_ACCELERATOR_ARGUMENTS = {
    "fp16": "mixed_precision='fp16'",
    "logging_dir": "project_dir",
    "dispatch_batches": "dataloader_config=DataLoaderConfiguration(dispatch_batches=...)",
    "even_batches": "dataloader_config=DataLoaderConfiguration(even_batches=...)",
    "use_seedable_sampler": "dataloader_config=DataLoaderConfiguration(use_seedable_sampler=...)",
}
OLD_TORCH = {
    "torch.cuda.amp.autocast": "torch.amp.autocast('cuda')",
    "torch.cuda.amp.GradScaler": "torch.amp.GradScaler('cuda')",
    "torch.cuda.amp.custom_fwd": "torch.amp.custom_fwd(device_type='cuda')",
    "torch.cuda.amp.custom_bwd": "torch.amp.custom_bwd(device_type='cuda')",
    "torch.cuda.amp.grad_scaler.GradScaler": "torch.amp.GradScaler('cuda')",
    "torch.distributed.reduce_op": "torch.distributed.ReduceOp",
    "torch.distributed._all_gather_base": "torch.distributed.all_gather_into_tensor",
    "torch.distributed._reduce_scatter_base": "torch.distributed.reduce_scatter_tensor",
    "apex.parallel.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "apex.amp.initialize": "torch.amp.autocast('cuda')",
    "apex.parallel.convert_syncbn_model": "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
}
# Gone in every torch that is still maintained.
GONE_FROM_TORCH = {
    "torch.distributed.all_reduce_multigpu": "torch.distributed.all_reduce",
    "torch.distributed.all_gather_multigpu": "torch.distributed.all_gather",
    "torch.distributed.broadcast_multigpu": "torch.distributed.broadcast",
    "torch.distributed.reduce_multigpu": "torch.distributed.reduce",
    "torch.distributed.deprecated": "torch.distributed",
}

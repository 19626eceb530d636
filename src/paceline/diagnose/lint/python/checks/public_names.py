"""Tables of the public attributes of well-known classes, and of names that were removed.

Taken from lightning 2.6, accelerate 1.15, torch 2.13 and paceline itself. Names of older releases
are listed as removed, so that the finding for an older script names the release instead of a
misspelling.
"""

from __future__ import annotations

from paceline.diagnose.lint.python.script import words_of

FABRIC = words_of(
    """
    accelerator all_gather all_reduce autocast backward barrier broadcast call
    clip_gradients device global_rank init_module init_tensor is_global_zero launch load
    load_raw local_rank log log_dict logger loggers no_backward_sync node_rank print
    rank_zero_first run save seed_everything setup setup_dataloaders setup_module
    setup_optimizers sharded_model strategy to_device world_size
    """
)
TRAINER = words_of(
    """
    accelerator accumulate_grad_batches barebones callback_metrics callbacks
    check_val_every_n_epoch checkpoint_callback checkpoint_callbacks ckpt_path current_epoch
    default_root_dir device_ids distributed_sampler_kwargs early_stopping_callback
    early_stopping_callbacks enable_autolog_hparams enable_validation
    estimated_stepping_batches evaluating fast_dev_run fit fit_loop global_rank global_step
    gradient_clip_algorithm gradient_clip_val init_module interrupted is_global_zero
    is_last_batch lightning_module limit_predict_batches limit_test_batches
    limit_train_batches limit_val_batches local_rank log_dir log_every_n_steps
    logged_metrics logger loggers lr_scheduler_configs max_epochs max_steps max_time
    min_epochs min_steps model node_rank num_devices num_nodes num_predict_batches
    num_sanity_val_batches num_sanity_val_steps num_test_batches num_training_batches
    num_val_batches optimizers overfit_batches precision precision_plugin predict
    predict_dataloaders predict_loop predicting print profiler progress_bar_callback
    progress_bar_metrics received_sigterm reload_dataloaders_every_n_epochs sanity_checking
    save_checkpoint scaler should_stop state strategy test test_dataloaders test_loop
    testing train_dataloader training val_check_batch val_check_interval val_dataloaders
    validate validate_loop validating world_size datamodule
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
PACELINE_TRAINER = words_of(
    """
    accumulate_grad_batches accumulation_by_epoch all_gather batch_idx callback_metrics
    callbacks check_accumulation check_val_every_n_epoch checkpoint_callback
    checkpoint_callbacks ckpt_path clip_gradients console current_epoch datamodule
    default_root_dir device_ids early_stopping_callback early_stopping_callbacks
    enable_validation estimated_stepping_batches evaluating fast_dev_run fit global_rank
    global_step gradient_clip_algorithm gradient_clip_val inference_mode interrupted
    is_global_zero is_last_batch lightning_module limit_predict_batches limit_test_batches
    limit_train_batches limit_val_batches local_rank log log_dir log_every_n_steps
    logged_metrics logger loggers lr_scheduler_configs manual_backward max_epochs max_steps
    min_epochs min_steps mode model monitor node_rank num_devices num_nodes num_predict_batches
    num_sanity_val_batches num_sanity_val_steps num_test_batches num_training_batches
    num_val_batches optimizers overfit_batches pending_checkpoints precision predict
    predict_dataloaders predicting print profiler progress_bar_metrics
    reload_dataloaders_every_n_epochs remove_checkpoint replace_schedules sanity_checking
    save_checkpoint session should_stop shows_progress state stops_at_once take
    take_loaders test
    test_dataloaders testing train_dataloader training val_check_interval val_dataloaders
    validate validating world_size
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
# Names of earlier releases of Trainer, LightningModule and other classes -> their replacements.
REMOVED_TRAINER = {
    "tune": "lightning.pytorch.tuner.Tuner(trainer).lr_find(...)",
    "tuner": "lightning.pytorch.tuner.Tuner(trainer)",
    "lr_find": "lightning.pytorch.tuner.Tuner(trainer).lr_find(...)",
    "num_gpus": "trainer.num_devices",
    "gpus": "trainer.num_devices",
    "use_amp": "trainer.precision",
    "training_type_plugin": "trainer.strategy",
    "accelerator_connector": "trainer.strategy",
    "root_gpu": "trainer.strategy.root_device",
    "data_parallel_device_ids": "trainer.device_ids",
    "lr_schedulers": "trainer.lr_scheduler_configs",
    "optimizer_frequencies": "configure_optimizers",
    "reset_train_dataloader": "trainer.fit_loop.setup_data()",
    "reset_val_dataloader": "trainer.fit_loop.epoch_loop.val_loop.setup_data()",
    "reset_test_dataloader": "trainer.test(...) with new loaders",
    "reset_predict_dataloader": "trainer.predict(...) with new loaders",
    "run_stage": "trainer.fit(...)",
    "from_argparse_args": "LightningCLI, or Trainer(**vars(args))",
    "add_argparse_args": "LightningCLI",
    "logger_connector": "trainer.callback_metrics",
    "is_last_epoch": "trainer.current_epoch",
    "num_processes": "trainer.num_devices",
    "devices": "trainer.num_devices",
    "tpu_cores": "trainer.num_devices",
    "verbose_evaluate": "trainer.validate(..., verbose=True)",
    "call_hook": "a callback",
    "prepare_data_per_node": "prepare_data_per_node of the DataModule",
    "weights_save_path": "trainer.default_root_dir",
    "distributed_backend": "trainer.strategy",
    "get_model": "trainer.lightning_module",
    "train": "trainer.fit(...)",
    "evaluate": "trainer.validate(...)",
}
REMOVED_ACCELERATOR = {
    "use_fp16": "accelerator.mixed_precision",
    "optimizer_step": "optimizer.step()",
    "local_rank": "accelerator.local_process_index",
    "is_fsdp2_enabled": "accelerator.is_fsdp2",
}
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

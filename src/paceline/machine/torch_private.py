"""The private names of torch that paceline uses, by the module or class that has them.

torch's public interface shows neither the batch that a DataLoader waits for nor the next action of
the elastic agent. The next version of torch may remove a private name. Tests check that each name
exists in the installed torch (``make compat TORCH=...`` tries others), and that the source uses
only names in this list.
"""

from __future__ import annotations

PRIVATE: dict[str, tuple[str, ...]] = {
    "torch": ("_C", "_foreach_mul_", "_foreach_norm"),
    # compilation, CUDA graph capture, tracing
    "torch._C": ("_dynamo", "_len_torch_dispatch_stack"),
    "torch._C._dynamo.eval_frame": ("_FrameAction", "_FrameExecStrategy"),
    "torch._dynamo": (),
    "torch._dynamo.compiled_autograd": (),
    "torch._dynamo.eval_frame.OptimizedModule": ("_orig_mod",),
    # Flight Recorder
    "torch._C._distributed_c10d": ("_dump_fr_trace_json",),
    # frames of a stack that show the position of a rank
    "torch.autograd.Variable": ("_execution_engine",),
    "torch.autograd.graph": ("_engine_run_backward",),
    "torch.distributed._functional_collectives": (),
    "torch.distributed.device_mesh.DeviceMesh": ("_flatten",),
    "torch.distributed.distributed_c10d": (
        "_get_default_store",
        "_new_group_with_tag",
        "_new_process_group_helper",
        "_store_based_barrier",
        "_world",
    ),
    "torch.distributed.ProcessGroup": (
        "_allgather_base",
        "_get_backend",
        "_get_sequence_number_for_group",
    ),
    "torch.distributed.ProcessGroupGloo": ("_Options",),
    "torch.distributed.ProcessGroupGloo._Options": ("_devices", "_threads", "_timeout"),
    "torch.distributed.rendezvous": ("_create_c10d_store",),
    # checkpoints
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    # the elastic agent
    "torch.distributed.elastic.agent.server.api": ("_get_fq_hostname",),
    "torch.distributed.elastic.agent.server.api.SimpleElasticAgent": (
        "_exit_barrier",
        "_monitor_workers",
        "_remaining_restarts",
        "_rendezvous",
        "_restart_workers",
        "_start_workers",
        "_stop_workers",
    ),
    "torch.distributed.elastic.multiprocessing.api.PContext": ("_close", "_poll", "_start"),
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous.DynamicRendezvousHandler": (
        "_bootstrap_store_info",
        "_state_holder",
    ),
    # tensors, modules and the autograd graph
    "torch.Tensor": ("_backward_hooks", "_post_accumulate_grad_hooks", "_values", "_version"),
    "torch.UntypedStorage": ("_cdata",),
    "torch._weights_only_unpickler": ("_get_allowed_globals",),
    "torch.amp.GradScaler": ("_found_inf_per_device",),
    "torch.distributed.tensor.DTensor": ("_local_tensor",),
    "torch.nn.Module": (
        "_buffers",
        "_compiled_call_impl",
        "_forward_hooks",
        "_forward_hooks_always_called",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_load_state_dict_pre_hooks",
        "_parameters",
    ),
    "torch.nn.MultiheadAttention": ("_reset_parameters",),
    "torch.nn.parallel.DistributedDataParallel": (
        "_comm_hooks",
        "_get_ddp_logging_data",
        "_pre_forward",
    ),
    "torch.optim.lr_scheduler.LRScheduler": ("_last_lr", "_step_count"),
    "torch.utils": ("_pytree",),
    "torch.utils._python_dispatch": ("TorchDispatchMode",),
    # DataLoader
    "torch.multiprocessing": ("_set_thread_name",),
    "torch.utils.data._utils": ("collate", "worker"),
    "torch.utils.data._utils.collate": ("collate", "default_collate_fn_map"),
    "torch.utils.data._utils.worker": ("_worker_info", "_worker_loop"),
    "torch.utils.data.DataLoader": ("_index_sampler", "_iterator"),
    "torch.utils.data.dataloader": (
        "_BaseDataLoaderIter",
        "_DatasetKind",
        "_MultiProcessingDataLoaderIter",
        "_SingleProcessDataLoaderIter",
    ),
    "torch.utils.data.dataloader._BaseDataLoaderIter": (
        "_dataset",
        "_dataset_kind",
        "_index_sampler",
        "_num_yielded",
        "_reset",
        "_sampler_iter",
    ),
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter": (
        "_in_order",
        "_next_data",
        "_rcvd_idx",
        "_shutdown_workers",
        "_task_info",
        "_workers",
    ),
}
# Attributes of returned objects and wrappers; _DDPSinkBackward is the name of an autograd node.
OF_RESULTS: dict[str, tuple[str, ...]] = {
    "torch.compiler.disable": ("_torchdynamo_disable",),
    "torch.distributed.fsdp.FullyShardedDataParallel": ("_fsdp_flattened",),
    "torch.nn.functional.cross_entropy": (
        "_saved_ignore_index",
        "_saved_reduction",
        "_saved_target",
        "_saved_weight",
    ),
    "torch.nn.parallel.DistributedDataParallel": ("_DDPSinkBackward",),
    "torch.sum": ("_saved_self_sym_sizes",),
}
# Not in every build or version; paceline checks whether they exist.
OPTIONAL: dict[str, tuple[str, ...]] = {
    "torch._C._distributed_c10d": ("_dump_nccl_trace_json",),  # builds with NCCL
    "torch.distributed._composable.replicate_with_fsdp.replicate": (),  # since torch 2.9
    "torch.numa.binding": ("_maybe_apply_numa_binding_to_current_process",),  # since torch 2.9
}

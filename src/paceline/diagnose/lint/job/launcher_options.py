"""Tables of the options of launchers: flags, options with values, and the names that launchers
share. Data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.diagnose.lint.job.sbatch_options import names


@dataclass(frozen=True)
class Table:
    """The options of one launcher, with underscores."""

    flags: frozenset[str]  # options without a value
    values: frozenset[str]  # options with one
    short: Mapping[str, str]  # short forms
    # name here -> the name that all launchers share: ``nproc``, ``nnodes``, ``node_rank``,
    # ``addr``, ``port``, ``backend``, ``endpoint``
    says: Mapping[str, str]
    prefixes: bool = True  # True if options may be abbreviated

    def find(self, typed: str) -> str:
        """Return the full name of an option, which may be abbreviated, or an empty string."""
        name = typed.replace("-", "_")
        if name in self.flags or name in self.values:
            return name
        matches = (
            [option for option in (*self.flags, *self.values) if option.startswith(name)]
            if self.prefixes
            else []
        )
        return matches[0] if len(matches) == 1 else ""


def prefixed(prefix: str, text: str) -> frozenset[str]:
    """Return the words of a text, each with a prefix."""
    return frozenset(prefix + name for name in text.split())


_TORCHRUN_VALUES = names(
    "nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf max_restarts"
    " monitor_interval start_method event_log_handler role log_dir redirects tee local_ranks_filter"
    " node_rank master_addr master_port local_addr logs_specs numa_binding signals_to_handle"
    " duplicate_stdout_filters duplicate_stderr_filters shutdown_timeout log_line_prefix_template"
)
_TORCHRUN_FLAGS = names("standalone module no_python run_path use_env virtual_local_rank help")
_TORCHRUN_SAYS = {
    "nproc_per_node": "nproc",
    "nnodes": "nnodes",
    "node_rank": "node_rank",
    "master_addr": "addr",
    "master_port": "port",
    "rdzv_backend": "backend",
    "rdzv_endpoint": "endpoint",
}
TORCHRUN = Table(
    _TORCHRUN_FLAGS,
    _TORCHRUN_VALUES,
    {"m": "module", "r": "redirects", "t": "tee", "h": "help"},
    _TORCHRUN_SAYS,
)
# lint may not import the launcher, so its options are written again here, and tests/law compares
# the two: one that is missing here silences the checks of the number of nodes.
PACELINE = Table(
    _TORCHRUN_FLAGS
    | names("check check_only no_check check_finite no_probe nccl_debug no_slurm prove json"),
    _TORCHRUN_VALUES
    | names(
        "grace_s max_time roll_call_timeout node_timeout hang_timeout on_hang check_replicas"
        " run_dir accelerate_config secret_file"
    ),
    TORCHRUN.short,
    _TORCHRUN_SAYS,
    prefixes=False,
)
ACCELERATE = Table(
    names(
        "help quiet cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic"
        " use_deepspeed use_fsdp dynamo_use_regional_compilation use_parallelism_config"
        " use_megatron_lm same_network module no_python fp8_use_autocast_during_eval tpu_cluster"
        " no_tpu_cluster tpu_use_sudo downcast_bf16 use_xpu use_mps_device debug ipex use_tpu"
    ),
    names(
        "config_file mixed_precision num_processes num_machines num_cpu_threads_per_process"
        " dynamo_backend dynamo_mode gpu_ids machine_rank main_process_ip main_process_port tee"
        " log_dir role rdzv_backend rdzv_conf max_restarts monitor_interval vm env"
        " main_training_function deepspeed_config_file zero_stage offload_optimizer_device"
        " offload_param_device offload_optimizer_nvme_path offload_param_nvme_path"
        " gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model"
        " deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter"
        " deepspeed_multinode_launcher deepspeed_moe_layer_cls_names fp8_backend fp8_format"
        " mpirun_hostfile mpirun_ccl aws_access_key_id aws_secret_access_key"
    )
    | names(
        "fsdp_version fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy"
        " fsdp_reshard_after_forward fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap"
        " fsdp_backward_prefetch fsdp_state_dict_type fsdp_forward_prefetch fsdp_use_orig_params"
        " fsdp_cpu_ram_efficient_loading fsdp_sync_module_states fsdp_activation_checkpointing"
        " fsdp_activation_checkpointing_offload"
    )
    | prefixed(
        "megatron_lm_",
        "tp_degree use_custom_fsdp no_load_optim eod_mask_loss overlap_cpu_optimizer_d2h_h2d"
        " no_save_optim optimizer_cpu_offload use_precision_aware_optimizer"
        " decoder_last_pipeline_num_layers pp_degree num_micro_batches sequence_parallelism"
        " recompute_activations use_distributed_optimizer gradient_clipping recompute_granularity"
        " recompute_method recompute_num_layers attention_backend expert_model_parallel_size"
        " context_parallel_size attention_dropout hidden_dropout attention_softmax_in_fp32"
        " expert_tensor_parallel_size calculate_per_token_loss use_rotary_position_embeddings",
    )
    | prefixed(
        "fp8_",
        "margin interval amax_history_len amax_compute_algo override_linear_precision opt_level"
        " enable_fsdp_float8_all_gather pad_inner_dim",
    )
    | prefixed(
        "parallelism_config_",
        "dp_replicate_size dp_shard_size tp_size cp_size cp_backend cp_comm_strategy sp_size"
        " sp_backend sp_seq_length sp_seq_length_is_variable sp_attn_implementation",
    ),
    {"m": "module", "q": "quiet", "t": "tee", "h": "help"},
    {
        "num_processes": "nproc",
        "num_machines": "nnodes",
        "machine_rank": "node_rank",
        "main_process_ip": "addr",
        "main_process_port": "port",
        "rdzv_backend": "backend",
    },
)
DEEPSPEED = Table(
    names(
        "help module no_python no_local_rank no_ssh_check no_ssh force_multi save_pid"
        " elastic_training bind_cores_to_rank version"
    ),
    names(
        "hostfile include exclude num_nodes min_elastic_nodes max_elastic_nodes num_gpus"
        " num_accelerators master_port master_addr node_rank launcher launcher_args"
        " enable_each_rank_log autotuning bind_core_list ssh_port venv_script"
    ),
    {"H": "hostfile", "i": "include", "e": "exclude", "h": "help"},
    {
        "num_gpus": "nproc",
        "num_nodes": "nnodes",
        "node_rank": "node_rank",
        "master_addr": "addr",
        "master_port": "port",
    },
)
COMPOSER = Table(
    names("help verbose module_mode command_mode version"),
    names("nproc stdout stderr base_rank world_size node_rank master_addr master_port"),
    {"n": "nproc", "v": "verbose", "m": "module_mode", "c": "command_mode", "h": "help"},
    {"nproc": "nproc", "node_rank": "node_rank", "master_addr": "addr", "master_port": "port"},
)
FABRIC = Table(
    names("help"),
    names("accelerator strategy devices num_nodes node_rank main_address main_port precision"),
    {"h": "help"},
    {
        "devices": "nproc",
        "num_nodes": "nnodes",
        "node_rank": "node_rank",
        "main_address": "addr",
        "main_port": "port",
    },
)
TABLES: Mapping[str, Table] = {
    "torchrun": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "paceline run": PACELINE,
    "accelerate launch": ACCELERATE,
    "deepspeed": DEEPSPEED,
    "composer": COMPOSER,
    "fabric run": FABRIC,
}
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "composer.cli.launcher": "composer",
    "lightning.fabric.cli": "fabric run",
    "lightning_fabric.cli": "fabric run",
}

"""What tests of ``paceline tune`` say about a script's loader."""

from paceline.launch.probe.loader_commands import LoaderFacts


def facts_of(setting, **values):
    """Facts of a map-style loader on a CPU with batches of 64 samples, 1 MiB; ``values`` replace some."""
    usual = {
        "persistent_workers": False,
        "batch_samples": 64,
        "batch_bytes": 1 << 20,
        "is_stream": False,
        "on_gpu": False,
    }
    return LoaderFacts(setting, **{**usual, **values})

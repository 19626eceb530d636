"""/dev/shm is too small for what DataLoader workers hand over, as in a container of Docker's default size."""

from faults.stage import FRAMEWORKS, fault


@fault(
    "/dev/shm too small",
    finding="dataloader-shm-too-small",
    names=("rank", "shared memory|/dev/shm"),
    frameworks=FRAMEWORKS,
    mounts=True,
)
def test_shared_memory_is_too_small(stage):
    stage.script(
        settings="workers = 2",
        start="broke()",
        sample="return torch.zeros(300_000), index % 4",
        without=("return torch.full((16,), (index % 7) / 7), index % 4",),
    )
    stage.launch(before="mount -t tmpfs -o size=2m tmpfs /dev/shm")

"""GPUs are counted as CUDA counts them."""

import sys
import types

import pytest

from paceline.machine import gpus


@pytest.fixture
def nvml(monkeypatch):
    """Call it with the model of each GPU, or with the error that its handle raises; it returns the calls."""

    def install(*answers, fails=None):
        calls = []

        def handle(place):
            if isinstance(answers[place], Exception):
                raise answers[place]
            return f"handle of {answers[place]}"

        def count():
            if fails:
                raise fails
            return len(answers)

        fake = types.ModuleType("pynvml")
        fake.nvmlInit = lambda: calls.append("init")
        fake.nvmlDeviceGetCount = count
        fake.nvmlDeviceGetHandleByIndex = handle
        fake.nvmlDeviceGetName = lambda handle: handle.removeprefix("handle of ").encode()
        fake.nvmlSystemGetDriverVersion = lambda: "570.86"
        fake.nvmlShutdown = lambda: calls.append("shutdown")
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return calls

    return install


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, 4),
        ("", 0),
        ("0", 1),
        ("0,1,2,3", 4),
        (" 3 , 1 ", 2),
        ("0,4,1", 1),
        ("-1", 0),
        ("0,-1,1", 1),
        ("NoDevFiles", 0),
        ("GPU-1234,GPU-5678", 2),
        ("MIG-1234", 1),
        ("0,GPU-1234", 2),
        ("0,1,", 2),
        ("0,,1", 1),
        ("0,1,0", 0),
        ("0,1,9,0", 2),
    ],
)
def test_visible_gpus_are_counted_as_cuda_does(nvml, visible, expected):
    calls = nvml("H100", "H100", "H100", "H100")
    number, reason = gpus.count(visible)
    assert number == expected
    assert reason == (
        "GPUs of the machine" if visible is None else f"CUDA_VISIBLE_DEVICES={visible}"
    )
    assert calls == ["init", "shutdown"]


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.count(None) == (0, "no NVIDIA driver answers")
    assert gpus.gather() is None


def test_a_gpu_that_a_scheduler_has_given_to_others_is_not_counted(nvml):
    nvml("H100", RuntimeError("Insufficient Permissions"), "A100")
    assert gpus.gather() == gpus.Gpus(("H100", "A100"), "570.86")
    assert gpus.count(None)[0] == 2
    assert gpus.count("0,1,2")[0] == 2


def test_a_gpu_that_does_not_answer_is_counted(nvml):
    nvml("H100", RuntimeError("GPU is lost"))
    assert gpus.gather() == gpus.Gpus(("H100", ""), "570.86")


def test_a_driver_that_cannot_count_has_no_gpus(nvml):
    calls = nvml(fails=RuntimeError("Unknown Error"))
    assert gpus.count(None) == (0, "GPUs of the machine")
    assert calls == ["init", "shutdown"]


def test_the_load_of_each_gpu_is_what_the_driver_answers(nvml):
    nvml("H100", RuntimeError("Insufficient Permissions"), "A100")
    import pynvml

    def memory(handle):
        if "A100" in handle:
            raise RuntimeError("Not Supported")
        return types.SimpleNamespace(used=10, total=80)

    pynvml.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=97)
    pynvml.nvmlDeviceGetMemoryInfo = memory
    pynvml.nvmlDeviceGetIndex = lambda handle: 2 if "A100" in handle else 0
    assert gpus.loads() == [gpus.Load(0, 0.97, 10, 80), gpus.Load(2, 0.97, None, None)]


def test_without_a_driver_there_is_no_load(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.loads() == []

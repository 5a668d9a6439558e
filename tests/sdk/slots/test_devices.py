"""Devices of a machine, and processes of others on them, as nvidia-smi writes them."""

from herringbone.slots.devices import Devices, foreign_use, is_share


def test_devices_are_gpus_and_cpu_shares():
    devices = Devices(gpus=("GPU-0a",), shares=2).all
    assert [is_share(device) for device in devices] == [False, True, True]


def test_processes_of_a_job_are_not_foreign():
    assert foreign_use("GPU-0a, 1, 900\nGPU-1b, 2, 900\n", ["GPU-0a"]) == {"GPU-1b": "process 2"}


def test_a_process_with_little_memory_does_not_count_and_one_with_unknown_memory_does():
    assert foreign_use("GPU-0a, 1, 255\nGPU-1b, 2, 256\nGPU-2c, 3, [N/A]\n", []) == {
        "GPU-1b": "process 2",
        "GPU-2c": "process 3",
    }


def test_several_processes_are_named_shortly():
    lines = "\n".join(f"GPU-0a, {pid}, 900" for pid in range(1, 6))
    assert foreign_use(lines, []) == {"GPU-0a": "processes 1, 2, 3 and others"}


def test_an_answer_of_another_form_means_nothing():
    assert foreign_use("No devices were found\n, ,\nGPU-0a\n\x00,x,y", []) == {}

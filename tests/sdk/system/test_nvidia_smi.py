"""The answers of nvidia-smi, from a program in its place."""

from herringbone.system import nvidia_smi


def test_gpus_are_read_from_the_answer_of_the_program(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi.ask("-L") is None
    # The query goes to the program; a line without a number of MiB is none of a GPU.
    program.write_text("#!/bin/sh\n[ $# = 2 ] || exit 9\necho 'NVIDIA A10G, 23028'\necho 'NVIDIA L4, [N/A]'\n")
    program.chmod(0o755)
    assert nvidia_smi.gpus() == [("NVIDIA A10G", 23028 << 20)]
    assert nvidia_smi.ask("-L") is None

"""The text of faulthandler becomes threads, whatever the names in it are."""

import faulthandler
import tempfile

from herringbone_entry.watch.dump_text import MAX_FRAMES, MAX_THREADS, Frame, parse_dump

DUMP = """\
Thread 0x00007f12a4ffd6c0 [pt_autograd_0] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line 359 in wait
  <no Python frame>

Current thread 0x00007f12a9f4b080 (most recent call first):
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "/opt/ml/code/my "model".py", line 12 in step
  File "train.py", line 30 in <module>
  ...

Extension modules: numpy.linalg._umath_linalg (total: 1)
"""


def test_the_main_thread_comes_first_and_pythons_import_system_is_left_out():
    main, other = parse_dump(DUMP)
    assert main.frames == (Frame('/opt/ml/code/my "model".py', 12, "step"), Frame("train.py", 30, "<module>"))
    assert (other.name, other.frames[0].line) == ("pt_autograd_0", 359)


def test_hostile_text_is_bounded_and_printable():
    thread = "Thread 0x1 (most recent call first):\n"
    [first, *_] = threads = parse_dump((thread + '  File "\x1b[31m' + "x" * 10_000 + '", line 9 in \x07f\n') * 1000)
    assert len(threads) == MAX_THREADS
    assert len(first.frames[0].file) < 400
    assert "\x1b" not in first.frames[0].file
    assert "\x07" not in first.frames[0].function
    [deep] = parse_dump(thread + '  File "a.py", line 1 in f\n' * 5000)
    assert len(deep.frames) == MAX_FRAMES
    assert parse_dump('  File "a.py", line 1 in f\nThread 0x (most recent\n\0\udc80') == ()


def test_this_pythons_own_dump_can_be_read():
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        [main, *_] = parse_dump(file.read().decode())
    assert main.frames[0].function == "test_this_pythons_own_dump_can_be_read"
